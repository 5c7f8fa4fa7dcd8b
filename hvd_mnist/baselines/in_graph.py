"""In-graph replication: one client builds one graph; its towers are on the devices of other tasks.

    hvd-mnist baseline in-graph --workers 2 --epochs 1            two tasks on this machine, past 98 %

or, as in the old tutorials, a terminal for each task and one for the client:

    hvd-mnist baseline in-graph --job-name worker --task-index 0 --worker-hosts localhost:2223,localhost:2224
    hvd-mnist baseline in-graph --job-name worker --task-index 1 --worker-hosts localhost:2223,localhost:2224
    hvd-mnist baseline in-graph --job-name chief --chief-host localhost:2222 \
        --worker-hosts localhost:2223,localhost:2224 --epochs 1

The step is that of towers.py, word for word: only the names of the devices differ (``/job:worker/task:0`` instead of
``/device:CPU:1``). The client has the data and hands it out; a worker is a gRPC server that has no program of its own.
So everything crosses the client's network link: weights and batches out, gradients in, for every worker.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

from hvd_mnist.baselines import tasks
from hvd_mnist.baselines.course import Course, prepare, task_report, train_in_epochs
from hvd_mnist.baselines.towers import Timed, tower_seeds, tower_step
from hvd_mnist.config import TrainConfig
from hvd_mnist.console import count
from hvd_mnist.errors import LaunchError, PeerLost
from hvd_mnist.run_folder import default_name, write_json
from hvd_mnist.runtime import devices, traffic, world

HOME = "/job:chief/task:0/device:CPU:0"


def train(
    config: TrainConfig,
    cluster: dict[str, list[str]],
    knob_sources: dict[str, str] | None = None,
    *,
    started: tasks.Tasks | None = None,
) -> dict:
    """Be the client; the summary, as in RUN/summary.json.

    Args:
        cluster: {"chief": [address of this process], "worker": [addresses]}.
        started: the worker tasks, where this process started them; they are watched.

    Raises:
        LaunchError: a worker does not come up, or the chief's port is taken.
        PeerLost: a worker is lost.
    """
    limit = config.stall_timeout
    watch = started.check if started else lambda: None
    tasks.without_proxy(cluster)
    tasks.check_port("chief 0", cluster["chief"][0])
    tasks.wait_for(cluster, ["worker"], limit, watch)
    import tensorflow as tf

    threads = config.threads or devices.my_threads(1)
    devices.pin(0, 1, world.hostname(), threads)
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster), job_name="chief", task_index=0)
    places = worker_devices(len(cluster["worker"]))
    with tf.device(HOME):
        work = prepare(config, replicas=len(places))
        course = Course("in-graph", work, f"variables on {HOME}, towers on {', '.join(places)}", knob_sources)
        seeds = tower_seeds(work.model, config.seed, places, HOME)
        step = Timed(tower_step(work.model, work.optimizer, places, HOME, seeds))

    def lost() -> PeerLost:
        who = ", ".join(tasks.silent(cluster, ["worker"])) or "a worker"
        saved = f"--resume auto --run-dir {course.run}" if any(course.run.glob("checkpoints/step-*")) else None
        return PeerLost(f"{who} was lost at step {course.step}: the one client's graph cannot go on without it", saved)

    clock = tasks.Limit(limit, lost)

    def watched(x, y):
        try:
            with clock:
                return step(x, y)
        except tf.errors.OpError as error:
            if not isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError)):
                raise
            time.sleep(1.0)  # until a task that is ending no longer accepts connections
            raise lost() from None

    with tf.device(HOME):
        train_in_epochs(course, watched)
    course.console.say(step.text(count(len(places), "worker"), None))
    reports = [course.own_report("chief:0", threads=threads)]
    if started is not None:
        reports += collect_reports(started, 30.0)
    return course.finish(reports, towers=places, step_seconds=step.median())


def worker_devices(workers: int) -> list[str]:
    """One device on each worker: its first GPU, else its CPU."""
    import tensorflow as tf

    names = {device.name for device in tf.config.list_logical_devices()}
    found = []
    for index in range(workers):
        gpu = f"/job:worker/replica:0/task:{index}/device:GPU:0"
        found.append(gpu if gpu in names else f"/job:worker/replica:0/task:{index}/device:CPU:0")
    return found


def serve(cluster: dict[str, list[str]], index: int, threads: int | None, limit: float, report: Path | None) -> None:
    """Be worker ``index``: a gRPC server, until the client has not been heard for ``limit`` seconds.

    Args:
        report: file that, once it is asked for by ``report.ask``, gets what this task took.
    """
    address = cluster["worker"][index]
    tasks.without_proxy(cluster)
    tasks.check_port(f"worker {index}", address)
    import tensorflow as tf

    threads = threads or devices.my_threads(1)
    settings = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    try:
        server = tf.distribute.Server(tf.train.ClusterSpec(cluster), "worker", index, protocol="grpc", config=settings)
    except tf.errors.OpError as error:
        raise LaunchError(f"worker {index} cannot serve on {address}: {str(error).splitlines()[0]}") from None
    print(f"worker {index} serves at {address} ({server.target})", flush=True)
    before, cpu = traffic.counters(), time.process_time()
    heard, heard_at = before, time.monotonic()
    while True:
        time.sleep(0.2)
        now = traffic.counters()
        if now["sockets_received"] != heard["sockets_received"]:
            heard, heard_at = now, time.monotonic()
        if report is not None and report.with_suffix(".ask").exists():
            write_json(report, task_report(f"worker:{index}", index + 1, threads, cpu, before))
            report = None
        if time.monotonic() - heard_at > limit:
            raise PeerLost(f"worker {index} at {address} heard nothing for {limit:g} s: its client is gone")


def train_with_workers(config: TrainConfig, knob_sources, workers: int, hosts: list[str], chief: str | None) -> dict:
    """Start the workers, here or over ssh on ``hosts``, be their client, and end them.

    Args:
        chief: this machine's name for the hosts; None where all is on this machine.
    """
    threads = config.threads or max(1, devices.my_threads(1) // (1 if hosts else workers))
    run = Path(config.run_dir or default_name(f"{config.data}-in-graph", config.model)).absolute()
    cluster = tasks.place({"chief": 1, "worker": workers}, hosts, {"chief": chief})
    with tasks.Tasks(run / "logs") as started:
        for index, address in enumerate(cluster["worker"]):
            words = ["baseline", "in-graph", "--job-name", "worker", "--task-index", str(index)]
            words += ["--worker-hosts", ",".join(cluster["worker"]), "--threads", str(threads)]
            words += ["--stall-timeout", str(config.stall_timeout), "--report", str(report_path(started, index))]
            started.start("worker", index, words, address.rpartition(":")[0] if hosts else None)
        config = dataclasses.replace(config, run_dir=str(run), threads=threads)
        return train(config, cluster, knob_sources, started=started)


def report_path(started: tasks.Tasks, index: int) -> Path:
    return started.logs / f"worker-{index}.json"


def collect_reports(started: tasks.Tasks, limit: float) -> list[dict]:
    """What each started worker took; one that says nothing in ``limit`` seconds is left out."""
    paths = [report_path(started, task.index) for task in started.all]
    for path in paths:
        path.with_suffix(".ask").touch()
    until, found = time.monotonic() + limit, []
    for path in paths:
        while time.monotonic() < until and not (path.exists() and path.stat().st_size):
            time.sleep(0.05)
        if path.exists():
            found.append(json.loads(path.read_text(encoding="utf-8")))
        path.unlink(missing_ok=True)
        path.with_suffix(".ask").unlink(missing_ok=True)
    return found
