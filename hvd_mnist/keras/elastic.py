"""Elastic training on Keras 3: Horovod's ``hvd.elastic``, the same names and arguments. docs/elastic.md.

    @hvd.elastic.run
    def train(state):
        state.model.fit(..., epochs=10 - state.epoch, callbacks=[
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=10),  # the last of the three
        ])

    train(hvd.elastic.KerasState(model, epoch=0, batch=0))

When a rank is lost, each of the others puts its state back to the last commit, meets those that are left, takes
rank 0's state, and calls the function again; when a host joins or leaves they meet at the next commit. After each
such reset the replicas are proven equal again, as at the start (replicas.py).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import horovod.tensorflow as hvd
import keras
import numpy as np
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.tensorflow.functions import broadcast_object

from hvd_mnist.errors import HvdMnistError, PeerLost, UsageError
from hvd_mnist.keras.broadcast import broadcast_variables
from hvd_mnist.keras.replicas import is_distributed
from hvd_mnist.runtime import ending, world

MEET_SECONDS = 600.0  # as Horovod's launcher waits for new hosts

Result = TypeVar("Result")  # what the decorated function returns

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Decorator: call ``func(state, ...)`` again, from the last commit, whenever ranks are lost or hosts change.

    ``func`` and what stands before it must meet no other rank before ``state`` was synchronised: a rank that joins
    starts at the top, while the others wait for it in that synchronisation.

    Args:
        func: its first argument is a ``KerasState`` (or another of Horovod's states).

    Returns:
        a function with the same arguments, which returns what ``func`` returned in the end.
    """

    @functools.wraps(func)
    def attempt(state: ObjectState, *args: Any, **kwargs: Any) -> Result:
        with _lost_peer_is_horovods_error():
            return func(state, *args, **kwargs)

    again: Callable[..., Result] = run_fn(attempt, _meet_again)
    return again


def _meet_again() -> None:
    """Horovod's launcher waits, without a limit, for every rank that it has not seen end; one that hangs never will."""
    limit = float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT", MEET_SECONDS))
    watch = threading.Timer(limit, _give_up, [limit])
    watch.daemon = True
    watch.start()
    try:
        hvd.shutdown()
        world.join()
    finally:
        watch.cancel()


def _give_up(limit: float) -> None:
    line = PeerLost(
        f"a rank on {world.hostname()} waited {limit:g} s to meet the others again: does one of them hang?",
        "run it again; a new host that needs longer to start: HOROVOD_ELASTIC_TIMEOUT=SECONDS",
    )
    print(f"hvd-mnist: error: {line}", file=sys.stderr, flush=True)
    os._exit(line.exit_status)  # the wait is in C++ and cannot be interrupted


@contextlib.contextmanager
def _lost_peer_is_horovods_error() -> Iterator[None]:
    """A lost rank surfaces as one of TensorFlow's errors, of a kind that depends on the collective and on the place
    where it stood; Horovod's loop knows one class alone."""
    try:
        yield
    except (HorovodInternalError, HostsUpdatedInterrupt, HvdMnistError):
        raise  # a PeerLost that somebody raised on purpose too: he has given up
    except Exception as error:
        if isinstance(ending.translated(error), PeerLost):
            raise HorovodInternalError(str(error)) from error
        raise


class KerasState(ObjectState):
    """A model, its optimizer, and whatever else must be the same on all ranks: ``KerasState(model, epoch=0, batch=0)``.

    Args:
        model: a built Keras model.
        optimizer: by default the one that the model was compiled with; built here where it is not.
        kwargs: further things to keep, as attributes of the state; anything that pickles.

    Raises:
        UsageError: the model is not built, or there is no optimizer.
    """

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None, **kwargs: Any):
        if not model.built:
            raise UsageError("KerasState needs a model that is built", "model.build(input_shape)")
        optimizer = optimizer or getattr(model, "optimizer", None)
        if optimizer is None:
            raise UsageError("KerasState needs an optimizer", "model.compile(optimizer, ...) first, or optimizer=")
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self.model, self.optimizer = model, optimizer
        self._save_variables()
        super().__init__(bcast_object=broadcast_object, get_rank=hvd.rank, **kwargs)

    def save(self) -> None:
        """Keep the present values in this host's memory; what ``restore`` goes back to."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Go back to what was saved last."""
        for variable, value in zip(self._variables(), self._saved_variables, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Take rank 0's values; every rank must call it."""
        with _lost_peer_is_horovods_error():
            broadcast_variables(self._variables(), 0)
            self._save_variables()
            super().sync()

    def reset(self) -> None:
        """After ranks came or went: trace anew what may hold their number, and prove the replicas equal again."""
        self.model.train_function = self.model.test_function = self.model.predict_function = None
        if is_distributed(self.optimizer):
            self.optimizer._exchange.begin_again()

    def _variables(self) -> list[keras.Variable]:
        return [*self.model.variables, *self.optimizer.variables]

    def _save_variables(self) -> None:
        self._saved_variables = [_value(variable) for variable in self._variables()]


def _value(variable: keras.Variable) -> np.ndarray:
    return np.array(variable.numpy())  # a copy: a variable may be updated in place


class CommitStateCallback(keras.callbacks.Callback):
    """Commit the state every so many batches, and at the end of each epoch.

    A commit costs a copy of all variables into this host's memory and one small broadcast.

    Args:
        state: what to commit.
        batches_per_commit: what a lost rank costs at most, in batches.
    """

    def __init__(self, state: ObjectState, batches_per_commit: int = 1):
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.batches_remaining = self.batches_per_commit  # the same on ranks that have just joined

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.batches_remaining -= 1
        epoch_ends = self.model.stop_training or batch + 1 == self.params.get("steps")
        if self.batches_remaining <= 0 and not epoch_ends:  # else on_epoch_end does it, with the new epoch's number
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.batches_remaining = self.batches_per_commit
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keep ``state.batch``: batches of this epoch that are done; 0 between epochs.

    Where the number of batches in an epoch is known (``steps_per_epoch``, or a data set with a length), the first
    epoch after a reset is shorter by those that were done before it. Give ``fit`` a data set that goes on where
    they stopped.

    Args:
        state: has the attribute ``batch``.
    """

    def __init__(self, state: ObjectState):
        super().__init__()
        self.state = state

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._before, self._ended_by_me = self.state.batch, False

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = self._before + batch + 1
        steps = self.params.get("steps")
        if self._before and steps and self.state.batch >= steps and not self.model.stop_training:
            self.model.stop_training = self._ended_by_me = True  # Keras has no other way out of an epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = 0
        if self._ended_by_me:
            self.model.stop_training = self._ended_by_me = False


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keep ``state.epoch``: epochs that are done, over all resets, whatever number ``fit`` begins to count at.

    Args:
        state: has the attribute ``epoch``.
    """

    def __init__(self, state: ObjectState):
        super().__init__()
        self.state = state

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.initial_epoch = self.state.epoch
        self._first: int | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._first = epoch if self._first is None else self._first

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.epoch = self.initial_epoch + epoch - cast(int, self._first) + 1
