"""Parameter servers: the variables live in ps tasks; every worker runs the same graph on its own share of the data.

    hvd-mnist baseline parameter-server --sync --workers 2 --epochs 1        past 98 %, all tasks on this machine
    hvd-mnist baseline parameter-server --async --ps 2 --workers 3 --epochs 1

or, as in the old tutorials, a terminal for each task, with the same two lists in each (and the same settings):

    hvd-mnist baseline parameter-server --job-name ps     --task-index 0 --ps-hosts H:2222 --worker-hosts H:2223,H:2224
    hvd-mnist baseline parameter-server --job-name worker --task-index 0 --ps-hosts H:2222 --worker-hosts H:2223,H:2224
    hvd-mnist baseline parameter-server --job-name worker --task-index 1 --ps-hosts H:2222 --worker-hosts H:2223,H:2224

A worker pulls the weights, computes the gradients of its batch and pushes them; the ps tasks update.
Synchronous: the ps tasks wait for the gradients of N workers, take the mean, update once, and let the workers go on.
Asynchronous: each worker's gradients are applied when they come, to weights that others may have changed meanwhile.

Worker 0 is the chief: it also fills the variables, has them updated, evaluates, and writes the run folder
(ps_chief.py). The graph is in ps_graph.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time

from hvd_mnist.baselines import tasks
from hvd_mnist.baselines.course import Work, prepare, task_report
from hvd_mnist.baselines.ps_mode import Mode
from hvd_mnist.baselines.shards import place_shards
from hvd_mnist.config import TrainConfig
from hvd_mnist.errors import LaunchError, PeerLost
from hvd_mnist.runtime import devices, traffic, world

LINGER_SECONDS = 40.0  # after a worker's last words, for those of all others

# ---- A ps task


def serve(cluster: dict[str, list[str]], index: int, threads: int | None, limit: float) -> None:
    """Be ps ``index`` until the chief says that the job is over.

    Raises:
        LaunchError: the port is taken.
        PeerLost: nothing was heard for ``limit`` seconds.
    """
    import tensorflow as tf

    v1, address = tf.compat.v1, cluster["ps"][index]
    server = start_server(cluster, "ps", index, threads or 1)
    before, cpu = traffic.counters(), time.process_time()
    heard, heard_at, reported = 0, time.monotonic(), False
    from hvd_mnist.baselines.ps_graph import orders_queue, reports_queue

    with tf.Graph().as_default():
        order = orders_queue(index).dequeue()
        text = v1.placeholder(tf.string, ())
        report = reports_queue().enqueue(text)
        near = v1.ConfigProto(device_filters=["/job:ps/task:0", f"/job:ps/task:{index}"])
        with v1.Session(server.target, config=near) as session:
            while True:
                try:
                    said = session.run(order, options=v1.RunOptions(timeout_in_ms=1000))
                except tf.errors.DeadlineExceededError:
                    said = b""
                if said == b"report" and not reported:
                    words = json.dumps(task_report(f"ps:{index}", index, threads or 1, cpu, before))
                    session.run(report, {text: words}, options=v1.RunOptions(timeout_in_ms=5000))
                    reported = True
                if said == b"leave":
                    time.sleep(0.5)  # until the chief has its answer
                    return
                now = traffic.counters()["sockets_received"]
                if now != heard:
                    heard, heard_at = now, time.monotonic()
                if time.monotonic() - heard_at > limit:
                    raise PeerLost(f"ps {index} at {address} heard nothing for {limit:g} s: the workers are gone")


def start_server(cluster: dict[str, list[str]], job: str, index: int, threads: int):
    """TensorFlow's gRPC server for one task."""
    import tensorflow as tf

    tasks.without_proxy(cluster)
    tasks.check_port(f"{job} {index}", cluster[job][index])
    settings = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=max(2, threads)
    )
    settings.gpu_options.allow_growth = True
    try:
        server = tf.distribute.Server(tf.train.ClusterSpec(cluster), job, index, protocol="grpc", config=settings)
    except tf.errors.OpError as error:
        said = str(error).splitlines()[0]
        raise LaunchError(f"{job} {index} cannot serve on {cluster[job][index]}: {said}") from None
    print(f"{job} {index} serves at {cluster[job][index]}", flush=True)
    return server


