"""One process of a host at a time fetches a data set; the others wait, with a limit, and say for whom."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hvd_mnist.errors import DataError


@contextlib.contextmanager
def only_one(name: str, path: Path, wait_limit: float, notify: Callable[[str], None]) -> Iterator[bool]:
    """Hold the lock of one data set; it ends with its process, however that ends.

    Args:
        name: of the data set, for messages.
        path: the lock file; beside it, while the lock is held, a file .owner says by whom.
        wait_limit: seconds to wait for a process that holds it.
        notify: is told at once, and then every 30 seconds, whom this process waits for.

    Yields:
        whether another process held the lock before.

    Raises:
        DataError: the limit is over; names the holder and the lock file.
    """
    import filelock

    lock, owner = filelock.FileLock(path), path.with_suffix(".owner")

    def holder() -> str:
        try:
            return owner.read_text().strip()
        except OSError:
            return "a process that has not yet said its id"

    waited, until = False, time.monotonic() + wait_limit
    while True:
        try:
            left = until - time.monotonic()
            lock.acquire(timeout=max(0.0, min(left, 30.0)) if waited else 0)
            break
        except filelock.Timeout:
            if time.monotonic() >= until:
                raise DataError(
                    f"{name}: waited {wait_limit:.0f} s for {holder()}, which holds {path}",
                    hint=f"look at that process; then run `hvd-mnist data fetch {name}`",
                ) from None
            waited = True
            notify(f"{name}: waiting for {holder()} to fetch it ({until - time.monotonic():.0f} s at most)")
    try:
        owner.write_text(f"pid {os.getpid()} on {socket.gethostname()}\n")
        yield waited
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
