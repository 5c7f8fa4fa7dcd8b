"""Messages of packages that are missing, built for something else, or set up wrongly."""

from __future__ import annotations

from hvd_mnist.explain.entry import Entry

SOFTWARE = (
    Entry(
        "ModuleNotFoundError: No module named 'horovod'",
        "Python",
        "Horovod is not installed in this environment (or another Python runs than you think).",
        "which python; hvd-mnist doctor",
        "hvd-mnist build-horovod",
        pattern=r"No module named '?horovod",
    ),
    Entry(
        "ImportError: Extension horovod.tensorflow has not been built",
        "Horovod",
        "Horovod was installed without its TensorFlow half, or that half does not load.",
        "hvd-mnist doctor, which shows the loader's own error",
        "hvd-mnist build-horovod",
        pattern=r"Extension horovod\.\w+ has not been built",
    ),
    Entry(
        "mpi_lib.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN10tensorflow8OpKernel11TraceStringE",
        "the loader",
        "Horovod was built for another TensorFlow than the one installed.",
        "hvd-mnist doctor: `horovod build`",
        "hvd-mnist build-horovod",
        pattern=r"mpi_lib\S*: undefined symbol|undefined symbol: _ZN?\w*10tensorflow",
    ),
    Entry(
        "ModuleNotFoundError: No module named 'tensorflow'",
        "Python",
        "TensorFlow is not installed in this environment.",
        "which python; pip list | grep -i tensorflow",
        "pip install -r requirements/cpu.txt (or gpu.txt)",
        pattern=r"No module named '?tensorflow",
    ),
    Entry(
        "fatal error: tensorflow/compiler/xla/client/xla_builder.h: No such file or directory",
        "the compiler",
        "Plain `pip install horovod` does not compile against TensorFlow 2.21.",
        "pip list | grep -i tensorflow",
        "hvd-mnist build-horovod, which brings the headers that are missing",
        pattern=r"xla_builder\.h: No such file|highwayhash/\S+: No such file|farmhash\.h: No such file",
    ),
    Entry(
        "fatal error: nccl.h: No such file or directory",
        "the compiler",
        "A build for GPUs without NCCL's headers.",
        "pip list | grep nccl",
        "pip install -r requirements/gpu.txt; hvd-mnist build-horovod --gpu",
        pattern=r"nccl\.h: No such file",
    ),
    Entry(
        "AttributeError: 'Variable' object has no attribute 'ref'",
        "Keras",
        "Horovod's own Keras callbacks do not know Keras 3. Its DistributedOptimizer runs and never averages.",
        "which module is imported as hvd?",
        "import hvd_mnist.keras as hvd (docs/migrating.md)",
        pattern=r"'\w*Variable' object has no attribute 'ref'|keras\.backend' has no attribute '(get|set)_value'",
    ),
    Entry(
        "Could not find cuda drivers on your machine, GPU will not be used.",
        "TensorFlow",
        "TensorFlow sees no GPU driver and computes on the CPU. Harmless where there is no GPU.",
        "nvidia-smi; hvd-mnist doctor",
        "in a container: --gpus all; else install the driver",
        pattern=r"Could not find cuda drivers|Cannot dlopen some GPU libraries|failed call to cuInit",
    ),
    Entry(
        "jit_compile=True: Horovod's allreduce in DistributedAdam 'adam' cannot be compiled by XLA here",
        "hvd_mnist",
        "Keras 3 would compile the step with XLA, which does not know Horovod's collectives.",
        "the jit_compile argument of model.compile",
        "model.compile(..., jit_compile=False)",
        pattern=r"cannot be compiled by XLA|No registered 'Horovod\w+' OpKernel for XLA",
    ),
    Entry(
        "version: rank 1 on host2 has tensorflow=2.20.0, rank 0 has tensorflow=2.21.0",
        "hvd_mnist",
        "Hosts have different packages.",
        "hvd-mnist doctor -H host1:4,host2:4",
        "the same requirements file on every host",
        pattern=r"version: rank \d+ on \S+ has ",
    ),
)
