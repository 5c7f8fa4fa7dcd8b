"""Faults of Horovod 0.28.1 that no header can mend: a few lines of its source each, replaced before it is compiled."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.errors import BuildError, printable


@dataclass(frozen=True)
class Mend:
    """``found``, which must stand exactly once in ``path``, becomes ``mended``."""

    path: str
    found: str
    mended: str
    why: str


_WAKE = (
    "An exchange waits for the background thread's next cycle: a long cycle makes a short step wait, a short one wakes "
    "the thread a thousand times a second beside the computation. With HOROVOD_WAKE_ON_ENQUEUE=1, which we set on CPUs "
    "(runtime/world.py), what is enqueued wakes it; the cycle is then how often idle ranks look for each other."
)

_NOTED = (
    "horovodrun asks whether there is Gloo, or MPI, by importing TensorFlow in a process of its own: 5 CPU seconds "
    "before each start. The build knows it, and notes it."
)


def _noted_first(carrier: str) -> Mend:
    head = f"def {carrier}_built(verbose=False):\n"
    loop = "    for ext_base_name in EXTENSIONS:\n"
    first = f"    noted = _built_with('{carrier}')\n    if noted is not None:\n        return noted\n"
    return Mend("horovod/common/util.py", head + loop, head + first + loop, _NOTED)


MENDS = (
    Mend(
        "horovod/common/gloo/gloo_controller.cc",
        "global_ranks_.reserve(size_);",
        "global_ranks_.resize(size_);",
        "The list of ranks keeps size 0, so that under Gloo the stall check looks at no rank: a missing rank is never "
        "named and the job waits for ever, whatever HOROVOD_STALL_SHUTDOWN_TIME_SECONDS says (seen: a rank 25 s late "
        "with limits of 4 and 10 s; under MPI the same program ends after 12 s).",
    ),
    Mend(
        "horovod/runner/http/http_server.py",
        """    def start(self, handler_cls=RendezvousHandler):
        self._httpd, port = find_port(
            lambda addr: RendezvousHTTPServer(
                addr, handler_cls, self._verbose))
""",
        """    def start(self, handler_cls=RendezvousHandler, address=''):
        self._httpd, port = find_port(
            lambda addr: RendezvousHTTPServer(
                (address, addr[1]), handler_cls, self._verbose))
""",
        "The rendezvous asks nobody who he is, and listens on every interface; it need only on the one that ranks use.",
    ),
    Mend(
        "horovod/runner/gloo_run.py",
        "global_rendezv_port = rendezvous.start()\n",
        "global_rendezv_port = rendezvous.start(address=server_ip)\n",
        "The address that ranks are told, and no other: loopback where all ranks are on this host.",
    ),
    Mend(
        "horovod/runner/gloo_run.py",
        "global_rendezv_port = rendezvous.start(handler)\n",
        "global_rendezv_port = rendezvous.start(\n"
        "        handler, network.get_driver_ip(settings.nics) if settings.nics else '')\n",
        "The same for elastic jobs, where --network-interfaces names the interface.",
    ),
    Mend(
        "horovod/runner/elastic/rendezvous.py",
        "                addresses, secret_key = codec.loads_base64(value)\n"
        "                self._put_worker_addresses(host, int(local_rank), addresses, secret_key)\n",
        """                import base64
                import io
                import pickle

                class PlainData(pickle.Unpickler):
                    def find_class(self, module, name):
                        raise pickle.UnpicklingError('only plain data is accepted here')

                addresses, secret_key = PlainData(io.BytesIO(base64.b64decode(value))).load()
                self._put_worker_addresses(host, int(local_rank), addresses, secret_key)
                return  # not stored, where a GET would give the key to anyone
""",
        "An elastic launcher unpickles, with cloudpickle, what any machine that reaches its port sends: code of a "
        "stranger. What ranks send is a dictionary of addresses and a key in bytes; the key was readable by GET.",
    ),
    Mend(
        "horovod/common/parameter_manager.cc",
        """    ResetBayes();
  } else {
    Eigen::VectorXd v = TunableParameter::BestValue();
""",
        """    ResetBayes();
  } else if (fixed_values_.find(variable) != fixed_values_.end()) {
    fixed_values_[variable] = value;
  } else {
    Eigen::VectorXd v = TunableParameter::BestValue();
""",
        "A value that the environment fixes leaves the vector of values that autotune may change. The next init in the "
        "same process (every elastic reset) sets its default first, and writes to the place it no longer has: with "
        "HOROVOD_CYCLE_TIME fixed the default of 1 ms became a fusion threshold of 1 MB; with both fixed, SIGSEGV.",
    ),
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

class TensorQueue {
""",
        _WAKE,
    ),
    Mend(
        "horovod/common/tensor_queue.h",
        "#include <iostream>\n",
        "#include <chrono>\n#include <condition_variable>\n#include <iostream>\n",
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
  static const bool wake_on_enqueue = [] {
    auto value = std::getenv("HOROVOD_WAKE_ON_ENQUEUE");
    return value != nullptr && std::strtol(value, nullptr, 10) > 0;
  }();
  if (wake_on_enqueue) {
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


def mends_hash() -> str:
    """sha256 over the mends, as 64 hex digits; part of the wheel's cache key."""
    text = "\0".join(f"{mend.path}\0{mend.found}\0{mend.mended}" for mend in MENDS)
    return hashlib.sha256(text.encode()).hexdigest()


def mended_source(sdist: Path, work: Path) -> Path:
    """Unpack Horovod's source archive into ``work`` and mend it; its folder.

    Raises:
        BuildError: a line to mend is not there once: another Horovod than the one that was looked at.
    """
    with tarfile.open(sdist) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # early 3.10 has no filters
        archive.extractall(work, **safely)
    source = work / sdist.name.removesuffix(".tar.gz")
    for mend in MENDS:
        path = source / mend.path
        text = path.read_text(encoding="utf-8")
        if (places := text.count(mend.found)) != 1:
            raise BuildError(
                f"{mend.path} has {places} places '{printable(mend.found)}', expected 1: another Horovod",
                "see hvd_mnist/horovod_build/mends.py",
            )
        path.write_text(text.replace(mend.found, mend.mended), encoding="utf-8")
    return source
