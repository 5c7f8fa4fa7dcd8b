"""When a step's batch was there, when this rank's gradients were ready, and when they were exchanged.

TensorFlow takes the times inside the training step (``tf.timestamp``), since a step is one call of one graph and Python
sees its beginning and its end alone. Nothing is communicated and no clock is compared with another rank's: what a rank
spends before an exchange and in it are differences of its own times.

On a GPU an operation counts as done when it has been handed to the GPU, so the times there are those of the host.
"""

from __future__ import annotations

import tensorflow as tf

from hvd_mnist.errors import UsageError
from hvd_mnist.keras.replicas import is_distributed


class StepClock:
    """The times of the last step on this rank.

    Install it before the first step is traced: ``clock_of(model)``.
    """

    def __init__(self):
        with tf.init_scope(), tf.device("/CPU:0"):
            self._batch = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="step_clock.batch")
            # ready, exchanged; then over the steps since ``take``: seconds before exchanges, and how many
            self._times = tf.Variable(tf.zeros(4, tf.float64), trainable=False, name="step_clock.times")
            self._exchanging = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="step_clock.exchanging")

    def stamps(self) -> tuple[float, float, float]:
        """Seconds since 1970 at which, in the last step: the batch was there, gradients were ready, were exchanged."""
        batch = tf.raw_ops.ReadVariableOp(resource=self._batch.handle, dtype=tf.float64).numpy().item()
        ready, exchanged, _, _ = tf.raw_ops.ReadVariableOp(resource=self._times.handle, dtype=tf.float64).numpy()
        return batch, float(ready), float(exchanged)

    def take(self) -> float | None:
        """Mean seconds a step, since the last call, from one exchange's end to the next one's beginning: what this rank
        needs without the others. None where there was no such step. Counting begins anew, with the next exchange."""
        _, _, seconds, steps = self._times.numpy()
        self._times.assign(tf.zeros(4, tf.float64))
        return float(seconds / steps) if steps else None

    def seconds_exchanging(self) -> float:
        """Seconds in exchanges of gradients in all steps until now, the wait for slower ranks included."""
        return float(self._exchanging.numpy())

    # -- inside the training step ------------------------------------------------------------------------------

    def batch_is_here(self, data):
        """``data``, and nothing is computed from it before its time is taken."""
        with tf.device("/CPU:0"), tf.control_dependencies(_tensors(data)):
            now = tf.timestamp()
            self._batch.assign(now)
        with tf.control_dependencies([now]):
            return tf.nest.map_structure(lambda part: None if part is None else tf.identity(part), data)

    def ready(self, gradients) -> tf.Tensor:
        """To be called with all gradients of this rank, before they are exchanged."""
        with tf.device("/CPU:0"), tf.control_dependencies(_tensors(gradients)):
            return tf.timestamp()

    def exchanged(self, ready: tf.Tensor, gradients) -> None:
        """To be called with what the exchange brought back, and what ``ready`` returned."""
        with tf.device("/CPU:0"), tf.control_dependencies([ready, *_tensors(gradients)]):
            now = tf.timestamp()
            _, last, seconds, steps = tf.unstack(self._times.read_value())
            counts = tf.cast(last > 0, tf.float64)
            self._exchanging.assign_add(now - ready)
            self._times.assign(tf.stack([ready, now, seconds + counts * (ready - last), steps + counts]))


def clock_of(model) -> StepClock:
    """The clock of a compiled model's steps; installed where there is none yet, before the first step.

    Raises:
        UsageError: the model's optimizer meets no other rank.
    """
    if not is_distributed(model.optimizer):
        raise UsageError(
            "a step's times are taken around its exchange, and this optimizer has none",
            "hvd.DistributedOptimizer(optimizer)",
        )
    exchange = model.optimizer._exchange
    if exchange.clock is None:
        exchange.clock, train_step = StepClock(), model.train_step
        model.train_step = lambda data: train_step(exchange.clock.batch_is_here(data))
    return exchange.clock


def _tensors(structure) -> list[tf.Tensor]:
    return [
        each.values if isinstance(each, tf.IndexedSlices) else each
        for each in tf.nest.flatten(structure)
        if each is not None
    ]
