"""``hvd-mnist bench scaling``: the real trainer on 1, 2, 4 ... ranks.

Each number of ranks is a job of its own, started as ``hvd-mnist launch`` would start it; repeats go through all of
them in turn, every other one backwards, so that a machine whose speed drifts is the same machine for all. Nothing here
loads TensorFlow or Horovod. Figures come from the times that each rank takes of each step (``train --step-times``,
``step_parts``): start, tracing, evaluation and saves are not in them. A Ctrl-C ends the job that runs, and what has
been measured is reported.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from hvd_mnist.bench import step_parts
from hvd_mnist.bench.compare import spread
from hvd_mnist.cluster.hostfile import HostList
from hvd_mnist.cluster.placement import place
from hvd_mnist.console import count
from hvd_mnist.errors import HvdMnistError, UsageError
from hvd_mnist.launch import site
from hvd_mnist.launch.job import Command, Job, Ssh
from hvd_mnist.launch.plan import plan


@dataclass(frozen=True)
class Scaling:
    """What is measured.

    Attributes:
        sizes: numbers of ranks, smallest first.
        kind: "weak": ``batch`` examples a rank; "strong": ``batch`` examples over all ranks.
        threads: compute threads of each rank, the same for every number of ranks.
        warm_up: first steps of each job, not counted.
        steps: counted steps of each job.
    """

    sizes: tuple[int, ...]
    kind: str = "weak"
    model: str = "cnn"
    data: str = "mnist"
    batch: int = 128
    threads: int = 1
    warm_up: int = 5
    steps: int = 20
    repeats: int = 3
    launcher: str = "auto"
    backend: str = "gloo"
    timeline: bool = False

    def __post_init__(self):
        if self.kind == "strong":
            for size in self.sizes:
                if self.batch % size:
                    most = max(self.sizes)
                    raise UsageError(
                        f"--strong: --batch {self.batch} does not divide by {size} ranks",
                        f"--batch {max(1, self.batch // most) * most}",
                    )

    def words(self, folder: Path, timeline: bool = False) -> tuple[str, ...]:
        """The words of ``hvd-mnist train`` for one job: no evaluation and no save but the last ones."""
        batch = "--batch-size" if self.kind == "weak" else "--global-batch"
        return (
            *("train", "--data", self.data, "--model", self.model, batch, str(self.batch)),
            *("--threads", str(self.threads), "--steps", str(self.warm_up + self.steps)),
            *("--evaluate-every", "1000000", "--checkpoint-every", "1000000", "--no-tensorboard", "--step-times"),
            *(("--timeline", str(folder / "timeline.json")) if timeline else ()),
            *("--run-dir", str(folder)),
        )


def command(what: Scaling, size: int, hosts: HostList, folder: Path, interface: str | None, timeline=False) -> Command:
    """One job's command."""
    placement = place(hosts, size)
    look = site.look(placement.hosts, {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}, interface)
    words = (sys.executable, "-m", "hvd_mnist", *what.words(folder, timeline))
    return plan(
        Job(words, placement, launcher=what.launcher if size > 1 else "auto", backend=what.backend, ssh=Ssh()), look
    )


def run(
    what: Scaling, hosts: HostList, limit: float, say: Callable[[str], None], interface: str | None = None
) -> tuple[list[dict], dict[int, dict], bool]:
    """Measure.

    Args:
        limit: seconds for each job.
        say: gets a line before each job.

    Returns:
        A sample for each job (``sample``); size -> what a timeline says of one more job (``by_timeline``), where that
        was asked for; and whether all jobs were made (a Ctrl-C ends early).

    Raises:
        HvdMnistError: a job failed or ran past its limit; its last lines are said.
    """
    samples, timelines = [], {}
    with tempfile.TemporaryDirectory(prefix="hvd-mnist-scaling-") as temporary:
        folder = Path(temporary)

        def made(size, name, timeline=False):
            return _make(command(what, size, hosts, folder / name, interface, timeline), folder / name, limit, say)

        try:
            for repeat in range(what.repeats):
                for size in what.sizes[:: 1 if repeat % 2 == 0 else -1]:
                    say(f"repeat {repeat + 1} of {what.repeats}: {count(size, 'rank')}")
                    if not made(size, f"{size}-{repeat}"):
                        return samples, timelines, False
                    samples.append(sample(what, size, repeat, folder / f"{size}-{repeat}"))
            for size in [size for size in what.sizes if what.timeline and size > 1]:
                say(f"once more with a timeline: {count(size, 'rank')}")
                if not made(size, f"{size}-timeline", timeline=True):
                    return samples, timelines, False
                timelines[size] = by_timeline(folder / f"{size}-timeline" / "timeline.json")
        except KeyboardInterrupt:  # between two jobs
            return samples, timelines, False
    return samples, timelines, True


