"""Which rank makes the others wait, while they train.

In a synchronous step every rank takes as long as the slowest, so a rank's time for a step says nothing of the rank.
Here each rank takes the time that it needs without the others: from the end of one exchange of gradients to the
beginning of the next (``StepClock``). Every WINDOW steps its mean goes along with the gradients (``Votes``), one number
a rank, and rank 0 compares them (``runtime/slow_ranks.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import horovod.tensorflow as hvd
import keras

from hvd_mnist.keras.step_clock import clock_of
from hvd_mnist.keras.votes import votes_of
from hvd_mnist.runtime import world
from hvd_mnist.runtime.slow_ranks import FACTOR, WINDOWS, Judge, Slow, in_words

WINDOW = 10  # steps over which a rank's time is averaged


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
