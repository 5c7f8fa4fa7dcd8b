"""What a gradient looks like on the wire: as it is, or in half the bytes.

``Compression.none`` and ``Compression.fp16`` are Horovod's own. ``Compression.bf16`` is ours: bfloat16 has the
range of float32, so that no loss scaling is needed, with 8 bits of precision. Horovod's kernels cannot add
bfloat16, so ``sum_bfloat16`` exchanges the bits, adds in float32 and exchanges the sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import horovod.tensorflow as hvd
import tensorflow as tf


class BF16Compressor:
    """Marks gradients to be summed by ``sum_bfloat16``; ``compress`` and ``decompress`` only change the dtype."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType]:
        """(tensor in bfloat16, its own dtype)."""
        return tf.cast(tensor, tf.bfloat16), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """The tensor back in ``dtype``."""
        return tf.cast(tensor, dtype)


class Compression(hvd.Compression):
    """Horovod's choices and bf16."""

    bf16 = BF16Compressor


def sum_bfloat16(tensors: Sequence[tf.Tensor], name: str, process_set: hvd.ProcessSet) -> list[tf.Tensor]:
    """Sum a list of floating tensors over ranks, with bfloat16 on the wire and float32 sums.

    The two halves of a ring allreduce by hand: every rank receives one piece from all (alltoall), adds its
    piece in float32, rounds it once, and gives it to all (allgather). Each rank sends 2 (N - 1) / N of the
    tensors' size in bfloat16, half of what the float32 ring sends, and all ranks get the same bits.

    Returns:
        The sums, each of the shape and dtype of its input.
    """
    size = process_set.size()
    flat = tf.concat([tf.reshape(tf.cast(t, tf.bfloat16), [-1]) for t in tensors], axis=0)
    length = tf.size(flat)
    piece = (length + size - 1) // size
    padded = tf.pad(flat, [[0, piece * size - length]])
    received = hvd.alltoall(
        tf.bitcast(padded, tf.uint16),
        splits=tf.fill([size], piece),
        name=f"{name}.bf16.alltoall",
        ignore_name_scope=True,
        process_set=process_set,
    )
    bits = received[0] if isinstance(received, (tuple, list)) else received
    pieces = tf.reshape(tf.bitcast(bits, tf.bfloat16), [size, piece])
    mine = tf.cast(tf.reduce_sum(tf.cast(pieces, tf.float32), axis=0), tf.bfloat16)
    gathered = hvd.allgather(
        tf.bitcast(mine, tf.uint16), name=f"{name}.bf16.allgather", ignore_name_scope=True, process_set=process_set
    )
    summed = tf.bitcast(gathered, tf.bfloat16)[:length]
    sizes = [tf.size(t) for t in tensors]
    parts = tf.split(summed, sizes, num=len(tensors))
    return [tf.cast(tf.reshape(p, tf.shape(t)), t.dtype) for p, t in zip(parts, tensors, strict=True)]
