"""Faults of Horovod 0.28.1 that no header can mend: a few lines of its source each, replaced before it is compiled."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

from hvd_mnist.errors import BuildError, printable
from hvd_mnist.horovod_build.mended_faults import FAULTS
from hvd_mnist.horovod_build.mended_speed import SPEED

MENDS = (*FAULTS, *SPEED)


def mends_hash() -> str:
    """sha256 over the mends, as 64 hex digits; part of the wheel's cache key."""
    text = "\0".join(f"{mend.path}\0{mend.found}\0{mend.mended}" for mend in MENDS)
    return hashlib.sha256(text.encode()).hexdigest()


def mended_source(sdist: Path, work: Path) -> Path:
    """Unpack Horovod's source archive into ``work`` and mend it; its folder.

    Raises:
        BuildError: a line to mend is not there once: another Horovod than the one that was looked at.
    """
    with tarfile.open(sdist) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # early 3.10 has no filters
        archive.extractall(work, **safely)
    source = work / sdist.name.removesuffix(".tar.gz")
    for mend in MENDS:
        path = source / mend.path
        text = path.read_text(encoding="utf-8")
        if (places := text.count(mend.found)) != 1:
            raise BuildError(
                f"{mend.path} has {places} places '{printable(mend.found)}', expected 1: another Horovod",
                "see hvd_mnist/horovod_build/mended_*.py",
            )
        path.write_text(text.replace(mend.found, mend.mended), encoding="utf-8")
    return source
