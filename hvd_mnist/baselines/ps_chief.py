"""Worker 0 of a parameter-server job: the chief. It computes as the others do, and keeps the books besides."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from hvd_mnist.baselines.course import Course
from hvd_mnist.baselines.shards import bytes_by_ps
from hvd_mnist.console import count

if TYPE_CHECKING:
    from hvd_mnist.baselines.parameter_server import Worker

REPORT_SECONDS = 15.0  # that the others have for their last words
START_SECONDS = 60.0  # that an asynchronous job waits for workers that are not there yet


def chief(me: Worker, knob_sources) -> None:
    """Worker 0: fill the variables, compute as the others do, update (synchronous), evaluate, save, collect, end."""
    from hvd_mnist.baselines.ps_graph import STOP

    g, work, mode = me.g, me.work, me.mode
    ps, workers = len(me.cluster["ps"]), len(me.cluster["worker"])
    where = f"{count(workers, 'worker')}, {ps} ps, {len(me.shards)} shards {mode.placement}"
    kind = "sync" if mode.synchronous else "async"
    course = Course(f"parameter-server ({kind})", work, where, knob_sources, refresh=lambda: pull(me))
    held = ", ".join(
        f"ps {task}: {size:,} bytes".replace(",", " ") for task, size in enumerate(bytes_by_ps(me.shards, ps))
    )
    course.console.say(f"variables: {held}")

    def saved() -> str:
        newest = sorted(course.run.glob("checkpoints/step-*"))
        if not newest:
            return "nothing was saved yet: start again; --checkpoint-every saves more often"
        return f"--resume auto --run-dir {course.run} goes on from {newest[-1].name}"

    me.saved = saved
    me.meet()
    push_all(me)
    me.run(g.start_beats, twice=True)
    me.step = course.done
    me.run(g.set_step, {g.number: me.step}, twice=True)
    if mode.synchronous:
        me.run(g.hand_out, {g.number: me.step})
    else:
        me.run(g.beat, {g.number: 0})
        wait_for_workers(me, course)
    course.begin_epoch(me.step // work.per_epoch)
    course.console.start_progress(work.total, me.step)
    steps = 0
    for x, y in me.rounds(me.step) if me.step < work.total else ():
        steps += 1
        loss, accuracy, _ = me.step_on(x, y, steps)
        if mode.synchronous:
            me.step = int(me.run(g.update))
            if me.step < work.total:
                me.run(g.hand_out, {g.number: me.step})
        course.made(me.step, float(loss), float(accuracy))
        if me.step >= work.total:
            break
        if me.step // work.per_epoch > course.epoch:
            if course.end_epoch():
                break
            course.begin_epoch(me.step // work.per_epoch)
    course.console.stop_progress()
    me.run(g.stop)
    if mode.synchronous:
        me.run(g.hand_out, {g.number: STOP})
    reports = {"worker:0": me.report(steps)}
    reports |= collect(me, workers - 1)
    for task in range(ps):
        me.run(g.order[task], {g.text: "report"})
    reports |= collect(me, ps)
    me.run(g.let_go)
    if steps and not course.reached:
        course.step = me.step = int(me.run(g.step))  # others' last updates may have come meanwhile
        course.end_epoch()
    for task in reversed(range(ps)):
        dismiss(me, task)
    names = [*(f"ps:{task}" for task in range(ps)), *(f"worker:{worker}" for worker in range(workers))]
    told = [reports[name] | {"rank": rank} for rank, name in enumerate(names) if name in reports]
    silent = [name for name in names if name not in reports]
    if silent:
        course.console.say(f"without a report: {', '.join(silent)}")
    stale = {task["task"]: task["staleness"] for task in told if task.get("staleness")}
    for name, found in stale.items():
        course.console.say(
            f"{name}: gradients were {found['mean']} updates old in the mean, at most {found['largest']}"
        )
    course.finish(told, mode=kind, staleness=stale or None, ps_bytes=bytes_by_ps(me.shards, ps), without_report=silent)


def wait_for_workers(me: Worker, course: Course) -> None:
    """Until all workers are there, so that they begin together; an asynchronous job goes on without one that is not."""
    until = time.monotonic() + START_SECONDS
    while missing := [str(worker) for worker, beat in enumerate(me.run(me.g.beats)) if beat < 0]:
        if time.monotonic() > until:
            course.console.say(f"not there after {START_SECONDS:g} s: worker {', '.join(missing)}; beginning without")
            return
        time.sleep(0.2)


def push_all(me: Worker) -> None:
    """Fill the ps tasks with the model's and the optimizer's values."""
    import numpy as np

    from hvd_mnist.baselines.ps_graph import slot_variables

    values = [me.work.model.trainable_variables, *slot_variables(me.work.optimizer)]
    cut = [np.asarray(group[s.variable])[s.first : s.stop] if s.shape else np.asarray(group[s.variable])
           for group in values for s in me.shards]  # fmt: skip
    feed = dict(zip([*me.g.places, me.g.number], [*cut, int(me.work.optimizer.iterations)], strict=True))
    me.run(me.g.fill, feed, twice=True)


def pull(me: Worker) -> None:
    """Bring the chief's Keras model and optimizer up to what the ps tasks hold."""
    import numpy as np

    from hvd_mnist.baselines.ps_graph import slot_variables

    found = iter(me.run(me.g.read))
    for group in (me.work.model.trainable_variables, *slot_variables(me.work.optimizer)):
        parts: dict[int, list] = {}
        for shard in me.shards:
            parts.setdefault(shard.variable, []).append(next(found))
        for number, variable in enumerate(group):
            mine = parts[number]
            variable.assign(mine[0] if len(mine) == 1 else np.concatenate(mine))
    me.work.optimizer.iterations.assign(me.step)


def collect(me: Worker, number: int) -> dict[str, dict]:
    """The reports of ``number`` tasks, by task; fewer where some say nothing within REPORT_SECONDS."""
    found, until = {}, time.monotonic() + REPORT_SECONDS
    while len(found) < number and time.monotonic() < until:
        try:
            report = json.loads(me.run(me.g.reports, limit=1.0))
            found[report["task"]] = report
        except TimeoutError:
            continue
    return found


def dismiss(me: Worker, task: int) -> None:
    """Let a ps task go; that it is gone before it has answered is no failure."""
    import tensorflow as tf

    try:
        me.session.run(me.g.order[task], {me.g.text: "leave"}, tf.compat.v1.RunOptions(timeout_in_ms=5000))
    except tf.errors.OpError:
        pass
