"""Python's search for garbage, kept away from where it costs most and finds nothing: import and first step.

Both make some million objects that stay, and Python goes through all that exist each time a part of that was added. Two
ranks that make 20 steps need a fifth less CPU time without it (docs/performance.md, "Start").
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def searched_less() -> Iterator[None]:
    """For a whole job, as a decorator: nothing is searched until ``settle``, and at the end all is as it was."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def pause() -> None:
    """Nothing is searched until ``settle``."""
    gc.disable()


def settle() -> None:
    """What exists stays and is searched no more; what comes from now on is searched as ever."""
    gc.freeze()
    gc.enable()
