"""Stop, or save, on all ranks after the same step, when any one of them is asked to. docs/preemption.md.

Asked by a signal to any rank (SIGTERM, or SIGUSR1 from Slurm's ``--signal``), by a file STOP or SAVE in a folder
that rank 0 looks into, or by a time limit on rank 0's clock. The wish rides with the gradients of the next step
(votes.py), so all ranks hear of it after the same step and no rank waits for one that has gone.
"""

from __future__ import annotations

import contextlib
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import horovod.tensorflow as hvd
import keras

from hvd_mnist.keras.votes import Votes, votes_of
from hvd_mnist.runtime import world

LOOK_SECONDS = 1.0  # between two looks at the folder: it may be a busy network file system
STOP, SAVE = "STOP", "SAVE"


class PreemptionCallback(keras.callbacks.Callback):
    """Belongs on every rank. Use it as a context too (``with callback:``) to catch signals between two fits.

    Args:
        save: called with no argument on every rank after the same step; rank 0 writes, the others wait for it.
        stop: called on every rank once ``save`` is done, with the reason; None ends ``fit`` (stop_training).
        folder: rank 0 looks there once a second. STOP: save and stop; STOP with the word "now" in it: stop
            without saving; SAVE: save and go on. The file is deleted when it has been obeyed.
        signals: what asks a rank to save and stop.
        time_limit: seconds from now, by rank 0's clock, after which to save and stop.

    Attributes:
        reason: why training stopped, the same on every rank, or None.

    Raises:
        UsageError: after the first step, where the optimizer carries no votes (not distributed, Adasum, a
            process set).
    """

    def __init__(
        self,
        save: Callable[[], None] | None = None,
        stop: Callable[[str], None] | None = None,
        *,
        folder: str | Path | None = None,
        signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGUSR1),
        time_limit: float | None = None,
    ):
        super().__init__()
        self.save, self.stop, self.signals = save, stop, signals
        self.folder = None if folder is None else Path(folder)
        self.reason: str | None = None
        self._until = None if time_limit is None else time.monotonic() + time_limit
        self._asked: dict[str, str] = {}  # kind of vote -> who or what asked this rank
        self._next_look = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> PreemptionCallback:
        for number in self.signals:
            try:
                self._before[number] = signal.signal(number, self._on_signal)
            except ValueError:  # only the main thread may
                warnings.warn("PreemptionCallback: not in the main thread, so signals are not caught", stacklevel=2)
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked.setdefault("stop", signal.Signals(number).name)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._mine_to_undo = not self._before
        if self._mine_to_undo:
            self.__enter__()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._mine_to_undo:
            self.__exit__()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        now = time.monotonic()
        if now >= self._next_look and hvd.rank() == 0:
            self._next_look = now + LOOK_SECONDS
            self._look(now)
        for kind in self._asked:
            self._votes.vote(kind)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.act()

    def act(self) -> None:
        """Do what the last step's votes ask for; every rank must call it after the same step."""
        heard = self._votes.heard()
        if not {"save", "stop", "quit"}.intersection(heard):
            return
        told = world.gather_json([world.hostname(), self._asked], "preemption")
        self._votes.clear()
        if self.save is not None and "quit" not in heard:
            self.save()
        stops = [kind for kind in ("quit", "stop") if kind in heard]
        self._forget([*stops, "save"])
        if stops:
            rank, host, why = next(
                (rank, host, asked[stops[0]]) for rank, (host, asked) in enumerate(told) if stops[0] in asked
            )
            self.reason = f"{why} on rank {rank}, {host}"
            if self.stop is not None:
                self.stop(self.reason)
            else:
                self.model.stop_training = True

    @property
    def _votes(self) -> Votes:
        return votes_of(self.model.optimizer, type(self).__name__)

    def _look(self, now: float) -> None:
        if self._until is not None and now >= self._until:
            self._asked.setdefault("stop", "time is up")
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            word = (self.folder / STOP).read_text(encoding="utf-8", errors="replace").strip()
            kind = "quit" if word.lower() == "now" else "stop"
            self._asked.setdefault(kind, f"the file {self.folder / STOP}")
        if (self.folder / SAVE).exists():
            self._asked.setdefault("save", f"the file {self.folder / SAVE}")

    def _forget(self, kinds: list[str]) -> None:
        """What has been done is asked for no longer: neither by a vote nor by a file."""
        for kind in kinds:
            if self._asked.pop(kind, None) is not None:
                self._votes.vote(kind, False)
            if self.folder is not None and hvd.rank() == 0:
                with contextlib.suppress(OSError):
                    (self.folder / (SAVE if kind == "save" else STOP)).unlink(missing_ok=True)
