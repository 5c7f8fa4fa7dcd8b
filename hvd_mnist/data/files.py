"""Arrays from files, and back: IDX (plain or gzip), .npz, and hashes. A bad file is one DataError, never a guess.

A header is believed only as far as the file can back it: the size that it claims is compared with the size of the
file before anything is allocated, and no more than that size is ever unpacked.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hvd_mnist.errors import DataError, printable

# Deflate cannot pack tighter than this: a claim beyond it is a lie, however the file goes on.
_DEFLATE_LIMIT = 1032

# The four arrays of a data set: our name -> (name in an .npz, IDX name, dimensions of the IDX form).
ARRAYS = {
    "train_labels": ("y_train", "train-labels-idx1-ubyte", (1,)),
    "test_labels": ("y_test", "t10k-labels-idx1-ubyte", (1,)),
    "test_images": ("x_test", "t10k-images-idx3-ubyte", (3, 4)),
    "train_images": ("x_train", "train-images-idx3-ubyte", (3, 4)),
}


def digest(array) -> str:
    """sha256 of an array's raw bytes in C order, as hex: of the payload of its IDX file if it is uint8.

    Args:
        array: [N, ...], or what gives arrays for slices of it (`stored.Stored`): a megabyte at a time is looked at.
    """
    sha256, rows = hashlib.sha256(), max(1, (1 << 20) // max(1, math.prod(array.shape[1:]) * array.dtype.itemsize))
    for first in range(0, len(array), rows):
        sha256.update(np.ascontiguousarray(array[first : first + rows]).data)
    return sha256.hexdigest()


def first_words(error: Exception) -> str:
    """What another library says of broken bytes, in one line: it may quote the bytes."""
    return printable(str(error)) or type(error).__name__


def read_idx(path: Path, dimensions: tuple[int, ...] = (1, 3, 4)) -> np.ndarray:
    """Read one IDX file of unsigned bytes; gzip is known by its first bytes, not by its name.

    Args:
        path: the file.
        dimensions: the numbers of dimensions that are welcome.

    Returns:
        uint8, with the header's shape.

    Raises:
        DataError: not IDX, not bytes, or the size is not what the header says.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not packed:
                return _idx_body(path, raw, dimensions, exact=size)
            with gzip.GzipFile(fileobj=raw) as unpacked:
                return _idx_body(path, unpacked, dimensions, at_most=size * _DEFLATE_LIMIT)
    except (EOFError, zlib.error, gzip.BadGzipFile) as wrong:
        raise DataError(f"{path}: broken gzip file ({first_words(wrong)})", hint="fetch the file again") from wrong
    except OSError as wrong:
        raise DataError(f"{path}: cannot be read ({wrong.strerror or wrong})") from wrong


def _idx_body(path, stream, dimensions, *, exact: int | None = None, at_most: int | None = None) -> np.ndarray:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise DataError(f"{path}: not an IDX file (it starts with {magic.hex() or 'nothing'}, expected 0000)")
    kind, rank = magic[2], magic[3]
    if kind != 0x08 or rank not in dimensions:
        wanted = " or ".join(str(number) for number in dimensions)
        raise DataError(
            f"{path}: IDX type 0x{kind:02x} with {rank} dimensions, expected 0x08 (bytes) with {wanted} dimensions"
        )
    header = stream.read(4 * rank)
    if len(header) < 4 * rank:
        raise DataError(f"{path}: the file ends inside its header")
    shape = struct.unpack(f">{rank}I", header)
    claimed, offset = math.prod(shape), 4 + 4 * rank
    if not claimed:  # numpy refuses 4 000 000 000 x 4 000 000 000 x 0 in words of its own
        raise DataError(f"{path}: the header claims {shape}, which is nothing")
    if exact is not None and claimed != exact - offset:
        raise DataError(f"{path}: the header claims {shape} = {claimed} bytes, the file holds {exact - offset}")
    if at_most is not None and claimed > at_most:
        raise DataError(f"{path}: the header claims {shape} = {claimed} bytes, more than this file can unpack to")
    array = np.empty(shape, np.uint8)
    read = _fill(stream, array)
    if read < claimed:
        raise DataError(f"{path}: the header claims {shape} = {claimed} bytes, the file holds {read}")
    if stream.read(1):
        raise DataError(f"{path}: the file goes on after the {claimed} bytes that its header {shape} claims")
    return array


def _fill(stream, array: np.ndarray) -> int:
    """Fill an array from a stream, without a second copy; the number of bytes that came."""
    view, read = memoryview(array.reshape(-1)), 0
    while read < len(view):
        count = stream.readinto(view[read : read + (1 << 20)])
        if not count:
            break
        read += count
    return read


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read the four arrays of an .npz (x_train, y_train, x_test, y_test); pickled objects are refused.

    Returns:
        the names of `ARRAYS` -> the arrays as they are in the file.

    Raises:
        DataError: not an .npz, an array is missing, broken, or claims more than the file holds.
    """
    with broken_npz_is_one_line(path):
        with zipfile.ZipFile(path) as archive:
            check_claims(path, archive)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[key] for name, (key, _, _) in ARRAYS.items()}


@contextlib.contextmanager
def broken_npz_is_one_line(path: Path) -> Iterator[None]:
    """Whatever reading broken bytes raises, as a DataError."""
    try:
        yield
    except DataError:
        raise
    except OSError as wrong:
        raise DataError(f"{path}: cannot be read ({wrong.strerror or first_words(wrong)})") from wrong
    except Exception as wrong:  # zipfile, zlib and numpy's header parser raise every kind on broken bytes
        raise DataError(f"{path}: broken or not an .npz file ({first_words(wrong)})") from wrong


def check_claims(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise DataError unless all four arrays are in the .npz, each as large as its header claims."""
    held = set(archive.namelist())
    missing = [key for key, _, _ in ARRAYS.values() if f"{key}.npy" not in held]
    if missing:
        found = ", ".join(sorted(name.removesuffix(".npy") for name in held)) or "nothing"
        raise DataError(f"{path}: no array {missing[0]} in it (found {printable(found)})")
    for key, _, _ in ARRAYS.values():
        _check_claim(path, archive, f"{key}.npy")


def _check_claim(path: Path, archive: zipfile.ZipFile, member: str) -> None:
    """Compare what an array's header claims with what its zip entry can hold, before numpy allocates it."""
    entry = archive.getinfo(member)
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise DataError(f"{path}: {member} has the format {version}, expected (1, 0) or (2, 0)")
        shape, _, dtype = read_header(stream)
        claimed, held = math.prod(shape) * dtype.itemsize, entry.file_size - stream.tell()
    if dtype.hasobject:
        raise DataError(f"{path}: {member} holds pickled objects, which are never loaded; expected plain numbers")
    if claimed != held or entry.file_size > (entry.compress_size + 64) * _DEFLATE_LIMIT:
        claim = printable(f"{shape} {dtype}")
        raise DataError(f"{path}: {member} claims {claim} = {claimed} bytes, the entry holds {held}")


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write the four arrays under the final name all at once: temporary name, fsync, rename.

    Raises:
        OSError: the folder cannot be written, or is full; nothing is left behind then.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as out:
            np.savez(out, **{ARRAYS[name][0]: array for name, array in arrays.items()})
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