# ---- A worker


def work_on(config: TrainConfig, cluster: dict[str, list[str]], index: int, mode: Mode, knob_sources=None) -> None:
    """Be worker ``index``; worker 0 is the chief.

    Raises:
        LaunchError: a port is taken, or a ps task does not come up.
        PeerLost: a ps task is lost, or a synchronous update waits in vain for gradients.
    """
    workers = len(cluster["worker"])
    mode.check(workers)
    threads = config.threads or devices.my_threads(1)
    devices.pin(0, 1, world.hostname(), threads)
    server = start_server(cluster, "worker", index, threads)
    tasks.wait_for(cluster, ["ps"], config.stall_timeout)
    work = prepare(config, workers, asynchronous=not mode.synchronous)
    member = Worker(work, cluster, index, mode, server, threads)
    if index == 0:
        from hvd_mnist.baselines.ps_chief import chief

        chief(member, knob_sources)
    else:
        follow(member)


class Worker:
    """One worker's session on the graph, with a limit on every wait and a clear word for every loss."""

    def __init__(self, work: Work, cluster, index: int, mode: Mode, server, threads: int):
        import numpy as np
        import tensorflow as tf

        from hvd_mnist.baselines.ps_graph import build_graph
        from hvd_mnist.training_callbacks import dropout_streams_of

        self.work, self.cluster, self.index, self.mode, self.threads = work, cluster, index, mode, threads
        self.limit, self.saved, self.step = work.config.stall_timeout, lambda: None, 0
        shapes = [tuple(variable.shape) for variable in work.model.trainable_variables]
        self.shards = place_shards(shapes, len(cluster["ps"]), mode.placement, mode.largest)
        dropout_streams_of(work.model, work.config.seed, index)
        self.seeds = [np.asarray(variable) for variable in work.model.non_trainable_variables]
        workers = len(cluster["worker"])
        self.g = build_graph(work, self.seeds, self.shards, len(cluster["ps"]), workers, index, workers - mode.backup)
        v1 = tf.compat.v1
        settings = v1.ConfigProto(
            device_filters=["/job:ps", f"/job:worker/task:{index}"],  # another worker's death is not ours
            allow_soft_placement=True,
            intra_op_parallelism_threads=threads,
            inter_op_parallelism_threads=max(2, threads),
        )
        self.session = v1.Session(server.target, graph=self.g.graph, config=settings)
        self.stale: list[int] = []
        self.cpu, self.traffic = time.process_time(), traffic.counters()

    def run(self, what, feed=None, limit: float | None = None):
        """Session.run within a limit.

        Raises:
            PeerLost: it took too long, or a task is gone.
            TimeoutError: ``limit`` was given and is over.
        """
        import tensorflow as tf

        options = tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * (limit or self.limit)))
        try:
            return self.session.run(what, feed, options=options)
        except tf.errors.DeadlineExceededError:
            if limit:
                raise TimeoutError from None
            raise self.lost("") from None
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError) as error:
            raise self.lost(str(error)) from None

    def lost(self, said: str) -> PeerLost:
        """The error for a wait in vain or a broken connection: it names the task."""
        time.sleep(1.0)  # until a task that is ending no longer accepts connections
        named = re.search(r"/job:ps/replica:0/task:(\d+)", said)
        gone = tasks.silent(self.cluster, ["ps"])
        if not gone and named:
            gone = [f"ps {named[1]} at {self.cluster['ps'][int(named[1])]}"]
        if gone:
            return PeerLost(f"{', '.join(gone)} was lost at step {self.step}, and its variables with it", self.saved())
        if said:
            return PeerLost(f"a ps task has lost its variables: {said.splitlines()[0][:150]}", self.saved())
        return PeerLost(f"{self.behind()} at step {self.step}: nothing moved for {self.limit:g} s", self.saved())

    def behind(self) -> str:
        """The workers whose gradients a synchronous update still waits for."""
        if not self.mode.synchronous:
            return "the ps tasks do not answer"
        try:
            beats = list(self.run(self.g.beats, limit=5))
        except (TimeoutError, PeerLost):
            return "the ps tasks do not answer"
        missing = [str(worker) for worker, beat in enumerate(beats) if beat < max(beats)]
        return f"no gradients from worker {', '.join(missing)}" if missing else "the chief does not go on"

    def rounds(self, done: int):
        """This worker's batches for ever, from its part of update ``done`` on."""
        work, workers = self.work, len(self.cluster["worker"])
        per_epoch = work.per_epoch if self.mode.synchronous else work.per_epoch // workers
        first = done if self.mode.synchronous else done // workers
        for epoch in itertools.count(first // per_epoch):
            start = max(first - epoch * per_epoch, 0)
            yield from work.batches(epoch, start, per_epoch - start, self.index, workers)

    def step_on(self, x, y, number: int) -> tuple[float, float, int]:
        """Compute one batch's gradients and hand them in: (loss, accuracy, updates made by anybody so far)."""
        if self.mode.slow and self.mode.slow[0] == self.index:
            time.sleep(self.mode.slow[1])
        g = self.g
        feed = dict(zip([g.x, g.y, *g.seeds], [x.numpy(), y.numpy(), *self.seeds], strict=True))
        if self.mode.synchronous:
            feed |= {g.local_step: self.step, g.number: self.step + 1}
            loss, accuracy, self.seeds, _ = self.run([g.loss, g.accuracy, g.moved, g.push], feed)
            return loss, accuracy, self.step
        feed[g.number] = number
        loss, accuracy, self.seeds, (read, made) = self.run([g.loss, g.accuracy, g.moved, g.train], feed)
        self.stale.append(max(0, int(made) - 1 - int(read)))
        self.step = int(made)
        return loss, accuracy, self.step

    def report(self, steps: int) -> dict:
        entry = task_report(f"worker:{self.index}", self.index, self.threads, self.cpu, self.traffic)
        return entry | {"steps": steps, "staleness": staleness(self.stale)}


def staleness(updates: list[int]) -> dict | None:
    """Of each gradient: how many updates others had made between its weights' reading and its own update."""
    if not updates:
        return None
    ordered = sorted(updates)
    return {
        "mean": round(sum(ordered) / len(ordered), 3),
        "median": ordered[len(ordered) // 2],
        "largest": ordered[-1],
        "n": len(ordered),
    }


def follow(me: Worker) -> None:
    """A worker that is not the chief."""
    from hvd_mnist.baselines.ps_graph import STOP

    until = time.monotonic() + me.limit
    while not me.run(me.g.step_ready):
        if time.monotonic() > until:
            raise PeerLost(
                f"the chief, worker 0 at {me.cluster['worker'][0]}, did not fill the variables in {me.limit:g} s"
            )
        time.sleep(0.1)
    me.step = int(me.run(me.g.step))
    me.run(me.g.beat, {me.g.number: 0})
    steps = 0
    for steps, (x, y) in enumerate(me.rounds(me.step)):
        if me.mode.synchronous:
            token = int(me.run(me.g.token))
            while me.mode.backup and token != STOP and me.run(me.g.tokens_left):
                token = int(me.run(me.g.token))  # a backup that fell behind goes on with the newest step
            if token == STOP:
                break
            me.step = token
        elif me.step >= me.work.total or me.run(me.g.stopped):
            break
        me.step_on(x, y, steps + 1)
    me.run(me.g.report, {me.g.text: json.dumps(me.report(steps))})
    # The ps tasks count the bytes of the connections that are open: ours stays until they have.
    with contextlib.suppress(TimeoutError, PeerLost):
        me.run(me.g.may_go, limit=LINGER_SECONDS)
