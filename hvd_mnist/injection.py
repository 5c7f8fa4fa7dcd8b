"""Acts out the faults of ``hvd_mnist/faults.py`` that need the model, the batches or a collective."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from hvd_mnist.faults import Faults
from hvd_mnist.runtime import world


class InjectFaults(keras.callbacks.Callback):
    """Faults in training steps. Put it behind ``progress``.

    Args:
        faults: this rank's.
        progress: the trainer's ``Progress``, which counts the steps.
    """

    def __init__(self, faults: Faults, progress):
        super().__init__()
        self.faults, self.progress = faults, progress
        self._step_function = None

    def on_train_begin(self, logs=None):
        if self.faults.has("skip-collective", "step") and self.model.train_function is not self._step_function:
            self._step_function = self.model.train_function = self._leaving_out(self.model.train_function)

    def on_train_batch_begin(self, batch, logs=None):
        step = self.progress.step + 1
        self.faults.reach("step", step)
        if self.faults.due("diverge", "step", step):
            change_one_weight(self.model)

    def _leaving_out(self, step_function):
        """The training step, but at its step the batch is read and not trained on: no gradient is exchanged."""

        def step_or_not(iterator):
            if self.faults.due("skip-collective", "step", self.progress.step + 1):
                next(iterator)
                return {"loss": np.float32(0), "accuracy": np.float32(0)}
            return step_function(iterator)

        return step_or_not


def reach(faults: Faults, at: str, step: int, model) -> None:
    """This rank stands before the first step, in a save or in an evaluation."""
    faults.reach(at, step)
    if faults.due("diverge", at, step):
        change_one_weight(model)
    if at != "step" and faults.due("skip-collective", at, step):
        leave_out_next_gather()


def change_one_weight(model) -> None:
    """Add 0.001 to the first element of the first trainable variable, on this rank alone."""
    variable = model.trainable_variables[0]
    value = np.array(variable)
    value.reshape(-1)[0] += 1e-3
    variable.assign(value)


def leave_out_next_gather() -> None:
    """The next ``world.gather_json`` of this rank meets nobody: it takes its own value for that of every rank."""
    true_gather = world.gather_json

    def own_value(value, name):
        import horovod.tensorflow as hvd

        world.gather_json = true_gather
        return [value] * hvd.size()

    world.gather_json = own_value


def in_batches(faults: Faults, dataset: tf.data.Dataset, first: int, accumulate: int) -> tf.data.Dataset:
    """A training set with the faults of its batches in it; the same data set where there are none.

    Args:
        first: the step, counted from 1 over the whole run, of the data set's first batch.
        accumulate: batches in a step.
    """
    if not (faults.has("nan", "step") or faults.has("data-error", "step")):
        return dataset

    def spoil(number, x):
        step = first + int(number) // accumulate
        faults.read_data("step", step)
        return _with_nan(x) if faults.due("nan", "step", step) else x

    return dataset.enumerate().map(lambda number, batch: (_spoiled(spoil, number, batch[0]), *batch[1:]))


def in_evaluation(faults: Faults, dataset: tf.data.Dataset, step) -> tf.data.Dataset:
    """The same for a test set. ``step()`` is the step after which it is read."""
    if not (faults.has("nan", "evaluate") or faults.has("data-error", "evaluate")):
        return dataset

    def spoil(_, x):
        faults.read_data("evaluate", step())
        return _with_nan(x) if faults.due("nan", "evaluate", step()) else x

    return dataset.map(lambda x, *rest: (_spoiled(spoil, 0, x), *rest))


def _spoiled(spoil, number, x):
    return tf.ensure_shape(tf.numpy_function(spoil, [number, x], x.dtype), x.shape)


def _with_nan(x):
    x = x.copy()
    x.reshape(-1)[0] = np.nan
    return x
