"""When a job stalls: which ranks are missing, in which collective, and what each of them was doing.

A rank that has not moved for a while has its Python stacks written into its own log. A thread of Python does it.
Where none can run, because native code holds the interpreter, a thread in C does (faulthandler): it reads stacks
without the interpreter's lock, so it must never do so while Python runs; it would crash the rank (seen: SIGSEGV in
the middle of a dump). When Horovod gives the waiting up, every rank that waited says so in its log. What is left are
logs that end in a stack: those are the missing ranks.
"""

from __future__ import annotations

import faulthandler
import re
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.console import ranks_named

MOST_FRAMES = 15
TAIL_BYTES = 1 << 16
NO_PYTHON = 3  # times the watch's seconds without Python running: then the thread in C may read stacks
SETTLE_SECONDS = 1.0  # for the other ranks that waited to say so
_STACK = re.compile(r"^Timeout \(\d+:\d+:\d+", re.MULTILINE)
_SAID = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)", re.MULTILINE)
_WAITED = "waited for other ranks "
_NOT_THE_USERS = ("<string>", "/site-packages/", "/dist-packages/", "hvd_mnist/runtime/", "hvd_mnist/keras/")


class Watch:
    """Have this rank's stacks written when it stands still.

    Args:
        folder: of the logs; this rank's is ``FOLDER/rank-R.log``.
        rank, size: this rank, and how many there are.
        seconds: standing still for so long is worth a stack; in seconds, at least 1.
    """

    def __init__(self, folder: Path, rank: int, size: int, seconds: float):
        self.folder, self.rank, self.size, self.seconds = Path(folder), rank, size, seconds
        self._file = None
        self._moved, self._written = 0.0, False
        self._using_file = threading.Lock()
        self._over = threading.Event()

    def start(self) -> None:
        """Begin to watch. Where the log cannot be written, there is no watch."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = log_of(self.folder, self.rank).open("a", encoding="utf-8", buffering=1)
        except OSError:
            return
        self.moved()
        threading.Thread(target=self._look, daemon=True, name="stall watch").start()

    def moved(self) -> None:
        """This rank has moved."""
        now = time.monotonic()
        if self._written:
            self._written = False
            self.say(f"goes on after {now - self._moved:.0f} s")
        self._moved = now

    def _look(self) -> None:
        while not self._over.wait(min(1.0, self.seconds / 4)):
            with self._using_file:
                if self._over.is_set():
                    return
                faulthandler.dump_traceback_later(NO_PYTHON * self.seconds, file=self._file)
                if not self._written and time.monotonic() - self._moved > self.seconds:
                    self._written = True
                    self._file.write(f"Timeout (0:00:{self.seconds:02.0f})!\n{stacks()}")

    def say(self, text: str) -> None:
        """One line into the log."""
        if self._file is not None:
            self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def stop(self) -> None:
        """Stop watching."""
        self._rest()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rest(self) -> None:
        self._over.set()
        with self._using_file:
            faulthandler.cancel_dump_traceback_later()

    def waited(self, collective: str, error: BaseException) -> None:
        """Say in the log that this rank waited in vain, in which collective and where."""
        if self._file is not None:
            self._rest()
            self.say(f"{_WAITED}in {collective} at {where(error)}")

    def report(self, hosts: list[str]) -> tuple[str, str]:
        """After ``waited``: (one line or "", stacks of the missing ranks for one rank to print or "")."""
        if self._file is None:
            return "", ""
        time.sleep(SETTLE_SECONDS)
        states = [state_of(log_of(self.folder, rank)) for rank in range(self.size)]
        waiting = [rank for rank, state in enumerate(states) if state.waited]
        line, stacks = in_words(states, hosts, self.folder)
        return line, stacks if waiting and waiting[0] == self.rank else ""


def stacks() -> str:
    """The stacks of all threads but this one, innermost call first, the main thread's last; as faulthandler writes."""
    frames, me, main = sys._current_frames(), threading.get_ident(), threading.main_thread().ident
    lines = []
    for thread in sorted(frames.keys() - {me}, key=lambda thread: thread == main):
        lines.append(f"Thread 0x{thread:016x} (most recent call first):")
        for frame, line in traceback.walk_stack(frames[thread]):
            lines.append(f'  File "{frame.f_code.co_filename}", line {line} in {frame.f_code.co_name}')
    return "\n".join(lines) + "\n"


def log_of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


@dataclass(frozen=True)
class State:
    """How a rank's log ends: in a stack, in the line of a rank that waited, or in neither."""

    stack: str = ""
    waited: str = ""


def state_of(log: Path) -> State:
    """Read the end of a rank's log; nothing where it cannot be read (it may be on another host)."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return State()
    said = [found[1] for found in _SAID.finditer(text)]
    if said and said[-1].startswith(_WAITED):
        return State(waited=said[-1].removeprefix(_WAITED))
    stacks = list(_STACK.finditer(text))
    if stacks and not _SAID.search(text, stacks[-1].end()):
        return State(stack=main_stack(text[stacks[-1].end() :]))
    return State()


def main_stack(text: str) -> str:
    """Of all threads' stacks, as faulthandler writes them, the main thread's: it stands last."""
    last = re.split(r"^(?:Current thread|Thread) 0x[^\n]*\n", text, flags=re.MULTILINE)[-1]
    frames = [line for line in last.splitlines() if line.startswith("  File ")]
    more = len(frames) - MOST_FRAMES
    return "\n".join(frames[:MOST_FRAMES] + ([f"  ... and {more} more"] if more > 0 else []))


def in_words(states: list[State], hosts: list[str], folder: Path) -> tuple[str, str]:
    """(one line, the stacks): who is missing, and who waited where. Pure."""

    def at(rank):
        return f"rank {rank} on {hosts[rank]}" if rank < len(hosts) else f"rank {rank}"

    missing = [rank for rank, state in enumerate(states) if state.stack]
    places: dict[str, list[int]] = {}
    for rank, state in enumerate(states):
        if state.waited:
            places.setdefault(state.waited, []).append(rank)
    waits = "; ".join(f"{ranks_named(ranks)} waited {place}" for place, ranks in list(places.items())[:4])
    if missing:
        who = ", ".join(at(rank) for rank in missing[:8]) + (" ..." if len(missing) > 8 else "")
        line = f"{who} did not come: {waits}; its stack is in {log_of(folder, missing[0])}"
        stacks = "".join(
            f"-- where {at(rank)} stood (innermost call first):\n{states[rank].stack}\n" for rank in missing[:8]
        )
        return line, stacks
    if len(places) > 1:
        return f"ranks waited for each other in different places: {waits}", ""
    return (f"{waits}; no log of the others ends in a stack in {folder}" if waits else ""), ""


def where(error: BaseException) -> str:
    """``FILE:LINE in FUNCTION`` of the innermost frame that is not of a library: where a rank waited."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in _NOT_THE_USERS)]
    frame = (own or frames or [None])[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" if frame else "an unknown place"


def collective_in(error: BaseException, last_gathered: str) -> str:
    """The collective that an error of TensorFlow names, else that of ``world.gather_json``."""
    nodes = re.findall(r"\{\{node ([^}]+)\}\}", str(error))
    name = nodes[-1].rsplit("/", 1)[-1] if nodes else ""
    if not name or name.startswith("Horovod"):  # outside the training step TensorFlow keeps the names to itself
        name = last_gathered
    return f"'{name}'" if name else "a collective"
