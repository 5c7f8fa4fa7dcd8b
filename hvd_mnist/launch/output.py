"""Output of many ranks, line by line: whose line is it, which lines are the same, and a file for each rank."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

KEPT_LINES = 200  # of each rank, to show when it fails
MOST_HELD = 2000  # lines held back for folding
MOST_BYTES = 1 << 16  # of one line


class Lines:
    """Bytes of one stream become (rank, text); rank is None for the launcher's own lines.

    Args:
        tag: regular expression of the launcher's mark, rank as group 1; None where all lines are of rank 0.
    """

    def __init__(self, tag: str | None):
        self._tag = re.compile(tag) if tag else None
        self._rest = b""
        self._begun: dict[int, str] = {}  # of each rank, a line that has not ended

    def feed(self, data: bytes) -> list[tuple[int | None, str]]:
        """Whole lines of what has come so far; with b"" (the end) the rest too."""
        parts = (self._rest + data).split(b"\n")
        self._rest = parts.pop()
        if not data or len(self._rest) > MOST_BYTES:
            parts += [self._rest] if self._rest else []
            self._rest = b""
        found = [line for part in parts for line in self._owned(part.decode("utf-8", "replace").rstrip("\r"))]
        if not data:
            found += [(rank, text) for rank, text in self._begun.items() if text]
            self._begun.clear()
        return found

    def _owned(self, line: str) -> list[tuple[int | None, str]]:
        if self._tag is None:
            return [(0, line)]
        marks = list(self._tag.finditer(line))
        if not marks or line[: marks[0].start()].strip():
            return [(None, line)]
        # Open MPI marks each piece of output that it reads: in one line, all pieces but the last go on later.
        for mark, following in zip(marks, marks[1:], strict=False):
            self._begun[int(mark[1])] = self._begun.get(int(mark[1]), "") + line[mark.end() : following.start()]
        rank = int(marks[-1][1])
        text = line[marks[-1].end() :].removesuffix(marks[-1].group())  # Hydra puts its mark before a lone line end too
        return [(rank, self._begun.pop(rank, "") + text)]


@dataclass
class _Held:
    text: str
    stream: int
    since: float
    ranks: list[int | None] = field(default_factory=list)


class Fold:
    """Holds lines for a moment, so that the same line of several ranks is shown once. Each rank's order is kept.

    Args:
        seconds: how long a line waits for its likes.
    """

    def __init__(self, seconds: float = 0.3):
        self._seconds = seconds
        self._held: deque[_Held] = deque()
        self._taken = 0  # lines that have left the queue
        self._last: dict[tuple[int | None, int], int] = {}  # (rank, stream) -> number of its newest line

    def add(self, rank: int | None, stream: int, text: str, now: float) -> None:
        """Take in one line of a rank (None: the launcher) on stream 1 or 2."""
        start = max(0, self._last.get((rank, stream), -1) - self._taken + 1)
        if rank is not None:
            for index in range(start, len(self._held)):
                held = self._held[index]
                if held.text == text and held.stream == stream and None not in held.ranks:
                    held.ranks.append(rank)
                    self._last[rank, stream] = self._taken + index
                    return
        self._held.append(_Held(text, stream, now, [rank]))
        self._last[rank, stream] = self._taken + len(self._held) - 1

    def ready(self, now: float, all_of_them: bool = False) -> Iterator[tuple[tuple[int | None, ...], int, str]]:
        """(ranks, stream, text) of lines that have waited long enough, in order."""
        while self._held and (all_of_them or len(self._held) > MOST_HELD or now - self._held[0].since >= self._seconds):
            held = self._held.popleft()
            self._taken += 1
            yield tuple(held.ranks), held.stream, held.text


def shown(ranks: tuple[int | None, ...], text: str, size: int, prefixed: bool) -> str:
    """A line as people see it: ``[0-3] text`` with prefixes, ``text  (4 ranks)`` without."""
    if ranks == (None,):
        return text
    if prefixed:
        return f"[{spans(ranks)}] {text}"
    return f"{text}  ({len(ranks)} ranks)" if len(ranks) > 1 and text.strip() else text


def spans(ranks: tuple[int | None, ...]) -> str:
    """0, 1, 2, 5 become ``0-2,5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in runs)


class RankLogs:
    """``FOLDER/rank-N.out.log`` for each rank, and the last lines of each in memory. rank-N.log is the trainer's own.

    What the launcher itself says is in ``launcher.log``; its rank is None.

    Files are opened for each batch of lines, so that a thousand ranks need no thousand open files. The first file
    that cannot be written is told by ``broken``; the job goes on.
    """

    def __init__(self, folder: Path):
        self.folder, self.broken = folder, ""
        self._pending: dict[int | None, list[str]] = {}
        self.last: dict[int | None, deque[str]] = {}

    def path(self, rank: int | None) -> Path:
        return self.folder / ("launcher.log" if rank is None else f"rank-{rank}.out.log")

    def add(self, rank: int | None, text: str) -> None:
        self._pending.setdefault(rank, []).append(text)
        self.last.setdefault(rank, deque(maxlen=KEPT_LINES)).append(text)

    def flush(self) -> None:
        pending, self._pending = self._pending, {}
        for rank, lines in pending.items():
            if self.broken:
                return
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with self.path(rank).open("a", encoding="utf-8") as file:
                    file.write("".join(f"{line}\n" for line in lines))
            except OSError as error:
                self.broken = f"no more log files in {self.folder}: {error.strerror}; the job goes on"
