"""Which rank makes the others wait, while they train.

In a synchronous step every rank takes as long as the slowest, so a rank's time for a step says nothing of the rank.
Here each rank takes the time that it needs without the others: from the end of one exchange of gradients to the
beginning of the next (``StepClock``). Every WINDOW steps its mean goes along with the gradients (``Votes``), one number
a rank, and rank 0 compares them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import horovod.tensorflow as hvd
import keras

from hvd_mnist.keras.step_clock import clock_of
from hvd_mnist.keras.votes import votes_of
from hvd_mnist.runtime import world

WINDOW = 10  # steps over which a rank's time is averaged
WINDOWS = 3  # in a row, before a rank is named
FACTOR = 1.5  # of the median of the other ranks


@dataclass
class Slow:
    """A rank that is slow: since how many windows, and in the last one by which factor."""

    rank: int
    windows: int
    factor: float


class Judge:
    """Names a rank that took ``factor`` times the others' median in ``windows`` windows in a row. Pure.

    A rank is named again each time that as many windows have passed, and once more, with factor 0, when it keeps up.
    """

    def __init__(self, size: int, factor: float = FACTOR, windows: int = WINDOWS):
        self.factor, self.windows = factor, windows
        self._slow_for = [0] * size

    def look(self, seconds: list[float]) -> list[Slow]:
        """Take in one window: each rank's own time; ranks to speak of. Where one told nothing (0), it is no window."""
        if len(seconds) < 2 or not all(value > 0 for value in seconds):
            return []
        named = []
        for rank, value in enumerate(seconds):
            factor = value / statistics.median(seconds[:rank] + seconds[rank + 1 :])
            before = self._slow_for[rank]
            self._slow_for[rank] = before + 1 if factor >= self.factor else 0
            if self._slow_for[rank] and self._slow_for[rank] % self.windows == 0:
                named.append(Slow(rank, self._slow_for[rank], factor))
            elif not self._slow_for[rank] and before >= self.windows:
                named.append(Slow(rank, before, 0.0))
        return named


class StragglerCallback(keras.callbacks.Callback):
    """Says which rank is slow, on rank 0, while ``model.fit`` runs.

    Args:
        say: gets the line.
        note: gets each ``Slow`` and the rank's host too.
        window, windows, factor: steps in a window; windows in a row, of at least that factor, that make a rank slow.
    """

    def __init__(
        self,
        say: Callable[[str], None] = print,
        note: Callable[[Slow, str], None] | None = None,
        window: int = WINDOW,
        windows: int = WINDOWS,
        factor: float = FACTOR,
    ):
        super().__init__()
        self.say, self.note, self.window = say, note, window
        self._rule = {"windows": windows, "factor": factor}
        self._steps, self._judge = 0, None

    def set_model(self, model):
        super().set_model(model)
        if self._judge is None:  # before the first step is traced
            self._clock, self._votes = clock_of(model), votes_of(model.optimizer, type(self).__name__)
            self._votes.share_figures(hvd.rank(), hvd.size())
            self._hosts = world.gather_json(world.hostname(), "stragglers")
            self._judge = Judge(hvd.size(), **self._rule)

    def on_epoch_begin(self, epoch, logs=None):
        self._clock.take()  # what ranks did between two epochs is no step

    def on_train_batch_end(self, batch, logs=None):
        self._steps += 1
        if self._steps % self.window:
            return
        if self._steps > self.window and hvd.rank() == 0:
            for slow in self._judge.look(self._votes.told()):
                self.say(in_words(slow, self._hosts[slow.rank], slow.windows * self.window))
                if self.note is not None:
                    self.note(slow, self._hosts[slow.rank])
        self._votes.tell(self.own_seconds())

    def own_seconds(self) -> float:
        """This rank's own part of a step in the window that ends here, in the mean; 0 where there was no step."""
        return self._clock.take() or 0.0


def in_words(slow: Slow, host: str, steps: int) -> str:
    """The line. ``steps``: for how many it has been slow."""
    if not slow.factor:
        return f"straggler: rank {slow.rank} on {host} keeps up again, after {steps} slow steps"
    return (
        f"straggler: rank {slow.rank} on {host} takes {slow.factor:.1f} times as long as the others for its own part "
        f"of a step, and they wait for it; for {steps} steps now"
    )
