"""The graph that every worker of a parameter-server job builds: between-graph replication.

Each worker builds the same graph. What is placed on ``/job:ps`` and has the same name is the same variable, queue or
accumulator for all of them; what is placed on the worker's own device is its own. The engine is TensorFlow's: gRPC
servers, sessions, resource variables, accumulators, queues.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvd_mnist.baselines.course import Work
from hvd_mnist.baselines.shards import Shard
from hvd_mnist.baselines.single import hits, mean_loss

STOP = -1  # the token that ends a worker


@dataclass
class PsGraph:
    """One worker's graph.

    Attributes:
        x, y, seeds, local_step: placeholders; ``seeds`` are the model's variables that are not trained.
        loss, accuracy: scalars of the batch. moved: the new ``seeds``.
        read: the variables' parts and, in the same order for each slot, the optimizer's; ``fill``: assigns them.
        met: a sum that goes from the worker to every ps task, between ps 0 and each, and back.
        push: synchronous: this worker's gradients go to the accumulators.
        update: synchronous, for the chief: wait for the gradients, update, hand out tokens; gives the new step.
        train: asynchronous: (step read beside the weights, step after the update).
        beats: of every worker, its steps so far, -1 before it is there; ``beat`` sets this worker's to ``number``.
        token, tokens_left: this worker's next token, and how many more there are.
        orders, report, reports, let_go, may_go: the end of a job; see parameter_server.py.
    """

    graph: object
    x: object
    y: object
    seeds: list
    local_step: object
    loss: object
    accuracy: object
    moved: list
    step: object
    step_ready: object
    set_step: object
    number: object
    met: object
    read: list
    places: list
    fill: object
    push: object
    update: object
    hand_out: object
    train: object
    token: object
    tokens_left: object
    stopped: object
    stop: object
    beats: object
    beat: object
    start_beats: object
    text: object
    order: list
    report: object
    reports: object
    let_go: object
    may_go: object


def ps_device(task: int) -> str:
    return f"/job:ps/task:{task}/device:CPU:0"


def build_graph(work: Work, seeds: list, shards: list[Shard], ps: int, workers: int, index: int, aggregate: int):
    """The graph of worker ``index``.

    Args:
        seeds: first values of the model's variables that are not trained.
        aggregate: gradients in a synchronous update; fewer than ``workers`` makes the others backups.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    slots = slot_names(work.optimizer)
    own = f"/job:worker/task:{index}"
    graph = tf.Graph()
    with graph.as_default():
        with tf.device(ps_device(0)):
            step = v1.get_variable("global_step", (), tf.int64, v1.zeros_initializer(), use_resource=True)
            stopped = v1.get_variable("stopped", (), tf.bool, v1.zeros_initializer(), use_resource=True)
            beats = v1.get_variable("beats", (workers,), tf.int64, v1.constant_initializer(-1), use_resource=True)
            number = v1.placeholder(tf.int64, ())
            queues = [
                v1.FIFOQueue(-1, tf.int64, ((),), shared_name=f"tokens_{worker}", name=f"tokens_{worker}")
                for worker in range(workers)
            ]
            reports = v1.FIFOQueue(-1, tf.string, ((),), shared_name="reports", name="reports")
            gate = v1.FIFOQueue(-1, tf.int64, ((),), shared_name="gate", name="gate")
            now = step.read_value()
            rate = work.plan.to_keras()(now)
        text = v1.placeholder(tf.string, ())
        orders = [orders_queue(task) for task in range(ps)]

        parts, state = [], {slot: [] for slot in slots}
        for shard in shards:
            name = f"variable_{shard.variable}/rows_{shard.first}_{shard.stop}"
            with tf.device(ps_device(shard.ps)), v1.variable_scope(name):
                kind = {"shape": shard.shape, "initializer": v1.zeros_initializer(), "use_resource": True}
                parts.append(v1.get_variable("value", **kind))
                for slot in slots:
                    state[slot].append(v1.get_variable(slot, **kind))
        kept = [*parts, *(variable for slot in slots for variable in state[slot])]
        places = []
        fills = []
        for variable in kept:
            with tf.device(variable.device):
                places.append(v1.placeholder(tf.float32, variable.shape))
                fills.append(variable.assign(places[-1], read_value=False))

        pulled = []
        for shard, part in zip(shards, parts, strict=True):
            with tf.device(ps_device(shard.ps)):
                pulled.append(part.read_value())
        with tf.device(own):
            shape = (None, *work.model.input_shape[1:])
            x, y = v1.placeholder(tf.float32, shape), v1.placeholder(tf.int64, (None,))
            given = [v1.placeholder(tf.as_dtype(seed.dtype), seed.shape) for seed in seeds]
            logits, moved = work.model.stateless_call(whole(pulled, shards), given, x, training=True)
            loss = mean_loss(logits, y)
            gradients = tf.gradients(loss, pulled)
            accuracy = hits(logits, y)

        def applied(values):
            """One update at the ps tasks, with the gradients ``values``."""
            made = []
            for place, shard in enumerate(shards):
                with tf.device(ps_device(shard.ps)):
                    mine = [state[slot][place] for slot in slots]
                    made.append(apply_gradient(work.optimizer, parts[place], mine, values[place], rate, now))
            return made

        with tf.device(own):
            here = number * number
        there = []
        for task in range(ps):
            with tf.device(ps_device(task)):
                there.append(here + number)
        with tf.device(ps_device(0)):
            met = tf.add_n(there)
            beat = beats.scatter_update(tf.IndexedSlices(number, tf.constant(index)))
        # Asynchronous: the gradients go straight into the update.
        with tf.control_dependencies([*applied(gradients), beat]), tf.device(ps_device(0)):
            train = (now, step.assign_add(1, read_value=True))

        # Synchronous: they are gathered first; what comes late, for a step that is over, is dropped.
        local_step = v1.placeholder(tf.int64, ())
        pushes, means = [beat], []
        for shard, gradient in zip(shards, gradients, strict=True):
            with tf.device(ps_device(shard.ps)):
                name = f"gathered_{shard.variable}_{shard.first}"
                gathered = v1.ConditionalAccumulator(tf.float32, shape=shard.shape, shared_name=name, name=name)
                pushes.append(gathered.apply_grad(gradient, local_step))
                means.append(gathered.take_grad(aggregate))
                fills.append(gathered.set_global_step(number))
        with tf.control_dependencies(applied(means)), tf.device(ps_device(0)):
            update = step.assign_add(1, read_value=True)
        with tf.device(ps_device(0)):
            return PsGraph(
                graph=graph,
                x=x,
                y=y,
                seeds=given,
                local_step=local_step,
                loss=loss,
                accuracy=accuracy,
                moved=moved,
                step=step.read_value(),
                step_ready=tf.raw_ops.VarIsInitializedOp(resource=step.handle),
                set_step=step.assign(number, read_value=False),
                number=number,
                met=met,
                read=[variable.read_value() for variable in kept],
                places=places,
                fill=tf.group(*fills),
                push=tf.group(*pushes),
                update=update,
                hand_out=tf.group(*(queue.enqueue(number) for queue in queues[1:])),
                train=train,
                token=queues[index].dequeue(),
                tokens_left=queues[index].size(),
                stopped=stopped.read_value(),
                stop=stopped.assign(True, read_value=False),
                beats=beats.read_value(),
                beat=beat,
                start_beats=tf.group(beats.initializer, stopped.initializer),
                text=text,
                order=[queue.enqueue(text) for queue in orders],
                report=reports.enqueue(text),
                reports=reports.dequeue(),
                let_go=gate.enqueue_many(tf.zeros([workers - 1], tf.int64)),
                may_go=gate.dequeue(),
            )


