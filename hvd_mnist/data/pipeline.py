"""Batches for one rank, as a tf.data pipeline in which batch s is a pure function of (seed, epoch, s).

The images stay uint8, once in memory; a batch is gathered, shifted and scaled by numpy when its turn comes. That
makes a resume exact (starting at step k gives the same batches as the tail of a whole epoch) and puts nothing of
the data set in a graph.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from hvd_mnist.data.shard import epoch_permutation, epoch_shifts, rank_slice, step_indices, step_span, steps_left
from hvd_mnist.errors import DataError, UsageError

AUGMENTATIONS = ("none", "shift")
REACH = 2  # pixels, of augment="shift"


def batches(
    images: np.ndarray,
    labels: np.ndarray,
    *,
    seed: int,
    epoch: int,
    first_step: int,
    steps: int,
    rank: int,
    size: int,
    batch_size: int,
    augment: str = "none",
    dtype: str = "float32",
    start: int = 0,
) -> tf.data.Dataset:
    """One rank's batches of one epoch, from a step on.

    Args:
        images: uint8 [N, height, width] or [N, height, width, channels], the whole training set.
        labels: int64 [N].
        seed, epoch: choose the order of the examples (`shard.epoch_permutation`) and their shifts.
        first_step: step within the epoch to begin at, 0 for a whole epoch.
        steps: number of batches to give.
        rank, size: whose part.
        batch_size: images per rank and step.
        augment: "none", or "shift": each image moves by -2..2 pixels each way, the same wherever it is seen.
        dtype: floating type of the images.
        start: places of the epoch's order that are done already; steps are counted from there.

    Returns:
        dataset of `steps` pairs: x [batch_size, height, width, channels] in 0..1, y int64 [batch_size].

    Raises:
        UsageError: the steps go beyond the epoch, or `augment` is unknown.
    """
    if augment not in AUGMENTATIONS:
        raise UsageError(f"augment {augment!r}: expected one of {', '.join(AUGMENTATIONS)}")
    in_epoch = steps_left(len(images), start, size * batch_size)
    if first_step < 0 or steps < 0 or first_step + steps > in_epoch:
        raise UsageError(
            f"steps {first_step} to {first_step + steps} of an epoch of {in_epoch} steps "
            f"({len(images)} images, {size} ranks x {batch_size})"
        )
    kind = tf.as_dtype(dtype).as_numpy_dtype

    def batch(step: np.int64) -> tuple[np.ndarray, np.ndarray]:
        chosen = step_indices(_order(len(images), seed, epoch), int(step), rank, size, batch_size, start)
        pixels = images[chosen]
        if augment == "shift":
            span = step_span(int(step), rank, size, batch_size, start)
            pixels = shifted(pixels, epoch_shifts(span.start, span.stop, seed, epoch, REACH))
        return scaled(pixels, kind), labels[chosen]

    return _dataset(batch, first_step, steps, [(dtype, (batch_size, *_shape(images))), ("int64", (batch_size,))])


def evaluation_batches(
    images: np.ndarray, labels: np.ndarray, *, rank: int, size: int, batch_size: int, dtype: str = "float32"
) -> tf.data.Dataset:
    """One rank's part of a test set, each example of it exactly once.

    Every batch has the same shape and every rank has the same number of them, so that a compiled step is traced
    once and a collective in it meets all ranks. What is over in a batch is zeros, and marked as not counted.

    Returns:
        dataset of triples: x [batch_size, height, width, channels] in 0..1, y int64 [batch_size],
        counted bool [batch_size]. Over all ranks, `counted` is true exactly len(images) times.
    """
    part = rank_slice(len(images), rank, size)
    longest = -(-len(images) // size)
    kind = tf.as_dtype(dtype).as_numpy_dtype

    def batch(step: np.int64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first = min(part.start + int(step) * batch_size, part.stop)
        chosen = slice(first, min(first + batch_size, part.stop))
        here = chosen.stop - chosen.start
        pixels = np.zeros((batch_size, *images.shape[1:]), np.uint8)
        answers = np.zeros(batch_size, np.int64)
        pixels[:here], answers[:here] = images[chosen], labels[chosen]
        return scaled(pixels, kind), answers, np.arange(batch_size) < here

    kinds = [(dtype, (batch_size, *_shape(images))), ("int64", (batch_size,)), ("bool", (batch_size,))]
    return _dataset(batch, 0, -(-longest // batch_size), kinds)


def data_failure(error: Exception) -> DataError | None:
    """The DataError that was raised where a batch was made; TensorFlow wraps it in an error of its own."""
    found = re.search(r"DataError: (.*)", str(error))
    return DataError(found[1].strip()) if found else None


@functools.lru_cache(maxsize=2)
def _order(examples: int, seed: int, epoch: int) -> np.ndarray:
    """The epoch's permutation, made once an epoch and not held by a batch function.

    TensorFlow keeps each numpy_function alive for ever (in the outermost graph), and so all that it closes over:
    half a megabyte an epoch if that were the order.
    """
    order = epoch_permutation(examples, seed, epoch)
    order.flags.writeable = False
    return order


def shifted(images: np.ndarray, shifts: np.ndarray, reach: int = REACH) -> np.ndarray:
    """Move each image by its own (down, right); what comes in from outside is 0.

    Args:
        images: [batch, height, width, ...].
        shifts: int64 [batch, 2], each in -reach..reach.
    """
    batch, height, width = images.shape[:3]
    padded = np.zeros((batch, height + 2 * reach, width + 2 * reach, *images.shape[3:]), images.dtype)
    padded[:, reach : reach + height, reach : reach + width] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))
    moved = windows[np.arange(batch), reach - shifts[:, 0], reach - shifts[:, 1]]
    return moved if images.ndim == 3 else np.moveaxis(moved, 1, -1)  # the windows put channels first


def scaled(pixels: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """0..255 to 0..1, divided in float32 whatever the type, with a last axis for the channels."""
    return channels_last(np.divide(pixels, 255, dtype=np.float32).astype(dtype, copy=False))


def channels_last(images: np.ndarray) -> np.ndarray:
    return images if images.ndim == 4 else images[..., np.newaxis]


def _shape(images: np.ndarray) -> tuple[int, ...]:
    return images.shape[1:] if images.ndim == 4 else (*images.shape[1:], 1)


def _dataset(batch: Callable, first: int, steps: int, kinds: list[tuple[str, tuple[int, ...]]]) -> tf.data.Dataset:
    """The dataset batch(first), batch(first + 1), ..., with static shapes and one thread of its own."""

    def element(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        parts = tf.numpy_function(batch, [step], [tf.as_dtype(dtype) for dtype, _ in kinds])
        return tuple(tf.ensure_shape(part, shape) for part, (_, shape) in zip(parts, kinds, strict=True))

    options = tf.data.Options()
    options.deterministic = True
    # One thread is enough: a batch of 128 costs about 0.7 CPU milliseconds, 1.2 with shifts (docs/data.md). More
    # would take the cores from the convolutions.
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    return tf.data.Dataset.range(first, first + steps).map(element).prefetch(2).with_options(options)
