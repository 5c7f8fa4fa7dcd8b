"""One change of Horovod's source, before it is compiled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mend:
    """``found``, which must stand exactly once in ``path``, becomes ``mended``."""

    path: str
    found: str
    mended: str
    why: str
