"""A real sum over ranks: two on each host, and one on each of several hosts. ``--run`` of the doctor.

The program that the ranks run is text: it imports TensorFlow and Horovod, which the doctor itself never does.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from hvd_mnist.doctor.check import FAIL, OK, Check

PROGRAM = """
import horovod.tensorflow as hvd
import tensorflow as tf
hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    mine = gpus[hvd.local_rank() % len(gpus)]
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.experimental.set_memory_growth(mine, True)
size = hvd.size()
with tf.device("/GPU:0" if len(gpus) >= hvd.local_size() > 0 else "/CPU:0"):
    total = hvd.allreduce(tf.fill([1000], float(hvd.rank() + 1)), op=hvd.Sum, name="doctor")
right = bool(tf.reduce_all(total == size * (size + 1) / 2.0))
device = "GPU" if "GPU" in total.device else "CPU"
carrier = "MPI" if hvd.mpi_enabled() else "Gloo"
print(f"HVD-MNIST-SUM rank={hvd.rank()} size={size} right={right} device={device} carrier={carrier}", flush=True)
hvd.shutdown()
"""
SAID = re.compile(r"HVD-MNIST-SUM rank=(\d+) size=(\d+) right=(\w+) device=(\w+) carrier=(\w+)")
JOB_VARIABLES = ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "MV2_")


def program_words(python: str = sys.executable) -> list[str]:
    """The program as words that no shell on the way can change."""
    packed = base64.b64encode(PROGRAM.encode()).decode()
    return [python, "-c", f"import base64;exec(base64.b64decode('{packed}'))"]


def command(horovodrun: str, hosts: Sequence[str], ranks_each: int, more: Sequence[str] = ()) -> list[str]:
    """horovodrun over Gloo with ``ranks_each`` ranks on each host; names without slots."""
    named = ",".join(f"{host}:{ranks_each}" for host in hosts)
    return [horovodrun, "--gloo", "-np", str(len(hosts) * ranks_each), *more, "-H", named, *program_words()]


def environment(horovodrun: str) -> dict[str, str]:
    """The caller's environment without what a surrounding job put there."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(JOB_VARIABLES)}
    env["PATH"] = os.pathsep.join([os.path.dirname(horovodrun), env.get("PATH", os.defpath)])
    return env | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}


def run(horovodrun: str, hosts: Sequence[str], ranks_each: int, limit: float, more: Sequence[str] = ()) -> dict:
    """Run the sum; {"size": ranks that were asked for, "status": exit status or None, "output": its last lines}."""
    words = command(horovodrun, hosts, ranks_each, more)
    status, output = run_limited(words, environment(horovodrun), limit)
    return {"size": len(hosts) * ranks_each, "status": status, "output": output}


def run_limited(words: Sequence[str], env: dict[str, str], limit: float) -> tuple[int | None, str]:
    """(exit status, output); past ``limit`` seconds all that it started is ended, and the status is None."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env)
        status = None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                end_tree(process)
        output.seek(0)
        return status, output.read()[-20_000:]


def end_tree(process: subprocess.Popen) -> None:
    """End a launcher so that it can end its ranks, then whatever is left of them on this host."""
    import psutil

    try:
        tree = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        tree = []
    process.send_signal(signal.SIGTERM)
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


def judged(name: str, result: dict, limit: float, host: str = "") -> Check:
    """The check of a sum that was run."""
    said = {int(rank): rest for rank, *rest in SAID.findall(result["output"])}
    size = result["size"]
    lines = [line.strip() for line in result["output"].splitlines() if line.strip() and "HVD-MNIST-SUM" not in line]
    last = error_line(lines)
    remedy = "see all of it: horovodrun --verbose --gloo -np 2 -H HOSTS hvd-mnist whoami"
    if result["status"] is None:
        return Check(
            name,
            FAIL,
            f"no answer of {size} ranks within {limit:.0f} s{last}",
            f"--timeout {2 * limit:.0f}, or {remedy}",
            host,
        )
    wrong = [rank for rank, (_, right, *_) in said.items() if right != "True"]
    sizes = {int(rest[0]) for rest in said.values()}
    if wrong:
        return Check(
            name, FAIL, f"a wrong sum on rank {', '.join(map(str, wrong))}", "hvd-mnist build-horovod --force", host
        )
    if sizes and sizes != {size}:
        shown = ", ".join(map(str, sorted(sizes)))
        return Check(
            name,
            FAIL,
            f"{size} ranks were started, but Horovod counts {shown}",
            "hvd-mnist build-horovod --force",
            host,
        )
    if result["status"] != 0 or len(said) != size:
        return Check(name, FAIL, f"{len(said)} of {size} ranks answered, status {result['status']}{last}", remedy, host)
    devices = "/".join(sorted({rest[2] for rest in said.values()}))
    return Check(name, OK, f"right sum over {size} ranks, {devices}, {next(iter(said.values()))[3]}", None, host)


def error_line(lines: Sequence[str]) -> str:
    """``: the line that names the error``, else the last one; empty where there is none."""
    named = [line for line in lines if re.search(r"[Ee]rror|refused|denied|failed|timed out|not found", line)]
    return f": {(named or lines)[-1][:300]}" if lines else ""
