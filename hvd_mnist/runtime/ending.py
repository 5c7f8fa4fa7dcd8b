"""How a rank ends when something went wrong: say it in one line, and end so that the whole job ends.

A rank that fails must not try to leave politely: Horovod's and MPI's shutdown wait for the other ranks, which
wait for this one. It writes its line and is gone; the launcher sees the status and stops the rest.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager

from hvd_mnist.errors import HvdMnistError, PeerLost
from hvd_mnist.runtime.world import hostname

# What Horovod says, in whichever exception, when the fault is another rank's.
_PEER_WORDS = (
    "Horovod has been shut down",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks",
)


def translated(error: Exception) -> Exception:
    """The error of this package's tree that stands behind one of TensorFlow or Horovod, or the error itself."""
    text = str(error)
    if type(error).__name__ == "HorovodInternalError" or any(words in text for words in _PEER_WORDS):
        line = next((line for line in text.splitlines() if any(w in line for w in _PEER_WORDS)), text.split("\n")[0])
        return PeerLost(f"lost the other ranks: {line.strip()}", "see the first rank that failed, above")
    return error


@contextmanager
def end_job_on_error(size: Callable[[], int], rank: Callable[[], int]):
    """Around a rank's whole work: an error becomes one line and, among several ranks, the end of the process.

    Args:
        size, rank: asked when an error has happened; size 0 or 1 lets the error through to the caller.
    """
    try:
        yield
    except Exception as error:
        if size() <= 1:
            raise
        shown = translated(error)
        known = isinstance(shown, HvdMnistError)
        if not known:
            traceback.print_exc()
        line = shown if known else f"{type(error).__name__}: {error}"
        print(f"hvd-mnist: error: rank {rank()} on {hostname()}: {line}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(shown.exit_status if known else 1)
