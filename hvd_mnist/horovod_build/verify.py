"""Tries an installed Horovod: does it load, with what was asked for, and do two processes get the same sum?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hvd_mnist.errors import BuildError, EnvironmentUnfit
from hvd_mnist.horovod_build.progress import error_lines
from hvd_mnist.horovod_build.stack import find_program

IMPORT_LIMIT = 180  # seconds; TensorFlow's first import from a cold disk is slow
ALLREDUCE_LIMIT = 180

IMPORT_PROGRAM = """
import json
import tensorflow
print("TENSORFLOW-LOADS", flush=True)
import horovod.tensorflow as hvd
found = {"mpi": hvd.mpi_built(), "gloo": hvd.gloo_built(), "nccl": hvd.nccl_built(), "cuda": hvd.cuda_built()}
print("BUILT " + json.dumps(found))
"""

ALLREDUCE_PROGRAM = """
import horovod.tensorflow as hvd
import tensorflow as tf
hvd.init()
total = hvd.allreduce(tf.fill([1000], float(hvd.rank() + 1)), op=hvd.Sum)
assert hvd.size() == 2, f"{hvd.size()} ranks, not 2"
assert bool(tf.reduce_all(total == 3.0)), f"1 + 2 over two ranks gave {total}"
print(f"SUM-IS-RIGHT rank {hvd.rank()}", flush=True)
hvd.shutdown()
"""


def child_environment() -> dict[str, str]:
    """The caller's environment, without what a surrounding job put there, on the CPU, as root or not."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "OPAL_PREFIX"))
    }
    env |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
    # mpirun refuses root without these two; horovodrun adds the option of the same name by itself.
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    scripts = find_program("python3") or Path(sys.executable)
    env["PATH"] = f"{scripts.parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    return env


def run_limited(command: list[str], limit: float) -> tuple[int, str]:
    """Exit status and output of a command; past ``limit`` seconds it and its children are ended, status 124."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(),
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except BaseException as stop:
            end_tree(process)
            if not isinstance(stop, subprocess.TimeoutExpired):
                raise
            status = 124
        output.seek(0)
        return status, output.read()


def end_tree(process: subprocess.Popen) -> None:
    """End a process with all its descendants: launchers put ranks into sessions of their own."""
    import psutil

    try:
        tree = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        tree = []
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in tree:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            pass


def check_import(gpu: bool) -> dict[str, object]:
    """What the installed Horovod says it was built with, asked in a child process.

    Raises:
        EnvironmentUnfit: TensorFlow itself does not import.
        BuildError: Horovod does not, or lacks MPI, Gloo or (with ``gpu``) NCCL.
    """
    status, output = run_limited([sys.executable, "-c", IMPORT_PROGRAM], IMPORT_LIMIT)
    if "TENSORFLOW-LOADS" not in output:
        lines = "\n  ".join(error_lines(output, 5))
        raise EnvironmentUnfit(f"TensorFlow does not import here (status {status}):\n  {lines}")
    said = [line for line in output.splitlines() if line.startswith("BUILT ")]
    if status or not said:
        lines = "\n  ".join(error_lines(output, 5))
        raise BuildError(
            f"Horovod was built but does not import (status {status}):\n  {lines}",
            hint="hvd-mnist build-horovod builds it anew",
        )
    built = json.loads(said[-1].removeprefix("BUILT "))
    wanted = ["mpi", "gloo"] + (["nccl", "cuda"] if gpu else [])
    if missing := [name for name in wanted if not built[name]]:
        raise BuildError(f"Horovod was built without {', '.join(missing)}: it reports {built}")
    return built


def check_allreduce() -> list[str]:
    """Sum over two processes of this machine, once under horovodrun (Gloo) and once under mpirun.

    Returns: the names of the launchers that were tried.

    Raises:
        BuildError: a launcher failed, gave a wrong sum, or passed the limit.
    """
    with tempfile.TemporaryDirectory(prefix="hvd-mnist-check-") as folder:
        program = Path(folder) / "allreduce.py"
        program.write_text(ALLREDUCE_PROGRAM, encoding="utf-8")
        launchers = {
            "horovodrun --gloo": [str(find_program("horovodrun")), "--gloo", "-np", "2", "-H", "localhost:2"],
            "mpirun": [str(find_program("mpirun")), "-np", "2", "--host", "localhost:2", "--bind-to", "none"],
        }
        for name, launcher in launchers.items():
            status, output = run_limited([*launcher, sys.executable, str(program)], ALLREDUCE_LIMIT)
            if status or output.count("SUM-IS-RIGHT") != 2:
                what = f"passed {ALLREDUCE_LIMIT} s" if status == 124 else f"failed with status {status}"
                lines = "\n  ".join(error_lines(output, 8))
                raise BuildError(f"Horovod imports, but an allreduce over 2 processes under {name} {what}:\n  {lines}")
    return list(launchers)
