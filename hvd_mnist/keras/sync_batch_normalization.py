"""Batch normalization over the batch of all ranks: ``hvd.SyncBatchNormalization`` in place of Keras' own layer.

Each rank's batch has a count n, a mean m and a (biased) variance v for each channel. Added over ranks, n, n m and
n (v + m^2) give the moments of all batches together, by the law of total variance:

    M = sum(n m) / sum(n)        V = sum(n (v + m^2)) / sum(n) - M^2

With them the layer does what algorithm 1 of Ioffe and Szegedy 2015 (arXiv:1502.03167) says of one large batch. The
square of the mean is taken off a sum that may be much larger than the variance, so the three are added in float64.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_mnist.errors import UsageError
from hvd_mnist.keras import xla


@keras.saving.register_keras_serializable(package="hvd_mnist")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """``keras.layers.BatchNormalization`` whose statistics in training are those of all ranks' batches together.

    Arguments, weights and inference are those of the Keras layer. Each training step costs one allreduce of
    2 x channels + 1 float64 forward and one backward, for each such layer. Batches may be of different lengths; what
    counts is each example (or each place that a mask leaves). The moving statistics come out the same on every rank.

    Every rank must call the layer equally often. A loss that is the mean over ranks, as with ``DistributedOptimizer``,
    then has the gradient of one process with the whole batch.

    Raises:
        UsageError: called for training before ``hvd.init()``, or inside XLA (``jit_compile=True``).
    """

    supports_jit = False  # what Keras asks before it chooses XLA by itself

    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [channels] of all ranks' inputs, in the dtype of ``inputs``."""
        xla.refuse_inside_xla(self)
        if not hvd.is_initialized():
            raise UsageError(
                f"SyncBatchNormalization '{self.name}' is trained before Horovod was started", "hvd.init()"
            )
        mean, variance = (tf.cast(tf.reshape(moment, [-1]), tf.float64) for moment in super()._moments(inputs, mask))
        places = tf.shape(inputs, tf.int64)
        count = tf.reduce_prod(tf.gather(places, self._reduction_axes))
        if mask is not None:
            count = tf.math.count_nonzero(mask)
        count = tf.cast(count, tf.float64)
        parts = [[count], count * mean, count * (variance + mean**2)]
        together = _sum_over_ranks(tf.concat(parts, axis=0), self.path)
        total, sums, squares = tf.split(together, [1, mean.shape[0], mean.shape[0]])
        mean = sums / total
        variance = tf.maximum(squares / total - mean**2, 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _sum_over_ranks(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """The sum of all ranks' tensors, and its gradient: what all ranks' losses say of the sum is added, too."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def summed(mine: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return _in_order(mine, f"{name}.moments"), lambda upstream: _in_order(upstream, f"{name}.gradient")

    return summed(tensor)


def _in_order(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """An allreduce that waits for the one traced before it in the same graph: layers in parallel branches would
    otherwise exchange in an order of TensorFlow's own, which can be another one on each rank."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    before = getattr(graph, "_hvd_mnist_exchanged", None)
    with tf.control_dependencies([] if before is None else [before]):
        total = hvd.allreduce(tensor, op=hvd.Sum, name=f"SyncBatchNormalization.{name}", ignore_name_scope=True)
    if graph is not None:
        graph._hvd_mnist_exchanged = total
    return total
