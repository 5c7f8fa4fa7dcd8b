"""How a rank ends when something went wrong: say it in one line, and end so that the whole job ends.

A rank that fails must not try to leave politely: Horovod's and MPI's shutdown wait for the other ranks, which
wait for this one. It writes its line and is gone; the launcher sees the status and stops the rest. A rank that
only lost another one lingers for a moment, so that launchers hear of the first failure first. And a launcher that
stops the rest after a rank was killed does not know where they stood: rank 0 (or rank 1) says it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from hvd_mnist.errors import HvdMnistError, PeerLost, Preempted, WorldError
from hvd_mnist.runtime import stall, world
from hvd_mnist.runtime.world import hostname

LINGER_SECONDS = 2.0  # of a rank that lost another one
_NOTICE_SECONDS = 1.0  # in which the process of a lost rank is seen to be gone

# What Horovod says, in whichever exception, when the fault is another rank's.
_PEER_WORDS = (
    "Horovod has been shut down",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited or there was a network error",  # NCCL 2.32's ncclRemoteError
    "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks",
)
_MISMATCH = "Mismatched "  # Horovod: one rank did an allreduce, another an allgather; other shapes, other types

_doing = "before the first step"
_processes: list[tuple[str, int]] = []
_watch: stall.Watch | None = None


def doing(what: str) -> None:
    """Say where this rank stands ("in step 6"); an error will name it."""
    global _doing
    _doing = what
    moved()


def moved() -> None:
    """This rank does not stand still."""
    if _watch is not None:
        _watch.moved()


def watch(folder: Path, rank: int, size: int, seconds: float) -> None:
    """From now on, standing still for so many seconds writes this rank's stacks into ``FOLDER/rank-R.log``."""
    global _watch
    stop_watching()
    _watch = stall.Watch(folder, rank, size, seconds)
    _watch.start()


def stop_watching() -> None:
    """The work that can stall is done."""
    global _watch
    if _watch is not None:
        _watch.stop()
        _watch = None


def know_processes(processes: list[tuple[str, int]]) -> None:
    """Tell this rank (host, process number) of every rank, so that it can name one that is lost."""
    global _processes
    here = hostname()
    # Ranks in containers may share a host's name and yet not see each other's processes.
    _processes = [(host, pid) if host == here and _runs(pid) else (host, 0) for host, pid in processes]


def place() -> str:
    """``on HOST, in step 6``: for errors."""
    return f"on {hostname()}, {_doing}"


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _lost_ranks(patience: float = _NOTICE_SECONDS) -> str:
    """``rank 1 (process 123 on HOST is gone)``, of ranks on this host; "" where none is seen to be gone."""
    until = time.monotonic() + patience
    while True:
        gone = [
            f"rank {rank} (process {pid} on {host} is gone)"
            for rank, (host, pid) in enumerate(_processes)
            if pid and not _runs(pid)
        ]
        if gone or not any(pid for _, pid in _processes) or time.monotonic() > until:
            return ", ".join(gone)
        time.sleep(0.05)


def translated(error: BaseException) -> BaseException:
    """The error of this package's tree that stands behind one of TensorFlow or Horovod, or the error itself."""
    if isinstance(error, (HvdMnistError, OSError)):
        return error  # a broken pipe of our own is no lost rank
    text = str(error)
    if _MISMATCH in text and "One rank" in text:
        line = next(line for line in text.splitlines() if _MISMATCH in line)
        return WorldError(
            f"ranks met in different collectives: {line[line.index(_MISMATCH) :].strip()}",
            "does every rank run the same code, and is no collective under an 'if rank == 0'?",
        )
    if type(error).__name__ == "HorovodInternalError" or any(words in text for words in _PEER_WORDS):
        line = next((line for line in text.splitlines() if any(w in line for w in _PEER_WORDS)), text.split("\n")[0])
        lost = _lost_ranks()
        words = f"lost {lost}" if lost else f"lost the other ranks: {line.strip()}"
        return PeerLost(words, "see the first rank that failed, above")
    if isinstance(error, SystemExit):
        return HvdMnistError(f"left the job by sys.exit({error.code!r}), which the other ranks cannot know")
    return error


@contextmanager
def end_job_on_error(size: Callable[[], int], rank: Callable[[], int]):
    """Around a rank's whole work: an error becomes one line and, among several ranks, the end of the process.

    Args:
        size, rank: asked when an error has happened; size 0 or 1 lets the error through to the caller.
    """
    try:
        with _saying_when_told_to_stop(size, rank):
            yield
    except Preempted as stopped:
        # All ranks have left the job together. Launchers that are stopped themselves give them few seconds to end.
        if not stopped.quiet:
            print(f"hvd-mnist: {stopped}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(stopped.exit_status)
    except (Exception, SystemExit) as error:
        if size() <= 1:
            raise
        shown = explained(error)
        known = isinstance(shown, HvdMnistError)
        if not known:
            traceback.print_exc()
        line = shown if known else f"{type(error).__name__}: {error}"
        print(f"hvd-mnist: error: rank {rank()} {place()}: {line}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        if isinstance(shown, PeerLost):
            time.sleep(LINGER_SECONDS)
        os._exit(_status(error, shown))


def explained(error: BaseException) -> BaseException:
    """``translated``; where a rank stalled and this job is watched, with the report of the stall."""
    if _watch is not None:
        _watch.waited(stall.collective_in(error, world.last_gathered), error)
    return _with_report(translated(error))


def _with_report(error: BaseException) -> BaseException:
    """A lost peer whose process is still there has stalled: name it, and show where it stands."""
    if _watch is None or not isinstance(error, PeerLost) or "is gone" in error.message:
        return error
    line, stacks = _watch.report([host for host, _ in _processes])
    if stacks:
        print(stacks, end="", file=sys.stderr, flush=True)
    return PeerLost(f"stalled: {line}", "the same command again, once that is mended") if line else error


def _status(error: BaseException, shown: BaseException) -> int:
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code & 0xFF:
        return error.code & 0xFF
    return shown.exit_status if isinstance(shown, HvdMnistError) else 1


@contextmanager
def _saying_when_told_to_stop(size: Callable[[], int], rank: Callable[[], int]):
    """SIGTERM is heard by a thread: the main one may stand in a collective, whose end it would wait for."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    handler = signal.signal(signal.SIGTERM, _leave_it_to_the_thread)
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def listen():
        while number := os.read(read, 1):
            if number[0] != signal.SIGTERM:
                continue
            lost = _lost_ranks(0)
            if size() > 1 and rank() <= 1:
                why = f"; lost {lost}" if lost else ""
                print(f"hvd-mnist: rank {rank()} {place()}: told to stop by SIGTERM{why}", file=sys.stderr, flush=True)
            # Whoever else makes use of the signal wants to save first; that needs all ranks.
            if lost or signal.getsignal(signal.SIGTERM) is _leave_it_to_the_thread:
                os._exit(128 + signal.SIGTERM)
        os.close(read)

    threading.Thread(target=listen, daemon=True, name="SIGTERM").start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, handler)
        os.close(write)


def _leave_it_to_the_thread(*_) -> None:
    """Python's handler: without one, the signal would end the process before a word is said."""
