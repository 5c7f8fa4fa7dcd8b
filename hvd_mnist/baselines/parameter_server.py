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

LOOK_SECONDS = 0.2  # between a ps task's looks at its orders
GRACE_SECONDS = 10.0  # beyond a call's own limit, which TensorFlow does not always keep
LINGER_SECONDS = 40.0  # after a worker's last words, for those of all others

# ---- A ps task


def serve(cluster: dict[str, list[str]], index: int, threads: int | None, limit: float) -> None:
    """Be ps ``index`` until the chief says that the job is over.

    Raises:
        LaunchError: the port is taken, or ps 0, to which all report, does not come up.
        PeerLost: nothing was heard for ``limit`` seconds.
    """
    import tensorflow as tf

    v1, address = tf.compat.v1, cluster["ps"][index]
    server = start_server(cluster, "ps", index, threads or 1)
    tasks.wait_for({"ps": cluster["ps"][:1]}, ["ps"], limit)
    before, cpu = traffic.counters(), time.process_time()
    heard, heard_at, reported = 0, time.monotonic(), False
    from hvd_mnist.baselines.ps_graph import orders_queue, reports_queue

    with tf.Graph().as_default():
        # Looked at, not waited for: a first run that is cancelled before it has begun never returns (TF 2.21).
        orders = orders_queue(index)
        waiting, order = orders.size(), orders.dequeue()
        text = v1.placeholder(tf.string, ())
        report = reports_queue().enqueue(text)
        clock = tasks.Limit(limit, lambda: PeerLost(f"ps {index} at {address}: TensorFlow does not answer"))
        near = v1.ConfigProto(device_filters=["/job:ps/task:0", f"/job:ps/task:{index}"])
        with v1.Session(server.target, config=near) as session:
            while True:
                with clock:
                    said = session.run(order) if session.run(waiting) else b""
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
                time.sleep(LOOK_SECONDS)


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

        from hvd_mnist.baselines.ps_graph import build_graph
        from hvd_mnist.training_callbacks import dropout_streams_of

        self.work, self.cluster, self.index, self.mode, self.threads = work, cluster, index, mode, threads
        self.limit, self.saved, self.step = work.config.stall_timeout, lambda: None, 0
        self.clock = tasks.Limit(self.limit + GRACE_SECONDS, lambda: self.gone("TensorFlow does not answer"))
        shapes = [tuple(variable.shape) for variable in work.model.trainable_variables]
        self.shards = place_shards(shapes, len(cluster["ps"]), mode.placement, mode.largest)
        dropout_streams_of(work.model, work.config.seed, index)
        self.seeds = [np.asarray(variable) for variable in work.model.non_trainable_variables]
        workers = len(cluster["worker"])
        self.g = build_graph(work, self.seeds, self.shards, len(cluster["ps"]), workers, index, workers - mode.backup)
        self.server = server
        self.connect()
        self.stale: list[int] = []
        self.cpu, self.traffic = time.process_time(), traffic.counters()

    def connect(self) -> None:
        """A session of this worker's own, with all ps tasks."""
        import tensorflow as tf

        v1 = tf.compat.v1
        settings = v1.ConfigProto(
            device_filters=["/job:ps", f"/job:worker/task:{self.index}"],  # another worker's death is not ours
            allow_soft_placement=True,
            intra_op_parallelism_threads=self.threads,
            inter_op_parallelism_threads=max(2, self.threads),
        )
        self.session = v1.Session(self.server.target, graph=self.g.graph, config=settings)

    def run(self, what, feed=None, limit: float | None = None, *, twice: bool = False):
        """Session.run within a limit.

        Args:
            twice: it does no harm when done twice: at the start, where a connection may fail that the next one
                gets, it is tried again, in a new session, while all ps tasks accept connections.

        Raises:
            PeerLost: it took too long, or a task is gone.
            TimeoutError: ``limit`` was given and is over.
        """
        import tensorflow as tf

        options = tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * (limit or self.limit)))
        until = time.monotonic() + self.limit
        while True:
            try:
                with self.clock:
                    return self.session.run(what, feed, options=options)
            except tf.errors.DeadlineExceededError:
                if limit:
                    raise TimeoutError from None
                raise self.lost("") from None
            except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError) as error:
                if not twice or time.monotonic() > until or tasks.silent(self.cluster, ["ps"]):
                    raise self.lost(str(error)) from None
            time.sleep(0.5)
            self.connect()  # a session keeps the failure of its first run for ever; the variables are the ps tasks'

    def lost(self, said: str) -> PeerLost:
        """The error for a wait in vain or a broken connection: it names the task, and what TensorFlow said."""
        time.sleep(1.0)  # until a task that is ending no longer accepts connections
        because = re.search(r"From /job:\S+:\n(.+)", said)
        words = because[1] if because else said.removeprefix("Graph execution error:").strip().partition("\n")[0]
        if tasks.silent(self.cluster, ["ps"]):
            return self.gone(words)
        if named := re.search(r"/job:ps/replica:0/task:(\d+)", said):
            address = self.cluster["ps"][int(named[1])]
            broken = f"the connection to ps {named[1]} at {address} broke at step {self.step} ({words[:150]})"
            return PeerLost(f"{broken}: it accepts connections, but what it holds may not be whole", self.saved())
        if said:
            return PeerLost(f"a ps task has lost its variables: {words[:150]}", self.saved())
        return PeerLost(f"{self.behind()} at step {self.step}: nothing moved for {self.limit:g} s", self.saved())

    def gone(self, words: str) -> PeerLost:
        """The error that names the ps tasks which accept no connection."""
        who = ", ".join(tasks.silent(self.cluster, ["ps"])) or "a ps task"
        because = f" ({words[:150]})" if words else ""
        return PeerLost(f"{who} was lost at step {self.step}{because}, and its variables with it", self.saved())

    def meet(self) -> None:
        """Open every connection that an update needs, by a sum that goes over each of them."""
        self.run(self.g.met, {self.g.number: 1}, twice=True)

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

    me.meet()
    until = time.monotonic() + me.limit
    while not me.run(me.g.step_ready, twice=True):
        if time.monotonic() > until:
            raise PeerLost(
                f"the chief, worker 0 at {me.cluster['worker'][0]}, did not fill the variables in {me.limit:g} s"
            )
        time.sleep(0.1)
    me.step = int(me.run(me.g.step, twice=True))
    me.run(me.g.beat, {me.g.number: 0}, twice=True)
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
