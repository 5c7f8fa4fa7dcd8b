"""What Horovod 0.28.1 spends time on for nothing, mended: how it waits, what it copies, how it starts."""

from __future__ import annotations

from hvd_mnist.horovod_build.mend import Mend

_WAKE = (
    "An exchange waits for the background thread's next cycle: a long cycle makes a short step wait, a short one wakes "
    "the thread a thousand times a second beside the computation. With HOROVOD_WAKE_ON_ENQUEUE=1, which we set on CPUs "
    "(runtime/world.py), what is enqueued wakes it; the cycle is then how often idle ranks look for each other."
)

_ASLEEP = (
    "Before each exchange the ranks agree, by an MPI_Allreduce of a few bits, on what all are ready for: who is first "
    "waits there for who still computes, and MPI waits by spinning. Of 9.3 CPU ms of this thread in a step of 150, two "
    "ranks on two cores, 1.7 were the exchange. With HOROVOD_WAKE_ON_ENQUEUE=1 the wait is asleep."
)

_IN_PLACE = (
    "Each sum gets new memory, into which the gradient is copied: page faults and a copy of the model each step. On a "
    "CPU a gradient that nobody else reads becomes the sum in its own memory. An exchange of 4.8 MB took 3 CPU ms "
    "less, over Gloo and MPI; GPUs were not measured and stay as they are."
)

_NOTED = (
    "horovodrun asks whether there is Gloo, or MPI, by importing TensorFlow in a process of its own: 5 CPU seconds "
    "before each start. The build knows it, and notes it."
)


def _bits_asleep(op: str) -> Mend:
    spinning = f"""  int ret_code = MPI_Allreduce(MPI_IN_PLACE, bitvector.data(), count,
                               MPI_LONG_LONG_INT, MPI_{op}, mpi_ctx_.mpi_comm);
"""
    asleep = f"""  int ret_code = AllreduceAsleep(bitvector.data(), count, MPI_{op}, mpi_ctx_.mpi_comm,
                                 !tensor_queue_.IsEmpty());
"""
    return Mend("horovod/common/mpi/mpi_controller.cc", spinning, asleep, _ASLEEP)


def _noted_first(carrier: str) -> Mend:
    head = f"def {carrier}_built(verbose=False):\n"
    loop = "    for ext_base_name in EXTENSIONS:\n"
    first = f"    noted = _built_with('{carrier}')\n    if noted is not None:\n        return noted\n"
    return Mend("horovod/common/util.py", head + loop, head + first + loop, _NOTED)