def _make(command: Command, folder: Path, limit: float, say: Callable[[str], None]) -> bool:
    """Run one job to its end, quietly; False where a signal stopped it."""
    from hvd_mnist.launch import run as launching

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return launching.run(command, log_dir=str(folder / "logs"), timeout=limit) == 0
    except HvdMnistError:
        for line in said.getvalue().splitlines()[-20:]:
            say(line)
        raise


def sample(what: Scaling, size: int, repeat: int, folder: Path) -> dict:
    """One job's figures, from its run folder.

    Raises:
        HvdMnistError: it is not on this machine.
    """
    if not (folder / "step-times.json").exists():
        raise HvdMnistError(
            f"rank 0 wrote {folder} on another host, where it cannot be read from here",
            "this machine first in -H, or TMPDIR on a file system that both have",
        )
    told = step_parts.read(folder / "step-times.json")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    steps = step_parts.parts([rank["steps"] for rank in told["ranks"]], what.warm_up)
    images = summary["global_batch"] * len(steps[0])
    seconds = sum(step["step"] for step in steps[0])
    return {
        "ranks": size,
        "repeat": repeat,
        "backend": summary["backend"],
        "hosts": len({rank["host"] for rank in told["ranks"]}),
        "steps": len(steps[0]),
        "global_batch": summary["global_batch"],
        "images_per_second": images / seconds,
        "cpu_ms_per_image": 1e3 * sum(step["cpu"] for rank in steps for step in rank) / images,
        "by_rank": step_parts.by_rank(steps, [rank["host"] for rank in told["ranks"]]),
    }


def by_timeline(path: Path) -> dict:
    """Median milliseconds of a step's communication, and of the part of it that was hidden, by Horovod's timeline."""
    from hvd_mnist.bench.timeline import summarize
    from hvd_mnist.runtime import timeline

    told = summarize(timeline.read(path)[0])
    if not told["steps"]:
        raise HvdMnistError(f"{path} holds no step")
    return {
        "communication_ms": told["phases_ms"]["communication"]["median"],
        "hidden_ms": told["hidden_ms"]["median"],
    }


def efficiency(samples: list[dict], size: int, figure: Callable[[dict], float]) -> dict | None:
    """Of ``size`` ranks against the smallest number that was measured, pair by pair of the same repeat.

    ``figure`` says what one rank gets done, of a sample: images a second and rank, or images a CPU second.
    """
    least = min(each["ranks"] for each in samples)
    base = {each["repeat"]: figure(each) for each in samples if each["ranks"] == least}
    return spread(
        figure(each) / base[each["repeat"]] for each in samples if each["ranks"] == size and each["repeat"] in base
    )


def summarize(what: Scaling, samples: list[dict], timelines: dict[int, dict], cores: int) -> dict:
    """Everything, as --json writes it: for each number of ranks, over the repeats.

    Args:
        cores: that one host has for the job; other hosts are taken to have as many.
    """
    rows = []
    for size in sorted({each["ranks"] for each in samples}):
        of = [each for each in samples if each["ranks"] == size]
        rows.append(
            {
                "ranks": size,
                "hosts": of[0]["hosts"],
                "global_batch": of[0]["global_batch"],
                "backend": of[0]["backend"],
                "images_per_second": spread(each["images_per_second"] for each in of),
                "efficiency": efficiency(samples, size, lambda each: each["images_per_second"] / each["ranks"]),
                "cpu_ms_per_image": spread(each["cpu_ms_per_image"] for each in of),
                "cpu_efficiency": efficiency(samples, size, lambda each: 1 / each["cpu_ms_per_image"]),
                "parts_ms": {
                    name: spread(statistics.fmean(rank["mean_ms"][name] for rank in each["by_rank"]) for each in of)
                    for name in (*step_parts.PARTS, "step")
                },
                "by_rank": [_rank([each["by_rank"][rank] for each in of]) for rank in range(size)],
                "timeline": timelines.get(size),
                "cores_shared": -(-size // of[0]["hosts"]) * what.threads > cores,
            }
        )  # fmt: skip
    return {"settings": asdict(what), "cores": cores, "rows": rows, "samples": samples}


def _rank(of: list[dict]) -> dict:
    """One rank over the repeats."""
    return {
        "rank": of[0]["rank"],
        "host": of[0]["host"],
        "own_ms": spread(each["own_ms"] for each in of),
        "factor": spread(each["factor"] for each in of),
        "cpu_ms": spread(each["cpu_ms"] for each in of),
        "mean_ms": {name: statistics.fmean(each["mean_ms"][name] for each in of) for name in of[0]["mean_ms"]},
    }
