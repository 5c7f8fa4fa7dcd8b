"""A data set that a function of the user's gives epoch by epoch, to each rank its own part, as a tf.data.Dataset:

    def load(rank, size, epoch, seed):      # epoch None: the test part
        ...
        return dataset                      # of (image, label), one example each, not batched

The function decides who sees what; the trainer makes batches, and keeps the ranks together. At the start each rank
goes once through its parts and counts. The rank with the fewest training examples gives the number of steps, for all
ranks; what another one has more is left out of an epoch. Of the test parts, every example is counted once.
"""

from __future__ import annotations

import hashlib
import inspect
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from hvd_mnist import own
from hvd_mnist.data import sources
from hvd_mnist.data.arrays import TEST_BATCH, Arrays
from hvd_mnist.data.pipeline import REACH, channels_last, scaled, shifted
from hvd_mnist.data.shard import epoch_shifts, step_span
from hvd_mnist.data.sources import STREAM, Notify
from hvd_mnist.errors import DataError, printable
from hvd_mnist.runtime import world

FIRST = 16  # examples by which two ranks that were given the same are found
SAY_EVERY = 60.0  # seconds, while counting


def load(name: str, *, rank: int, size: int, seed: int, offline: bool = False, notify: Notify) -> Arrays | Stream:
    """A data set for one rank of a job, to be completed by its ``with_all_ranks``.

    Args:
        name: as `sources.load`; or a function of the user's that gives each rank a tf.data.Dataset.
        rank, size, seed: for such a function.

    Raises:
        DataError, UsageError: as `sources.load`.
    """
    if own.is_own(name) and sources.is_stream(name):
        return Stream(name, rank, size, seed, notify)
    return sources.load(name, offline=offline, notify=notify)


