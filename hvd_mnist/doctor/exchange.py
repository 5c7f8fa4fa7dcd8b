"""A real sum over ranks: two on each host, and one on each of several hosts. ``--run`` of the doctor.

The program that the ranks run is text: it imports TensorFlow and Horovod, which the doctor itself never does.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

from hvd_mnist.cluster.host import Host
from hvd_mnist.cluster.placement import place
from hvd_mnist.doctor.check import FAIL, OK, Check
from hvd_mnist.doctor.child import run_limited
from hvd_mnist.errors import HvdMnistError
from hvd_mnist.launch import site
from hvd_mnist.launch.failure import cause_in
from hvd_mnist.launch.job import Job, Ssh
from hvd_mnist.launch.plan import plan

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
carrier = "NCCL" if device == "GPU" and hvd.nccl_built() else "MPI" if hvd.mpi_enabled() else "Gloo"
print(f"HVD-MNIST-SUM rank={hvd.rank()} size={size} right={right} device={device} carrier={carrier}", flush=True)
hvd.shutdown()
"""
SAID = re.compile(r"HVD-MNIST-SUM rank=(\d+) size=(\d+) right=(\w+) device=(\w+) carrier=(\w+)")
JOB_VARIABLES = ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "MV2_")


def program_words(python: str = sys.executable) -> list[str]:
    """The program as words that no shell on the way can change."""
    packed = base64.b64encode(PROGRAM.encode()).decode()
    return [python, "-c", f"import base64;exec(base64.b64decode('{packed}'))"]


def run(hosts: Sequence[Host], ranks_each: int, ssh: Ssh, limit: float, interface: str | None = None) -> dict:
    """Run the sum over ``ranks_each`` ranks on each host, started as ``hvd-mnist launch`` would start them.

    Returns:
        {"size": ranks that were asked for, "launcher": what started them, "status": exit status or None past the
        limit, "output": its end}. Where it cannot be planned, status 3 and the reason as output.
    """
    placed = place([replace(host, slots=ranks_each, slot_ids=None) for host in hosts])
    job = Job(tuple(program_words()), placed, ssh=ssh)
    env = {name: value for name, value in os.environ.items() if not name.startswith(JOB_VARIABLES)}
    try:
        command = plan(job, site.look(hosts, {**env, "TF_CPP_MIN_LOG_LEVEL": "3"}, interface))
    except (HvdMnistError, ImportError) as wrong:
        return {"size": job.size, "launcher": "none", "status": 3, "output": f"not started: {wrong}"}
    status, output, errors = run_limited(command.argv, command.env, limit)
    said = f"{output[-20_000:]}\n{errors[-20_000:]}"
    return {"size": job.size, "launcher": command.launcher, "status": status, "output": said}


def judged(name: str, result: dict, limit: float, host: str = "") -> Check:
    """The check of a sum that was run."""
    said = {int(rank): rest for rank, *rest in SAID.findall(result["output"])}
    size, status = result["size"], result["status"]
    lines = [line.strip() for line in result["output"].splitlines() if line.strip() and "HVD-MNIST-SUM" not in line]
    known = cause_in(result["output"])
    wrong = [str(rank) for rank, (_, right, *_) in sorted(said.items()) if right != "True"]
    counted = sorted({int(rest[0]) for rest in said.values()} - {size})
    rebuild = "hvd-mnist build-horovod --force"
    if wrong:
        return Check(name, FAIL, f"a wrong sum on rank {', '.join(wrong)}", rebuild, host)
    if counted:
        found = f"{size} ranks were started, but Horovod counts {', '.join(map(str, counted))}: unconnected copies"
        return Check(name, FAIL, found, rebuild, host)
    if status is None:
        found = f"{len(said)} of {size} ranks answered within {limit:.0f} s{error_line(lines)}"
        return Check(name, FAIL, found, f"give more time: --timeout {2 * limit:.0f}", host)
    if status != 0 or len(said) != size:
        found = f"{len(said)} of {size} ranks answered, status {status}{error_line(lines)}"
        see = "see all of it: hvd-mnist launch -np 2 -H HOSTS -- python -c 'import horovod.tensorflow as h; h.init()'"
        return Check(name, FAIL, found, f"{known[0]}: {known[1]}" if known else see, host)
    device = "/".join(sorted({rest[2] for rest in said.values()}))
    carrier = "/".join(sorted({rest[3] for rest in said.values()}))
    return Check(name, OK, f"right sum over {size} ranks, {device}, {carrier}, by {result['launcher']}", None, host)


def error_line(lines: Sequence[str]) -> str:
    """``: the line that names the error``, else the last one; empty where there is none."""
    named = [line for line in lines if re.search(r"[Ee]rror|refused|denied|failed|timed out|not found", line)]
    return f": {(named or lines)[-1][:300]}" if lines else ""
