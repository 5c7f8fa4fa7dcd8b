"""The times of each step on this rank, for whoever wants to know where a step's time goes.

    times = StepTimes()
    model.fit(..., callbacks=[times, *others])      first of all callbacks: the others' work is then not in a step
    times.rows()                                    one row a step, columns as in COLUMNS

What the columns mean: hvd_mnist/bench/step_parts.py, which makes parts of a step of them.
"""

from __future__ import annotations

import time
from collections import deque

import keras

from hvd_mnist.keras.step_clock import clock_of

COLUMNS = ("epoch", "begin", "batch", "ready", "exchanged", "end", "cpu")
MOST_STEPS = 2000  # kept: the last ones


class StepTimes(keras.callbacks.Callback):
    """Keeps, for each of the last MOST_STEPS steps: epoch; when Keras began it, when its batch was there, when this
    rank's gradients were ready, when they were exchanged, when Keras had its result (all in seconds since 1970, this
    host's clock); and the CPU seconds of the process until then, all threads."""

    def __init__(self):
        super().__init__()
        self._rows: deque[tuple] = deque(maxlen=MOST_STEPS)
        self._epoch = 0

    def set_model(self, model):
        super().set_model(model)
        self._clock = clock_of(model)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self._begin = time.time()

    def on_train_batch_end(self, batch, logs=None):
        end, cpu = time.time(), time.process_time()
        self._rows.append((self._epoch, self._begin, *self._clock.stamps(), end, cpu))

    def rows(self) -> list[tuple]:
        """In the order of the steps."""
        return list(self._rows)
