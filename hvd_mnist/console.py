"""What people see while a job runs: rank 0 speaks, every rank keeps a log file.

Lines go through ``Console.say``. On a terminal the progress is a moving bar; elsewhere (under a launcher, in a
log) it is a line every few seconds. (mpirun shows its ranks a terminal of its own where there is none.)
"""

from __future__ import annotations

import io
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

QUIET_SECONDS = 5.0  # between two progress lines where there is no terminal
LEVELS = ("debug", "info", "warning")
MOST_WARNINGS = 20  # of a rank, that are kept until all ranks' are put together; its log has them all


def count(number: int, word: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def clock(seconds: float) -> str:
    """0:09, 12:34, 1:02:03."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def progress_words(
    epoch: int,
    loss: float,
    accuracy: float,
    rate: float,
    speed: float | None = None,
    communication: float | None = None,
) -> str:
    """``epoch 2  loss 0.3193  accuracy 90.23%  rate 0.0042  7837 images/s  communication 12%``; what is None is left
    out. ``epoch`` counts from 0; ``communication`` is a share, 0..1."""
    known = "" if speed is None else f"  {speed:.0f} images/s"
    known += "" if communication is None else f"  communication {communication:.0%}"
    return f"epoch {epoch + 1}  loss {loss:.4f}  accuracy {accuracy:.2%}  rate {rate:.3g}{known}"


# By itself only on CPUs with AVX-512 VNNI or newer; without those too a step of the cnn takes a fifth less.
FAST_TENSORFLOW = {"TF_ENABLE_ONEDNN_OPTS": "1"}


def library_defaults(level: str = "info") -> dict[str, str]:
    """Variables for TensorFlow and Horovod, before either is imported: as talkative as --log-level asks of us. Pure."""
    if level == "debug":
        return {**FAST_TENSORFLOW, "TF_CPP_MIN_LOG_LEVEL": "0", "HOROVOD_LOG_LEVEL": "info"}
    return {**FAST_TENSORFLOW, "TF_CPP_MIN_LOG_LEVEL": "2"}  # TensorFlow's greeting, once per rank, hides our lines


def ranks_named(ranks) -> str:
    """rank 0; ranks 0, 2, 3 (the first eight)."""
    ranks = list(ranks)
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}"


def folded(told: Sequence[Sequence[str]]) -> list[str]:
    """One line for each warning that not rank 0 alone has given, with the ranks that did. Pure.

    Args:
        told: for each rank, its warnings; rank 0 has shown its own.
    """
    by_text: dict[str, list[int]] = {}
    for rank, texts in enumerate(told):
        for text in texts:
            by_text.setdefault(text, []).append(rank)
    return [f"{ranks_named(ranks)} warned: {text}" for text, ranks in by_text.items() if ranks != [0]]


class Console:
    """A rank's voice.

    Args:
        rank: this rank.
        speaks: write to standard output; rank 0 and, on request, all ranks.
        prefix: put before every line, to tell ranks apart when all speak.
        bar: show a moving bar where standard output is a terminal.
        level: "info" shows what is said; "warning" shows warnings alone; "debug" shows what is only logged, too. The
            log file holds everything at every level.
    """

    def __init__(self, rank: int = 0, speaks: bool = True, prefix: str = "", bar: bool = True, level: str = "info"):
        self.rank, self.speaks, self.prefix, self.level = rank, speaks, prefix, level
        self.bar = bar and level != "warning"
        self._log = None
        self._progress = None
        self._total = 0
        self._last_line = 0.0
        self._warned: list[str] = []
        self._python_shows = None

    def open_log(self, path: Path) -> None:
        """Also append every line to ``path``, with the time. Where that fails, say so and go on."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._log = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            self.warn(f"no log file {path}: {error.strerror}; going on without")

    def say(self, text: str = "") -> None:
        """Print (where this rank speaks, and --log-level lets it) and log."""
        self._write(text)
        if self.level != "warning":
            self._print(text)

    def warn(self, text: str) -> None:
        """As ``say``, at every level: something is not as it should be, and the job goes on. A rank that does not
        speak keeps it for ``take_warnings``. In the log it stands after "warning: ", by which a report finds it."""
        self._write(f"warning: {text}")
        self._print(text)
        if (self.rank == 0 or not self.speaks) and text not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.append(text)

    def take_warnings(self) -> list[str]:
        """What this rank has warned of since the last call."""
        warned, self._warned = self._warned, []
        return warned

    def show_folded(self, told: Sequence[Sequence[str]]) -> None:
        """On rank 0: show the warnings of all ranks (each one's ``take_warnings``), each once. Their logs have them."""
        if self.rank == 0:
            for line in folded(told):
                self._print(line)

    def hear_python(self) -> None:
        """Python's warnings become ``warn``, until ``close``: each rank's libraries would speak on standard error."""
        self._python_shows = warnings.showwarning

        def show(message, category, filename, lineno, file=None, line=None):
            self.warn(f"{category.__name__}: {message} ({Path(filename).name}:{lineno})")

        warnings.showwarning = show

    def log(self, text: str) -> None:
        """Log only; at the level "debug" print too."""
        self._write(text)
        if self.level == "debug":
            self._print(text)

    def _print(self, text: str) -> None:
        if not self.speaks:
            return
        shown = "\n".join(self.prefix + line for line in text.split("\n"))
        if self._progress is not None:
            self._progress.console.print(shown, highlight=False, markup=False)
        else:
            print(shown, flush=True)

    def _write(self, text: str) -> None:
        if self._log is not None:
            with suppress(OSError):  # a full disk must not end the training
                self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def table(self, title: str, rows: list[tuple], header: tuple[str, ...] = (), width: int = 100) -> None:
        """A small table: people compare columns."""
        from rich import box
        from rich.console import Console as Rich
        from rich.table import Table

        table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=bool(header))
        for name in header or [""] * len(rows[0]):
            table.add_column(name)
        for row in rows:
            table.add_row(*(str(cell) for cell in row))
        rich = Rich(width=width, record=True, file=io.StringIO())
        rich.print(table)
        self.say(rich.export_text(styles=False).rstrip())

    @contextmanager
    def progress(self, total: int, done: int = 0, unit: str = "steps"):
        """A progress display that is gone when an error is shown."""
        self.start_progress(total, done, unit)
        try:
            yield
        finally:
            self.stop_progress()

    def start_progress(self, total: int, done: int = 0, unit: str = "steps") -> None:
        """Begin a progress display of ``total`` units."""
        self._total = total
        if not (self.speaks and self.bar and sys.stdout.isatty()):
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn()
        )
        self._progress.start()
        self._task = self._progress.add_task("", total=total, completed=done)

    def advance(self, done: int, text: str, seconds_left: float | None = None) -> None:
        """Show that ``done`` units are done, with a few words on how it goes (and the seconds to the end, if known)."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, description=text)
        elif time.monotonic() - self._last_line > QUIET_SECONDS:
            self._last_line = time.monotonic()
            left = "" if seconds_left is None else f"  ETA {clock(seconds_left)}"  # the bar has a column for it
            self.say(f"step {done}/{self._total}  {text}{left}")

    def stop_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def close(self) -> None:
        self.stop_progress()
        if self._python_shows is not None:
            warnings.showwarning, self._python_shows = self._python_shows, None
        if self._log is not None:
            with suppress(OSError):
                self._log.close()
            self._log = None
