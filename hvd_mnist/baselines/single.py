"""One device: the step that every other system spreads.

    hvd-mnist baseline single --steps 200                  a minute at most on a laptop
    hvd-mnist baseline single --epochs 1                   past 98.5 %
    hvd-mnist baseline single --steps 20 --explain         the step's graph, in the order in which TensorFlow runs it

A step: forward, loss, gradients by the tape, one update of the optimizer. ``--batch-size`` images each.
"""

from __future__ import annotations

from hvd_mnist.baselines.course import Course, prepare, train_in_epochs
from hvd_mnist.config import TrainConfig
from hvd_mnist.runtime import devices, world


def train(config: TrainConfig, knob_sources: dict[str, str] | None = None, *, explain: bool = False) -> dict:
    """Train on one device; the summary, as in RUN/summary.json.

    Args:
        explain: also write RUN/graph.json and RUN/graph.png: the step's graph, run by dependency counts.
    """
    threads = config.threads or devices.my_threads(1)
    gpu = devices.pin(0, 1, world.hostname(), threads)
    work = prepare(config, replicas=1)
    course = Course("single", work, f"one {'CPU' if gpu is None else 'GPU'}, {threads} threads", knob_sources)
    step = train_step(work.model, work.optimizer)
    if explain:
        from hvd_mnist.baselines.explain import explain_order

        x, y = next(iter(work.batches(0, 0, 1)))
        explain_order(step, (x, y), work.model, work.optimizer, course.run, course.console)
    train_in_epochs(course, step)
    return course.finish([course.own_report("single", threads=threads)])


def train_step(model, optimizer):
    """The compiled step: (x, y) -> (loss, accuracy), and one update."""
    import tensorflow as tf

    @tf.function(jit_compile=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = mean_loss(logits, y)
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss, hits(logits, y)

    return step


def mean_loss(logits, y):
    """Mean cross-entropy of a batch, a scalar."""
    import keras
    import tensorflow as tf

    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))


def hits(logits, y):
    """Part of a batch that is classified rightly, a scalar."""
    import tensorflow as tf

    return tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, axis=-1), y), tf.float32))
