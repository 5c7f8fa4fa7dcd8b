"""``hvd-mnist bench allreduce``: a job for each backend in turn, several rounds, one table.

Each backend runs in a job of its own, started as ``hvd-mnist launch`` would start it, so that none runs in the
other's threads; rounds alternate their order, so that a machine whose speed drifts is the same machine for all.
Nothing here loads TensorFlow or Horovod. A Ctrl-C ends the jobs and reports what has been measured so far.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.bench.bandwidth import Row, best_busbw, merged
from hvd_mnist.cluster.hostfile import HostList
from hvd_mnist.cluster.placement import place
from hvd_mnist.errors import BelowFloor, HvdMnistError, UsageError
from hvd_mnist.launch import site
from hvd_mnist.launch.job import Command, Job, Ssh
from hvd_mnist.launch.plan import plan

LAUNCHER = {"horovod-gloo": "horovodrun", "horovod-mpi": "mpirun", "mpi": "mpirun", "parameter-server": "mpirun"}


@dataclass(frozen=True)
class Sweep:
    """What is measured: ``sizes`` in bytes, or the list of tensor ``shapes`` of a real model; counts per size."""

    op: str
    backends: tuple[str, ...]
    sizes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] | None
    tensors: int
    dtype: str
    iterations: int
    warmup: int
    rounds: int


def check(sweep: Sweep) -> None:
    """Raises UsageError for what a backend cannot do, before anything is started."""
    for backend in sweep.backends:
        if backend in ("mpi", "parameter-server") and sweep.dtype != "float32":
            raise UsageError(f"--dtype {sweep.dtype} over {backend}: MPI has no such type", "--backends horovod-gloo")
        if backend == "parameter-server" and sweep.op != "allreduce":
            raise UsageError(f"a parameter server does no {sweep.op}", "leave it out of --backends")


def commands(sweep: Sweep, hosts: HostList, size: int | None, out: Path, network_interface: str | None = None):
    """backend -> the Command of its job; ``out`` is the file to which rank 0 adds a line for each size."""
    found: dict[str, Command] = {}
    placement = place(hosts, size, False)
    for backend in sweep.backends:
        asked = {
            "backend": backend,
            "op": sweep.op,
            "dtype": sweep.dtype,
            "sizes": sweep.sizes,
            "shapes": sweep.shapes,
            "tensors": sweep.tensors,
            "iterations": sweep.iterations,
            "warmup": sweep.warmup,
            "out": str(out),
        }
        words = (sys.executable, "-m", "hvd_mnist.bench.exchange_ranks", json.dumps(asked, separators=(",", ":")))
        launcher = LAUNCHER[backend] if placement.size > 1 else "auto"
        job = Job(words, placement, launcher=launcher, ssh=Ssh())
        look = site.look(placement.hosts, {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}, network_interface)
        found[backend] = plan(job, look)
    return found


def run(
    sweep: Sweep, hosts: HostList, size: int | None, limit: float, say: Callable[[str], None], interface: str | None
) -> tuple[list[Row], bool]:
    """Measure; the rows of all rounds, and whether they are complete (a Ctrl-C ends early).

    Args:
        limit: seconds for each job.
        say: gets a line before each job.

    Raises:
        HvdMnistError: an element was wrong: no speed is reported then; or a job failed.
    """
    from hvd_mnist.launch import run as launching

    check(sweep)
    complete = True
    with tempfile.TemporaryDirectory(prefix="hvd-mnist-bench-") as folder:
        out = Path(folder) / "rows.jsonl"
        jobs = commands(sweep, hosts, size, out, interface)
        for number in range(sweep.rounds):
            for backend in sweep.backends[:: 1 if number % 2 == 0 else -1]:
                say(f"round {number + 1} of {sweep.rounds}: {backend}")
                status = launching.run(jobs[backend], log_dir=f"{folder}/logs", timeout=limit)
                if status != 0:  # by a signal
                    complete = False
                    break
            if not complete:
                break
        lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    rows = merged(_row(line) for line in lines)
    if wrong := [row for row in rows if row.wrong]:
        first = wrong[0]
        raise HvdMnistError(f"{first.backend}: {first.wrong} wrong elements in a {first.op} of {first.bytes} bytes")
    return rows, complete


def _row(line: str) -> Row:
    read = json.loads(line)
    return Row(**{**read, "seconds": tuple(read["seconds"])})


def hold_to(rows: Sequence[Row], floor: float, backend: str) -> None:
    """Raises BelowFloor (status 8) where a backend's best bus bandwidth is below ``floor`` GB/s."""
    best = best_busbw(rows, backend)
    if best < floor:
        raise BelowFloor(f"{backend} reached a bus bandwidth of {best:.3f} GB/s, below the floor of {floor:g}")


def plot(rows: Sequence[Row], path: Path) -> None:
    """Bus bandwidth over size, a line for each backend, with quartiles; the suffix of ``path`` chooses the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for number, backend in enumerate(dict.fromkeys(row.backend for row in rows)):
        its = [row for row in rows if row.backend == backend]
        said = [row.as_json() for row in its]
        scale = [row.busbw * row.median * 1e6 for row in its]  # busbw = scale / microseconds
        low, high = ([k / row["quartiles_us"][q] for k, row in zip(scale, said, strict=True)] for q in (1, 0))
        (line,) = axes.plot([r.bytes for r in its], [r.busbw for r in its], marker="os^Dvx"[number % 6], label=backend)
        axes.fill_between([row.bytes for row in its], low, high, alpha=0.2, color=line.get_color(), linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="bus bandwidth, GB/s",
             title=f"{rows[0].op}, {rows[0].ranks} ranks, {rows[0].dtype}")  # fmt: skip
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
    plt.close(figure)