class Stream:
    """As `arrays.Arrays` to the trainer, but with a part for each rank and nothing in memory.

    Args:
        name: MODULE:FUNCTION, called as ``load(rank, size, epoch, seed)``.
        rank, size, seed: handed on.
        notify: is given one line for each thing that takes time.

    Attributes (after ``with_all_ranks``):
        train_examples: what all ranks together train on in an epoch: size x the fewest that a rank has.
        test_examples: over all ranks.
        image_shape: height, width, channels.
        classes: 1 + the largest label that any rank has.
    """

    is_sample, class_names, test_images = False, (), None

    def __init__(self, name: str, rank: int, size: int, seed: int, notify: Notify):
        self.name, self.origin, self.sha256 = name, f"a tf.data.Dataset of {name}", {}
        self._rank, self._size, self._seed, self._notify = rank, size, seed, notify
        self._function = own.function(name, "--data", STREAM)
        self._image = None

    def with_all_ranks(self, parts=("train", "test")) -> Stream:
        """Count this rank's parts, and hear what the others have; every rank must call it.

        Raises:
            DataError: on every rank: a rank's function gave no such dataset, or nothing, or what another was given.
        """

        def count():
            found = {part: self._counted(part) for part in parts}
            return {"image": [str(self._image.dtype.name), list(self._image.shape)], **found}

        told = world.gather_json(world.on_every_rank(count, "data"), "data.counts")
        for rank, theirs in enumerate(told):
            if theirs["image"] != told[0]["image"]:
                raise DataError(
                    f"--data {self.name} gives images {theirs['image']} on rank {rank}, {told[0]['image']} on rank 0"
                )
        for part in parts:
            self._check_parts(part, [theirs[part] for theirs in told])
        if "train" in parts:
            counts = [theirs["train"]["examples"] for theirs in told]
            self.train_examples = min(counts) * self._size
            more = f"; {sum(counts)} over all ranks, of which {min(counts)} each are used in an epoch"
            self.origin += more if max(counts) != min(counts) else ""
        counts = [theirs["test"]["examples"] for theirs in told]
        self.test_examples, self._most = sum(counts), max(counts)
        self.classes = 1 + max(theirs[part]["highest"] for theirs in told for part in parts)
        return self

    def _check_parts(self, part: str, told: list[dict]) -> None:
        seen: dict[str, int] = {}
        empty = [rank for rank, theirs in enumerate(told) if not theirs["examples"]]
        if empty and (part == "train" or len(empty) == len(told)):
            raise DataError(f"--data {self.name} gave no {part} examples to rank {empty[0]} of {self._size}")
        for rank, theirs in enumerate(told):
            other = seen.setdefault(theirs["first"], rank) if theirs["examples"] else rank
            if other != rank:
                raise DataError(
                    f"--data {self.name} gave the same first {part} examples to ranks {other} and {rank}; each must "
                    "have its own part",
                    "return dataset.shard(size, rank)",
                )

    def _counted(self, part: str) -> dict:
        """One pass over this rank's part: {"examples", "highest" label, "first": hash of the first few}."""
        dataset = self._examples(0 if part == "train" else None)
        examples, highest, first, said = 0, -1, hashlib.sha256(), time.monotonic()
        for images, labels in self._read(dataset.batch(FIRST), part):
            if examples == 0:
                first.update(images.tobytes() + labels.tobytes())
            if labels.min() < 0:
                raise DataError(f"--data {self.name}: a {part} label is {labels.min()}, expected 0 to classes - 1")
            examples, highest = examples + len(labels), max(highest, int(labels.max()))
            if time.monotonic() - said > SAY_EVERY:
                said = time.monotonic()
                self._notify(f"{self.name}: {examples} {part} examples counted so far")
        return {"examples": examples, "highest": highest, "first": first.hexdigest()}

    def _examples(self, epoch: int | None) -> tf.data.Dataset:
        """What the function gives, checked: (image, int64 label)."""
        try:
            dataset = self._function(self._rank, self._size, epoch, self._seed)
        except Exception as error:
            where = inspect.getsourcefile(self._function) or self.name
            raise DataError(f"--data {self.name} raised {type(error).__name__}: {error} ({where})") from error
        if not isinstance(dataset, tf.data.Dataset):
            raise DataError(
                f"--data {self.name} returned {type(dataset).__name__}, expected a tf.data.Dataset",
                f"def {STREAM}: return dataset.shard(size, rank)",
            )
        spec = dataset.element_spec
        if not _is_example(spec):
            raise DataError(
                f"--data {self.name} gives {printable(str(spec))}; expected one example each: an image uint8 or "
                "float32 [H, W] or [H, W, C] of known size, and a whole number",
                "leave .batch() out, the trainer makes batches; set the size with tf.ensure_shape",
            )
        if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise DataError(f"--data {self.name} gives a dataset without an end", "leave .repeat() out")
        if self._image is None:
            self._image = spec[0]
            self.image_shape = (*spec[0].shape, 1)[:3]
        if (spec[0].shape, spec[0].dtype) != (self._image.shape, self._image.dtype):
            raise DataError(f"--data {self.name} gives images of {spec[0]}, and before of {self._image}")
        return dataset.map(lambda image, label: (image, tf.cast(label, tf.int64)))

    def train_batches(
        self, *, seed: int, epoch: int, first_step: int, steps: int, rank: int, size: int, batch_size: int, augment: str
    ) -> tf.data.Dataset:
        """As `pipeline.batches`. ``first_step`` batches are read and dropped: exact where the function gives the same
        dataset for the same (rank, size, epoch, seed)."""
        if first_step:
            self._notify(f"{self.name}: reading past {first_step * batch_size} examples a rank, which are done")

        def generate():
            given = self._examples(epoch).skip(first_step * batch_size).batch(batch_size, drop_remainder=True)
            step = first_step
            for images, labels in self._read(given.take(steps), "train"):
                if augment == "shift":
                    span = step_span(step, rank, size, batch_size)
                    images = shifted(images, epoch_shifts(span.start, span.stop, seed, epoch, REACH))
                yield self._scaled(images), labels
                step += 1
            if step < first_step + steps:
                raise DataError(
                    f"--data {self.name} gave rank {rank} fewer examples in epoch {epoch + 1} than in epoch 1; "
                    f"expected {(first_step + steps) * batch_size} or more"
                )

        return self._as_dataset(generate, steps, batch_size, labels=tf.int64)

    def test_batches(self, *, rank: int, size: int, batch_size: int = TEST_BATCH) -> tf.data.Dataset:
        """As `pipeline.evaluation_batches`: (x, y, counted), the same number of batches on every rank."""

        def padded(array):
            return np.concatenate([array, np.zeros((batch_size - len(array), *array.shape[1:]), array.dtype)])

        batches = -(-self._most // batch_size)

        def generate():
            left = batches
            for images, labels in self._read(self._examples(None).batch(batch_size).take(batches), "test"):
                yield self._scaled(padded(images)), padded(labels), np.arange(batch_size) < len(images)
                left -= 1
            for _ in range(left):
                empty = np.zeros((batch_size, *self._image.shape), self._image.dtype.as_numpy_dtype)
                yield self._scaled(empty), np.zeros(batch_size, np.int64), np.zeros(batch_size, bool)

        return self._as_dataset(generate, batches, batch_size, labels=tf.int64, counted=tf.bool)

    def check_unchanged(self) -> None:
        """Nothing of it is kept: what a later epoch lacks is found when it is read."""

    def sample_ids(self, *, seed: int, epoch: int, step: int, rank: int, size: int, batch_size: int) -> range:
        """Places of a batch in what the function gives this rank in an epoch."""
        return range(step * batch_size, (step + 1) * batch_size)

    def _read(self, dataset: tf.data.Dataset, part: str):
        """Its elements as numpy arrays; what goes wrong in it is one line."""
        try:
            yield from dataset.as_numpy_iterator()
        except tf.errors.OpError as error:
            raise DataError(f"--data {self.name} ({part} part): {printable(error.message)}") from error

    def _scaled(self, images: np.ndarray) -> np.ndarray:
        return scaled(images, np.float32) if images.dtype == np.uint8 else channels_last(images)

    def _as_dataset(self, generate: Callable, batches: int, batch_size: int, **others: tf.DType) -> tf.data.Dataset:
        """Calls ``generate`` for each iteration, so that each begins with what the function gives: a dataset that is
        iterated twice (Keras looks at a first batch before it trains) shuffles itself anew."""
        images = tf.TensorSpec((batch_size, *self.image_shape), tf.float32)
        rest = (tf.TensorSpec((batch_size,), kind) for kind in others.values())
        dataset = tf.data.Dataset.from_generator(generate, output_signature=(images, *rest))
        return dataset.apply(tf.data.experimental.assert_cardinality(batches)).prefetch(2)


def _is_example(spec) -> bool:
    if not (isinstance(spec, tuple) and len(spec) == 2 and all(isinstance(part, tf.TensorSpec) for part in spec)):
        return False
    image, label = spec
    return (
        image.dtype in (tf.uint8, tf.float32)
        and image.shape.rank in (2, 3)
        and image.shape.is_fully_defined()
        and label.dtype.is_integer
        and label.shape.rank == 0
    )