def orders_queue(task: int):
    """The queue in which ps ``task`` is told what to do at the end; on that task itself."""
    import tensorflow as tf

    with tf.device(ps_device(task)):
        name = f"orders_{task}"
        return tf.compat.v1.FIFOQueue(-1, tf.string, ((),), shared_name=name, name=name)


def reports_queue():
    """The queue of all tasks' last words, on ps 0."""
    import tensorflow as tf

    with tf.device(ps_device(0)):
        return tf.compat.v1.FIFOQueue(-1, tf.string, ((),), shared_name="reports", name="reports")


def whole(parts: list, shards: list[Shard]) -> list:
    """The model's variables from their parts."""
    import tensorflow as tf

    groups: dict[int, list] = {}
    for part, shard in zip(parts, shards, strict=True):
        groups.setdefault(shard.variable, []).append(part)
    return [group[0] if len(group) == 1 else tf.concat(group, axis=0) for group in groups.values()]


def slot_names(optimizer) -> tuple[str, ...]:
    return ("momentum", "velocity") if type(optimizer).__name__ == "Adam" else ("momentum",)


def slot_variables(optimizer) -> list[list]:
    """The Keras optimizer's variables, in the order of ``slot_names`` and, within each, of the model's variables."""
    if type(optimizer).__name__ == "Adam":
        return [optimizer._momentums, optimizer._velocities]
    return [optimizer.momentums]


def apply_gradient(optimizer, variable, slots: list, gradient, rate, step):
    """The update that the Keras optimizer would make, as one operation of TensorFlow's beside the variable.

    It holds the variable's lock, so that no update of another worker is lost between reading and writing.
    """
    import tensorflow as tf

    handles = [slot.handle for slot in slots]
    if type(optimizer).__name__ == "Adam":
        made = tf.cast(step + 1, tf.float32)
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=handles[0],
            v=handles[1],
            beta1_power=tf.pow(optimizer.beta_1, made),
            beta2_power=tf.pow(optimizer.beta_2, made),
            lr=rate,
            beta1=optimizer.beta_1,
            beta2=optimizer.beta_2,
            epsilon=optimizer.epsilon,
            grad=gradient,
            use_locking=True,
        )
    return tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=handles[0],
        lr=rate,
        grad=gradient,
        momentum=optimizer.momentum,
        use_nesterov=optimizer.nesterov,
        use_locking=True,
    )
