"""TFRecord files: DIR/train*.tfrecord and DIR/test*.tfrecord, not compressed; each record a tf.train.Example with

    image   bytes: a PNG or JPEG; or raw pixels, uint8 in C order, together with
    shape   int64: height, width (, channels), of raw pixels only
    label   int64: one number from 0

At the start each rank goes once through the files, with TensorFlow's reader: every CRC is checked, the place and the
label of each record are noted (about 30 bytes of memory a record). After that a rank reads and decodes those records
that its batches ask for, and no others: which they are is decided by `shard.step_indices`, as for arrays in memory. So
files may have any sizes, there may be fewer of them than ranks, and a resume is exact.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvd_mnist.data import pictures
from hvd_mnist.data.stored import by_number
from hvd_mnist.errors import DataError, printable

HEADER, FOOTER = 12, 4  # bytes around a record: its length (8) and that length's CRC (4); the record's CRC
AT_ONCE = 64  # records a read of the first pass; open files of a rank


def record_files(folder: Path, part: str) -> list[Path]:
    """The files of "train" or "test", sorted by name."""
    return sorted(folder.glob(f"{part}*.tfrecord"))


class Records:
    """Images of records, read when they are asked for; otherwise like an array uint8 [N, height, width(, channels)].

    Args:
        files: the files.
        file, start, length: int64 [N]: for each record which file, where in it, how many bytes.
        shape: of an image.
        mode: in which encoded pictures are decoded, "L" or "RGB"; None for raw pixels.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, files: list[Path], file, start, length, shape: tuple[int, ...], mode: str | None):
        self._files, self._file, self._start, self._length, self._mode = files, file, start, length, mode
        self.shape, self.ndim = (len(file), *shape), 1 + len(shape)
        # A file that falls out of the cache is closed with its last reference.
        self._opened = functools.lru_cache(maxsize=AT_ONCE)(lambda number: open(files[number], "rb", buffering=0))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen) -> np.ndarray:
        """Decoded images: of a number, a slice, or an array of numbers.

        Raises:
            DataError: a file is gone, or is not what it was at the start.
            IndexError: anything else was asked for.
        """
        numbers = np.arange(len(self))[by_number(chosen)]
        images = np.empty((numbers.size, *self.shape[1:]), np.uint8)
        for place, number in enumerate(numbers.flat):
            images[place] = self._image(int(number))
        return images.reshape(*numbers.shape, *self.shape[1:])

    def _image(self, number: int) -> np.ndarray:
        file, start, length = int(self._file[number]), int(self._start[number]), int(self._length[number])
        try:
            found = os.pread(self._opened(file).fileno(), HEADER + length, start - HEADER)
        except OSError as error:
            raise DataError(f"{self._files[file]}: cannot be read ({error.strerror or error})") from error
        where = _where(self._files[file], start)
        if len(found) != HEADER + length or struct.unpack_from("<Q", found) != (length,):
            raise DataError(f"{where}: the file has changed since the start")
        parsed = _Parsed.of(found[HEADER:], where)
        image = parsed.image(self._mode, where)
        if image.shape != self.shape[1:]:
            raise DataError(f"{where}: the file has changed since the start")
        return image


