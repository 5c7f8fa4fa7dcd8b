"""Start every task of a parameter-server job, here or over ssh, see it to its end, and leave nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import time
from pathlib import Path

from hvd_mnist.baselines import KNOBS, tasks
from hvd_mnist.baselines.ps_mode import Mode
from hvd_mnist.config import TrainConfig
from hvd_mnist.errors import PeerLost, RankFailed
from hvd_mnist.run_folder import default_name
from hvd_mnist.runtime import devices

CHIEF_SECONDS = 20.0  # that the chief has to say what a lost ps means, and what to go on from


def train(config: TrainConfig, mode: Mode, ps: int, workers: int, hosts: list[str]) -> int:
    """Run the job; the chief writes to this terminal, the others to RUN/logs/<job>-<index>.log.

    Args:
        hosts: names for ssh, used in turn, ps tasks first; empty: all on this machine.

    Returns:
        the chief's exit status.

    Raises:
        RankFailed, PeerLost: a task ended that the job cannot do without.
    """
    run = Path(config.run_dir or default_name(f"{config.data}-parameter-server", config.model)).absolute()
    threads = config.threads or max(1, devices.my_threads(1) // (1 if hosts else workers))
    config = dataclasses.replace(config, run_dir=str(run), threads=threads)
    cluster = tasks.place({"ps": ps, "worker": workers}, hosts, {})
    lists = [word for job, addresses in cluster.items() for word in (f"--{job}-hosts", ",".join(addresses))]
    settings = [*mode.words(), *lists, *tasks.knob_words(config, KNOBS)]
    with tasks.Tasks(run / "logs") as started:
        for job, addresses in cluster.items():
            for index, address in enumerate(addresses):
                words = ["baseline", "parameter-server", "--job-name", job, "--task-index", str(index), *settings]
                host = address.rpartition(":")[0] if hosts else None
                started.start(job, index, words, host, aloud=job == "worker" and index == 0)
        chief = next(task for task in started.all if task.name == "worker 0")
        return watch(started, chief, mode, run)


def watch(started: tasks.Tasks, chief: tasks.Task, mode: Mode, run: Path) -> int:
    """Until the chief ends, or a task that it cannot do without."""
    dead = 0
    while True:
        for task in started.gone():
            status = task.process.returncode
            if task is chief:
                return status if status >= 0 else 128 - status
            if status == 0:
                continue
            if task.job == "ps":
                return _without_ps(task, chief)
            dead += 1
            if mode.synchronous and dead > mode.backup and 0 < status < 128:  # its own words are the cause
                raise RankFailed(f"{task.name}: {task.ending()}", None, status)
            if mode.synchronous and dead > mode.backup:
                raise PeerLost(
                    f"{task.name} {task.ending()}: a synchronous update waits for its gradients",
                    f"--resume auto --run-dir {run}, or --backup-workers {dead}, or --async",
                )
            print(f"hvd-mnist: {task.name} {task.ending()}; the others go on without it", file=sys.stderr, flush=True)
        time.sleep(0.1)


def _without_ps(task: tasks.Task, chief: tasks.Task) -> int:
    """The chief says which checkpoint there is; where it does not, we say what we know."""
    status = task.process.returncode
    if 0 < status < 128:  # it could not start: its own words are the cause
        raise RankFailed(f"{task.name}: {task.ending()}", None, status)
    print(f"hvd-mnist: {task.name} {task.ending()}", file=sys.stderr, flush=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        chief.process.wait(CHIEF_SECONDS)
    if chief.process.returncode:
        return chief.process.returncode if chief.process.returncode > 0 else 128 - chief.process.returncode
    raise PeerLost(f"{task.name} {task.ending()}, and its variables with it")
