"""A data set as four arrays, checked."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvd_mnist.data.catalogue import KNOWN, Known, check_hashes
from hvd_mnist.data.files import digest
from hvd_mnist.data.records import Records
from hvd_mnist.data.shard import epoch_permutation, step_indices
from hvd_mnist.data.stored import Stored, stamp_of
from hvd_mnist.errors import DataError

TEST_BATCH = 200  # a pass of the cnn over 500 images takes 110 MiB for a moment, more than its training step


@dataclass(frozen=True)
class Arrays:
    """A data set.

    Attributes:
        name: as asked for.
        train_images, test_images: uint8 [N, height, width] or [N, height, width, channels]; in memory, or
            `stored.Stored` or `records.Records`, which read them when they are asked for.
        train_labels, test_labels: int64 [N], each in 0..classes-1.
        classes: number of classes.
        is_sample: True for a small part of a larger data set: its accuracy is no result for the whole.
        sha256: name of each array -> hash of its raw bytes as in an IDX file (labels as uint8 where they fit); of
            TFRecord images, hash of the records.
        origin: where the arrays came from, for a banner.
        class_names: what the classes are called, where the data says it; else empty.
        stored: the cached file that images are read from, one copy for a host; None: they are in our own memory.
        stamp: what `check_unchanged` knows that file by.
    """

    name: str
    train_images: np.ndarray | Stored | Records
    train_labels: np.ndarray
    test_images: np.ndarray | Stored | Records
    test_labels: np.ndarray
    classes: int
    is_sample: bool
    sha256: dict[str, str]
    origin: str
    class_names: tuple[str, ...] = ()
    stored: Path | None = None
    stamp: tuple[int, ...] | None = None

    def check_unchanged(self) -> None:
        """Look whether the stored file is still what was checked; its hashes are taken only where its date is another.

        Raises:
            DataError: somebody wrote into the file while ranks trained on it. (A file that was replaced, or deleted,
                is no such case: the old one stays open.)
        """
        if self.stored is None or stamp_of(self.stored) == self.stamp:
            return
        labels = {"train_labels": self.train_labels.astype(np.uint8), "test_labels": self.test_labels.astype(np.uint8)}
        images = {"train_images": self.train_images, "test_images": self.test_images}
        try:
            check_hashes(KNOWN[self.name], images | labels)
        except DataError as wrong:
            raise DataError(
                f"{self.stored} on {socket.gethostname()} was written into while it was trained on ({wrong.message})",
                "go on from the newest checkpoint with --resume auto; put a new file there by renaming it",
            ) from None

    @property
    def train_examples(self) -> int:
        return len(self.train_images)

    @property
    def test_examples(self) -> int:
        return len(self.test_images)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """height, width, channels."""
        return (*self.train_images.shape[1:], 1)[:3]

    def with_all_ranks(self, parts=("train", "test")) -> Arrays:
        """Itself: each rank has the whole, and no rank must be asked (`stream.Stream` does)."""
        return self

    def train_batches(self, **place):
        """One rank's batches of one epoch: `pipeline.batches`."""
        from hvd_mnist.data.pipeline import batches

        return batches(self.train_images, self.train_labels, **place)

    def test_batches(self, *, rank: int, size: int, batch_size: int = TEST_BATCH):
        """One rank's part of the test set: `pipeline.evaluation_batches`."""
        from hvd_mnist.data.pipeline import evaluation_batches

        return evaluation_batches(self.test_images, self.test_labels, rank=rank, size=size, batch_size=batch_size)

    def sample_ids(self, *, seed: int, epoch: int, step: int, rank: int, size: int, batch_size: int) -> np.ndarray:
        """Places in ``train_images`` of one rank's batch."""
        order = epoch_permutation(self.train_examples, seed, epoch)
        return step_indices(order, step, rank, size, batch_size)


def checked(
    name: str,
    arrays: dict[str, np.ndarray],
    origin: str,
    known: Known | None = None,
    class_names: tuple[str, ...] = (),
    sha256: dict[str, str] | None = None,
    stamp: tuple[int, ...] | None = None,
) -> Arrays:
    """Check that four arrays make a data set, and give it.

    Args:
        name, origin: for the banner, and for errors.
        arrays: the four, by the names of `files.ARRAYS`.
        known: the data set whose hashes they have.
        class_names: where the data says them.
        sha256: hashes that are known already; of the other arrays they are taken now.
        stamp: of the cached file ``origin``, taken before its hashes were; used where images are read from it.

    Raises:
        DataError: which array is wrong, and what was expected.
    """
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.dtype != np.uint8 or images.ndim not in (3, 4):
            raise DataError(f"{origin}: {part} images are {images.dtype} {images.shape}, expected uint8 [N, H, W(, C)]")
        if labels.dtype.kind not in "iu" or labels.ndim != 1:
            raise DataError(f"{origin}: {part} labels are {labels.dtype} {labels.shape}, expected integers [N]")
        if len(images) != len(labels) or len(images) == 0:
            raise DataError(
                f"{origin}: {len(images)} {part} images and {len(labels)} labels, expected as many, and some"
            )
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high > 65_535:
            raise DataError(f"{origin}: {part} labels run from {low} to {high}, expected 0 to classes - 1")
    if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
        shapes = [arrays[f"{part}_images"].shape[1:] for part in ("train", "test")]
        raise DataError(f"{origin}: train images are {shapes[0]} and test images {shapes[1]}, expected the same")
    stored = known is not None and isinstance(arrays["train_images"], Stored)
    labels = {part: arrays[f"{part}_labels"] for part in ("train", "test")}
    classes = len(class_names) or 1 + int(max(part.max() for part in labels.values()))
    if known:
        sha256 = dict(known.sha256)  # checked just now
    else:
        as_in_idx = np.uint8 if classes <= 256 else np.int64
        found = {f"{part}_labels": digest(values.astype(as_in_idx)) for part, values in labels.items()}
        sha256 = found | (sha256 or {f"{part}_images": digest(arrays[f"{part}_images"]) for part in labels})
        if class_names:
            sha256["class_names"] = hashlib.sha256("\n".join(class_names).encode()).hexdigest()
    return Arrays(
        name=name,
        train_images=arrays["train_images"],
        train_labels=labels["train"].astype(np.int64),
        test_images=arrays["test_images"],
        test_labels=labels["test"].astype(np.int64),
        classes=classes,
        is_sample=bool(known and known.is_sample),
        sha256=sha256,
        origin=origin,
        class_names=class_names,
        stored=Path(origin) if stored else None,
        stamp=stamp if stored else None,
    )