SPEED = (
    Mend(
        "horovod/common/tensor_queue.h",
        "class TensorQueue {\n",
        """// Rung by every enqueue: the background thread can wait for work, not only for its next cycle.
class EnqueueBell {
public:
  void Ring() {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      rung_ = true;
    }
    heard_.notify_one();
  }

  void WaitUntil(std::chrono::steady_clock::time_point latest) {
    std::unique_lock<std::mutex> lock(mutex_);
    heard_.wait_until(lock, latest, [this] { return rung_; });
    rung_ = false;
  }

private:
  std::mutex mutex_;
  std::condition_variable heard_;
  bool rung_ = false;
};

EnqueueBell& TheEnqueueBell();

// HOROVOD_WAKE_ON_ENQUEUE: waiting that would spin, or ask every cycle, is asleep.
bool WakesOnEnqueue();

class TensorQueue {
""",
        _WAKE,
    ),
    Mend(
        "horovod/common/tensor_queue.h",
        "#include <iostream>\n",
        "#include <chrono>\n#include <condition_variable>\n#include <cstdlib>\n#include <iostream>\n",
        _WAKE,
    ),
    Mend(
        "horovod/common/tensor_queue.h",
        "  void RemoveJoinTensor();\n",
        """  void RemoveJoinTensor();

  bool IsEmpty() const {
    std::lock_guard<std::mutex> guard(mutex_);
    return tensor_table_.empty();
  }
""",
        _WAKE,
    ),
    Mend(
        "horovod/common/tensor_queue.cc",
        "// Add a TensorTableEntry as well as its message to the queue.\n",
        """EnqueueBell& TheEnqueueBell() {
  static EnqueueBell bell;
  return bell;
}

bool WakesOnEnqueue() {
  static const bool wakes = [] {
    auto value = std::getenv("HOROVOD_WAKE_ON_ENQUEUE");
    return value != nullptr && std::strtol(value, nullptr, 10) > 0;
  }();
  return wakes;
}

// Add a TensorTableEntry as well as its message to the queue.
""",
        _WAKE,
    ),
    Mend(
        "horovod/common/tensor_queue.cc",
        "  message_queue_.push(std::move(message));\n  return Status::OK();\n",
        "  message_queue_.push(std::move(message));\n  TheEnqueueBell().Ring();\n  return Status::OK();\n",
        _WAKE,
    ),
    Mend(
        "horovod/common/tensor_queue.cc",
        "    message_queue_.push(std::move(messages[i]));\n  }\n  return Status::OK();\n",
        "    message_queue_.push(std::move(messages[i]));\n  }\n  TheEnqueueBell().Ring();\n  return Status::OK();\n",
        _WAKE,
    ),
    Mend(
        "horovod/common/operations.cc",
        """  auto start_time = std::chrono::steady_clock::now();
  auto sleep_duration = state.last_cycle_start +
                        std::chrono::microseconds(long(
                            state.parameter_manager.CycleTimeMs() * 1000.)) -
                        start_time;
  if (sleep_duration > std::chrono::steady_clock::duration::zero()) {
    std::this_thread::sleep_for(sleep_duration);
  }
""",
        """  auto cycle = std::chrono::microseconds(
      long(state.parameter_manager.CycleTimeMs() * 1000.));
  if (WakesOnEnqueue()) {
    // Work that other ranks are not ready for is asked about every millisecond, Horovod's own cycle.
    for (auto process_set_id : state.process_set_table.Ids()) {
      if (!state.process_set_table.Get(process_set_id).tensor_queue.IsEmpty()) {
        cycle = std::min(cycle, std::chrono::microseconds(1000));
      }
    }
    TheEnqueueBell().WaitUntil(state.last_cycle_start + cycle);
  } else {
    std::this_thread::sleep_until(state.last_cycle_start + cycle);
  }
""",
        _WAKE,
    ),
    Mend(
        "horovod/common/mpi/mpi_controller.cc",
        "namespace horovod {\nnamespace common {\n\n// MPIController\n",
        """namespace horovod {
namespace common {

namespace {

// MPI_Allreduce in place. A rank with work looks again at once for as long as ranks in step are apart; then, and
// without work, it sleeps between looks: an eighth of what it has waited, a quarter of a millisecond at most.
int AllreduceAsleep(void* bits, int count, MPI_Op op, MPI_Comm comm, bool has_work) {
  using namespace std::chrono;
  if (!WakesOnEnqueue()) {
    return MPI_Allreduce(MPI_IN_PLACE, bits, count, MPI_LONG_LONG_INT, op, comm);
  }
  MPI_Request request;
  int ret_code = MPI_Iallreduce(MPI_IN_PLACE, bits, count, MPI_LONG_LONG_INT, op, comm, &request);
  auto start = steady_clock::now();
  auto awake = microseconds(has_work ? 300 : 20);
  for (int done = 0; ret_code == MPI_SUCCESS;) {
    ret_code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) {
      break;
    }
    auto waited = duration_cast<microseconds>(steady_clock::now() - start);
    if (waited < awake) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min(waited / 8, microseconds(250)));
    }
  }
  return ret_code;
}

} // namespace

// MPIController
""",
        _ASLEEP,
    ),
    Mend(
        "horovod/common/mpi/mpi_controller.cc",
        "#include <numeric>\n",
        "#include <algorithm>\n#include <chrono>\n#include <numeric>\n#include <thread>\n",
        _ASLEEP,
    ),
    *map(_bits_asleep, ("BAND", "BOR")),
    Mend(
        "third_party/gloo/gloo/transport/tcp/pair.cc",
        """  std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
  if (!lock) {
    return;
  }

  // State must be <= CONNECTED.
""",
        """  // So wait for it, a millisecond at most: who returns at once is called again at once.
  struct timespec latest;
  clock_gettime(CLOCK_REALTIME, &latest);
  latest.tv_nsec += 1000000;
  if (latest.tv_nsec >= 1000000000) {
    latest.tv_nsec -= 1000000000;
    latest.tv_sec++;
  }
  if (pthread_mutex_timedlock(m_.native_handle(), &latest) != 0) {
    return;
  }
  std::unique_lock<std::mutex> lock(m_, std::adopt_lock);

  // State must be <= CONNECTED.
""",
        "Gloo's thread for the sockets spins (epoll_wait, a lock that is held, epoll_wait ...) while another thread of "
        "the process sends, and takes the core that the other rank needs: 56 calls of epoll_wait for an exchange of "
        "64 kB between two ranks on two cores, which took 4.1 ms instead of 1.9, and 4.8 MB 12.6 instead of 9.0.",
    ),
    Mend(
        "third_party/gloo/gloo/transport/tcp/pair.cc",
        "#include <string.h>\n",
        "#include <pthread.h>\n#include <string.h>\n#include <time.h>\n",
        "What the lock above needs.",
    ),
    Mend(
        "horovod/tensorflow/mpi_ops.cc",
        "} // namespace\n\nclass HorovodAllreduceOp : public AsyncOpKernel {\n",
        """// Output i, of the shape of input i: on a CPU that input's memory, where no other operation holds it.
Status OutputLikeInput(OpKernelContext* context, int device, int i, Tensor** output) {
  auto shape = context->input(i).shape();
  return device == CPU_DEVICE_ID
             ? context->forward_input_or_allocate_output({i}, i, shape, output)
             : context->allocate_output(i, shape, output);
}

} // namespace

class HorovodAllreduceOp : public AsyncOpKernel {
""",
        _IN_PLACE,
    ),
    Mend(
        "horovod/tensorflow/mpi_ops.cc",
        """      auto tensor = context->input(i);
      OP_REQUIRES_OK_ASYNC(
          context, context->allocate_output(i, tensor.shape(), &outputs[i]),
          done);
""",
        """      OP_REQUIRES_OK_ASYNC(
          context, OutputLikeInput(context, device, i, &outputs[i]), done);
""",
        _IN_PLACE,
    ),
    Mend(
        "horovod/tensorflow/mpi_ops.cc",
        """    auto tensor = context->input(0);
    horovod::common::ReduceOp reduce_op = static_cast<horovod::common::ReduceOp>(reduce_op_);
    Tensor* output;
    OP_REQUIRES_OK_ASYNC(
        context, context->allocate_output(0, tensor.shape(), &output), done);
""",
        """    horovod::common::ReduceOp reduce_op = static_cast<horovod::common::ReduceOp>(reduce_op_);
    Tensor* output;
    OP_REQUIRES_OK_ASYNC(
        context, OutputLikeInput(context, device, 0, &output), done);
    auto tensor = context->input(0);  // after the output: a copy of a tensor holds its memory too
""",
        _IN_PLACE,
    ),
    Mend(
        "horovod/common/ops/gloo_operations.cc",
        """    std::memcpy(buffer_data, first_entry.tensor->data(),
                (size_t)first_entry.tensor->size());
    fused_input_data = buffer_data;
""",
        """    if (buffer_data != first_entry.tensor->data()) {
      std::memcpy(buffer_data, first_entry.tensor->data(),
                  (size_t)first_entry.tensor->size());
    }
    fused_input_data = buffer_data;
""",
        _IN_PLACE,
    ),
    Mend(
        "CMakeLists.txt",
        '"\\"dummy\\": \\"none\\"\\n}")\n',
        '"\\"gloo\\": \\"${HAVE_GLOO}\\",\\n\\"mpi\\": \\"${HAVE_MPI}\\",\\n\\"nccl\\": \\"${HAVE_NCCL}\\",\\n'
        '\\"dummy\\": \\"none\\"\\n}")\n',
        _NOTED,
    ),
    Mend(
        "horovod/common/util.py",
        "def extension_available(ext_base_name, verbose=False):\n",
        """def _built_with(carrier):
    noted = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'metadata.json')
    try:
        with open(noted) as file:
            return json.load(file)[carrier] == 'TRUE'
    except (OSError, ValueError, KeyError):
        return None


def extension_available(ext_base_name, verbose=False):
""",
        _NOTED,
    ),
    *map(_noted_first, ("mpi", "gloo", "nccl")),
)
