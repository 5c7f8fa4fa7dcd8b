"""Child processes that end in time, and with this process, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG = 1


def run_limited(
    words: Sequence[str], env: Mapping[str, str], limit: float, farewell: signal.Signals = signal.SIGTERM
) -> tuple[int | None, str, str]:
    """Run a command to its end: (exit status, standard output, standard error). Call it from the main thread.

    Args:
        limit: after so many seconds it is ended with all that it started, and the status is None.
        farewell: what it gets when this process dies; a launcher needs SIGTERM, so that it can end its ranks.
    """
    libc, parent = ctypes.CDLL(None), os.getpid()

    def end_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, farewell)
        if os.getppid() != parent:
            os._exit(143)

    # Files, not pipes: what a command leaves behind cannot hold us up.
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        process = subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(env), preexec_fn=end_with_parent
        )
        status: int | None = None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                end_tree(process)
        for file in (out, err):
            file.seek(0)
        return status, out.read(), err.read()


def end_tree(process: subprocess.Popen, grace: float = 5.0) -> None:
    """Ask a process to end, so that a launcher can end its ranks; then kill it and what is left of its descendants."""
    try:
        import psutil

        tree = psutil.Process(process.pid).children(recursive=True)
    except Exception:  # psutil is missing, or the process has just ended
        tree = []
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in tree:
        try:
            child.kill()
        except Exception:
            pass
