"""A cached data set in memory once for a host: its ranks map the file, and share the kernel's pages of it.

The hashes of the mapped arrays are checked at every load, like those of arrays that were read. ``write_npz`` never
writes into a file that is there: it renames a new one over it, and who has mapped the old one keeps the old one.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np

from hvd_mnist.data.files import ARRAYS, broken_npz_is_one_line, check_claims

# Of a file elsewhere, a page that was dropped has to cross the network again in the middle of a step, and kills the
# process (SIGBUS) where the server is gone by then. It is read whole, as is one on a file system not listed here.
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


def map_npz(path: Path) -> dict[str, np.ndarray] | None:
    """The four arrays of an .npz as the file's own pages, read-only; None where one is compressed.

    Returns:
        the names of `ARRAYS` -> arrays whose ``base`` is a numpy.memmap.

    Raises:
        DataError: as `read_npz`.
    """
    arrays = {}
    with broken_npz_is_one_line(path), open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        check_claims(path, archive)
        for name, (key, _, _) in ARRAYS.items():
            entry = archive.getinfo(f"{key}.npy")
            if entry.compress_type != zipfile.ZIP_STORED:
                return None
            file.seek(entry.header_offset + 26)
            name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
            file.seek(entry.header_offset + 30 + name_bytes + extra_bytes)
            shape, fortran, dtype = _header(file)
            pages = np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")
            arrays[name] = pages.view(np.ndarray)
    return arrays


def _header(file) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of the .npy that begins here; `check_claims` has admitted versions 1 and 2 alone."""
    if np.lib.format.read_magic(file) == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)
