"""A cached data set in memory once for a host: a rank reads each image when its turn comes, from the kernel's cache.

The file's hashes are checked at every load, like those of arrays that were read whole. ``write_npz`` never writes into
a file that is there: it renames a new one over it, and who has opened the old one keeps the old one.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from pathlib import Path

import numpy as np

from hvd_mnist.data.files import ARRAYS, broken_npz_is_one_line, check_claims
from hvd_mnist.errors import DataError, printable

# A file elsewhere would cross the network again in the middle of a step wherever the kernel's cache had dropped it. It
# is read whole, as is one on a file system not listed here.
_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}


def on_this_host(path: Path) -> bool:
    """Whether the file lies on a disk, or in the memory, of this host, as far as can be told."""
    import psutil

    file = path.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if file.is_relative_to(part.mountpoint)]
    deepest = max((len(part.mountpoint) for part in mounts), default=0)
    kinds = [part.fstype for part in mounts if len(part.mountpoint) == deepest]
    return bool(kinds) and kinds[-1] in _LOCAL  # the last one mounted there hides the others


def stamp_of(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is replaced or written into: inode, size, date; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def by_number(chosen):
    """``chosen``, which is a number, a slice or an array of numbers, as images that are read when asked for take it.

    Raises:
        IndexError: it is something else.
    """
    if isinstance(chosen, tuple):
        raise IndexError(f"images by a number, a slice or an array of numbers, not by {chosen}: np.asarray first")
    return chosen


class Stored:
    """Images of an .npz, read when they are asked for; otherwise like an array uint8 [N, height, width(, channels)].

    Args:
        path: the file, for errors.
        descriptor: the open file; it becomes this object's own.
        start: the byte at which the first image begins.
        shape: of all images together.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, descriptor: int, start: int, shape: tuple[int, ...]):
        self.path, self.shape, self.ndim = path, shape, len(shape)
        self._file = os.fdopen(descriptor, "rb", buffering=0)  # closed with its last reference
        self._bytes = math.prod(shape[1:])
        self._starts = start + self._bytes * np.arange(len(self))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen) -> np.ndarray:
        """The images of a number, a slice, or an array of numbers; read-only.

        Raises:
            DataError: the file was cut short, or can no longer be read.
            IndexError: anything else was asked for.
        """
        starts = self._starts[by_number(chosen)]
        if isinstance(chosen, slice) and chosen.step in (None, 1):
            pixels = self._read(int(starts[0]), len(starts)) if len(starts) else b""
        else:
            pixels = b"".join([self._read(start, 1) for start in starts.ravel().tolist()])
        return np.frombuffer(pixels, np.uint8).reshape(*starts.shape, *self.shape[1:])

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype)

    def _read(self, start: int, count: int) -> bytes:
        file, size = self._file.fileno(), count * self._bytes
        try:
            pixels = os.pread(file, size, start)
            # Linux reads at most 2 GB at once.
            while len(pixels) < size and (more := os.pread(file, size - len(pixels), start + len(pixels))):
                pixels += more
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror or error})") from error
        if len(pixels) < size:
            raise DataError(
                f"{self.path}: cut short while it was trained on ({len(pixels)} of {size} bytes at byte {start})",
                "go on from the newest checkpoint with --resume auto; put a new file there by renaming it",
            )
        return pixels


def store_npz(path: Path) -> dict[str, np.ndarray | Stored] | None:
    """The four arrays of an .npz, images as `Stored`; None where those are compressed, or no bytes in C order, or none.

    Returns:
        the names of `ARRAYS` -> labels as they are in the file, images.

    Raises:
        DataError: as `read_npz`.
    """
    arrays: dict[str, np.ndarray | Stored] = {}
    with broken_npz_is_one_line(path), open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        check_claims(path, archive)
        for name, (key, _, _) in ARRAYS.items():
            entry = archive.getinfo(f"{key}.npy")
            if "labels" in name:
                with archive.open(entry) as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
                continue
            if entry.compress_type != zipfile.ZIP_STORED:
                return None
            file.seek(entry.header_offset + 26)
            name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
            file.seek(entry.header_offset + 30 + name_bytes + extra_bytes)
            shape, fortran, dtype = _header(file)
            if fortran or dtype != Stored.dtype or len(shape) not in (3, 4) or not math.prod(shape):
                return None
            if file.tell() + math.prod(shape) > os.fstat(file.fileno()).st_size:
                raise DataError(f"{path}: {key}.npy claims {printable(str(shape))}, more than the file holds")
            arrays[name] = Stored(path, os.dup(file.fileno()), file.tell(), shape)
    return arrays


def _header(file) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of the .npy that begins here; `check_claims` has admitted versions 1 and 2 alone."""
    if np.lib.format.read_magic(file) == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)