@dataclass(frozen=True)
class _Parsed:
    content: bytes
    shape: tuple[int, ...]  # () for an encoded picture
    label: int

    @classmethod
    def of(cls, record: bytes, where: str) -> _Parsed:
        import tensorflow as tf

        try:
            features = tf.train.Example.FromString(record).features.feature
        except Exception:  # protobuf's own DecodeError, by whichever implementation
            raise DataError(f"{where}: not a tf.train.Example") from None
        images, labels = features["image"].bytes_list.value, features["label"].int64_list.value
        if len(images) != 1 or len(labels) != 1:
            there = ", ".join(sorted(name for name in features if features[name].WhichOneof("kind"))) or "nothing"
            raise DataError(
                f"{where}: features {printable(there)}; expected image (one bytes) and label (one int64)",
                "docs/data.md has the features",
            )
        return cls(images[0], tuple(features["shape"].int64_list.value), labels[0])

    def head(self, where: str) -> tuple[str | None, tuple[int, ...]]:
        """(mode, (height, width)) of an encoded picture; (None, shape) of raw pixels."""
        if not self.shape:
            return pictures.head(io.BytesIO(self.content), where)
        if len(self.shape) not in (2, 3) or min(self.shape) < 1 or np.prod(self.shape) != len(self.content):
            raise DataError(
                f"{where}: shape {self.shape} and {len(self.content)} bytes of image; expected height x width "
                "(x channels) bytes"
            )
        return None, self.shape

    def image(self, mode: str | None, where: str) -> np.ndarray:
        if mode is not None:
            return pictures.pixels(io.BytesIO(self.content), mode, where)
        return np.frombuffer(self.content, np.uint8).reshape(self.shape)


def read_records(folder: Path) -> tuple[dict, dict[str, str]]:
    """Go once through all files of a folder.

    Returns:
        the four arrays, images as `Records`, labels int64 [N]; and {"train_images": sha256 of its records, ...}.

    Raises:
        DataError: a CRC is wrong, a record has other features, or an image another size: one line with file and byte.
    """
    found = {part: _Index(record_files(folder, part)) for part in ("train", "test")}
    for part, index in found.items():
        if not index.files:
            raise DataError(f"{folder}: no {part}*.tfrecord in it")
    for part, index in found.items():
        index.read()
        if not index.labels:
            raise DataError(f"{folder}: no record in {part}*.tfrecord")
    heads = {head: where for index in reversed(found.values()) for head, where in index.heads.items()}
    modes, (mode, size) = {mode for mode, _ in heads}, next(iter(found["train"].heads))
    for (other_mode, other), where in heads.items():
        if other != size or (other_mode is None) != (mode is None):
            raise DataError(
                f"{where}: {_described(other_mode, other)}, expected {_described(mode, size)} as in the first record"
            )
    mode = mode and pictures.common_mode(modes)
    shape = (*size, 3) if mode == "RGB" else size
    arrays = {}
    for part, index in found.items():
        places = (np.array(column, np.int64) for column in (index.file, index.start, index.length))
        arrays[f"{part}_images"] = Records(index.files, *places, shape, mode)
        arrays[f"{part}_labels"] = np.array(index.labels, np.int64)
    return arrays, {f"{part}_images": index.digest.hexdigest() for part, index in found.items()}


class _Index:
    """Where the records of some files lie, and what they hold."""

    def __init__(self, files: list[Path]):
        self.files, self.digest = files, hashlib.sha256()
        self.file, self.start, self.length, self.labels = [], [], [], []
        self.heads: dict[tuple, str] = {}  # (mode, size) -> where it was first seen

    def read(self) -> None:
        import tensorflow as tf

        for number, path in enumerate(self.files):
            start = HEADER
            try:
                for several in tf.data.TFRecordDataset(str(path)).batch(AT_ONCE).as_numpy_iterator():
                    for record in several:
                        self._add(number, start, record)
                        start += len(record) + FOOTER + HEADER
            except tf.errors.OpError as error:
                said = re.search(r"\w+ record at \d+", error.message)  # corrupted, truncated
                raise DataError(
                    f"{path}: {said[0] if said else printable(error.message)}",
                    "TFRecord files must not be compressed; write this one again",
                ) from None

    def _add(self, number: int, start: int, record: bytes) -> None:
        where = _where(self.files[number], start)
        parsed = _Parsed.of(record, where)
        self.heads.setdefault(parsed.head(where), where)
        self.digest.update(record)
        self.file.append(number)
        self.start.append(start)
        self.length.append(len(record))
        self.labels.append(parsed.label)


def _where(path: Path, start: int) -> str:
    return f"{path}, record at byte {start - HEADER}"


def _described(mode: str | None, size: tuple[int, ...]) -> str:
    times = " x ".join(str(side) for side in size)
    return f"raw pixels {times}" if mode is None else f"a picture of {times}"
