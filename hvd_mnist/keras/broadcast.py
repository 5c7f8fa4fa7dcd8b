"""Every rank gets one rank's variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_mnist.errors import ReplicasDiffer
from hvd_mnist.runtime import world

BUCKET_BYTES = 64 * 2**20  # what is packed into one message; bounds the extra memory


def broadcast_variables(
    variables: Iterable[keras.Variable | tf.Variable], root_rank: int = 0, *, device: str = ""
) -> None:
    """Assign the root's value to each variable on every rank.

    Args:
        variables: Keras or TensorFlow variables, in the same order on every rank.
        root_rank: whose values.
        device: TensorFlow device for the exchange.

    Raises:
        ReplicasDiffer: the ranks do not have the same variables (number, shapes, dtypes); found before any
            value is sent.
    """
    inner = [getattr(v, "value", v) if not isinstance(v, tf.Variable) else v for v in variables]
    layout = [[list(v.shape), v.dtype.name] for v in inner]
    _assert_same_layout(layout)
    for number, bucket in enumerate(_buckets(inner, BUCKET_BYTES)):
        with tf.device(device):
            flat = tf.concat([tf.reshape(_on_the_wire(v), [-1]) for v in bucket], axis=0)
            root = hvd.broadcast(flat, root_rank, name=f"broadcast_variables.{number}")
            for variable, part in zip(bucket, tf.split(root, [v.shape.num_elements() for v in bucket]), strict=True):
                part = tf.reshape(part, variable.shape)
                variable.assign(tf.bitcast(part, variable.dtype) if part.dtype != variable.dtype else part)


def _on_the_wire(variable: tf.Variable) -> tf.Tensor:
    """Horovod has no bfloat16: its bits travel as integers."""
    value = tf.convert_to_tensor(variable)
    return tf.bitcast(value, tf.uint16) if value.dtype == tf.bfloat16 else value


def _buckets(variables: Sequence[tf.Variable], limit: int) -> list[list[tf.Variable]]:
    """Runs of variables of one dtype, each below ``limit`` bytes unless a single variable is larger."""
    buckets: list[list[tf.Variable]] = []
    size = 0
    for variable in variables:
        bytes_ = variable.shape.num_elements() * variable.dtype.size
        if not buckets or buckets[-1][0].dtype != variable.dtype or size + bytes_ > limit:
            buckets.append([])
            size = 0
        buckets[-1].append(variable)
        size += bytes_
    return buckets


def _assert_same_layout(layout: Sequence[object]) -> None:
    layouts = world.gather_json([world.hostname(), layout], "broadcast_variables.layout")
    _, expected = layouts[0]
    for rank, (host, found) in enumerate(layouts):
        if found == expected:
            continue
        for place in range(max(len(found), len(expected))):
            here = found[place] if place < len(found) else "nothing"
            there = expected[place] if place < len(expected) else "nothing"
            if here != there:
                raise ReplicasDiffer(
                    f"rank {rank} on {host} has another model than rank 0: variable {place} is {here}, "
                    f"expected {there}",
                    "start the same script with the same options on every rank",
                )
