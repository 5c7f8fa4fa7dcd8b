"""Horovod's Keras callbacks for Keras 3: the same names, the same arguments.

Every callback here belongs on every rank: each one meets the others in a collective.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from hvd_mnist.errors import UsageError
from hvd_mnist.keras.broadcast import broadcast_variables
from hvd_mnist.keras.nan import TerminateOnNaN
from hvd_mnist.keras.preemption import PreemptionCallback
from hvd_mnist.keras.replicas import ReplicaCheckCallback, is_distributed, layout, local_to_a_rank
from hvd_mnist.keras.statistics import MovingStatisticsCallback
from hvd_mnist.runtime.agreement import agree, software

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "MovingStatisticsCallback",
    "PreemptionCallback",
    "ReplicaCheckCallback",
    "TerminateOnNaN",
]


class BroadcastGlobalVariablesCallback(ReplicaCheckCallback):
    """Give every rank the root's model and optimizer variables before step 1, then prove that they stay equal.

    Horovod's own callback broadcasts after the first batch, when variables surely exist; by then each rank
    has made a step of its own. Here the variables are made to exist first: a model that ``fit`` has not built
    yet is built by tracing the training step, which creates every variable and runs nothing. Before anything, all
    ranks compare versions, code, model, steps and epochs (``hvd_mnist.runtime.agreement``): a difference is one error.

    Args:
        root_rank: the rank whose values all get.
        device: TensorFlow device for the broadcast.
        local_variables: variables that stay each rank's own.
        check_replicas_every: steps between comparisons of all replicas; None compares after the first step
            and after every epoch. See ``hvd_mnist.keras.replicas``.
        tolerance: largest difference that counts as equal.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: keras.Variable | Iterable[keras.Variable] | None = None,
        check_replicas_every: int | None = None,
        tolerance: float = 0.0,
    ):
        local = [] if local_variables is None else local_variables
        local = list(local) if isinstance(local, (list, tuple, set)) else [local]
        super().__init__(every=check_replicas_every, tolerance=tolerance, skip=local)
        self.root_rank, self.device = root_rank, device
        self.broadcast_done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.broadcast_done:
            return
        built = self.model.built and bool(self.model.trainable_variables)
        agree(
            {
                **software(script=True),
                "model": layout(self.model) if built else {},
                "steps": {"steps": self.params.get("steps"), "epochs": self.params.get("epochs")},
            }
        )
        if hvd.size() > 1 and not is_distributed(self.model.optimizer):
            warnings.warn(
                "the model's optimizer is not an hvd.DistributedOptimizer: unless your own train_step averages "
                "gradients, every rank trains alone",
                stacklevel=2,
            )
        if built:
            self.broadcast()
        else:
            self._broadcast_when_built()

    def broadcast(self) -> None:
        """Broadcast now; the model must be built."""
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        variables, skip = [*self.model.variables, *optimizer.variables], self._skip | local_to_a_rank(optimizer)
        broadcast_variables([v for v in variables if id(v) not in skip], self.root_rank, device=self.device)
        self.broadcast_done = True

    def _broadcast_when_built(self) -> None:
        step = self.model.train_function

        def build_broadcast_and_step(iterator: Iterator[Any]) -> Any:
            traceable = step if hasattr(step, "get_concrete_function") else tf.function(self._one_step)
            traceable.get_concrete_function(iterator)  # creates every variable, runs nothing
            self.model.train_function = step
            self.broadcast()
            return step(iterator)

        self.model.train_function = build_broadcast_and_step

    def _one_step(self, iterator: Any) -> Any:
        return self.model.train_step(iterator.get_next())


class MetricAverageCallback(keras.callbacks.Callback):
    """Replace each metric in an epoch's logs by its mean over ranks, before any other callback reads it.

    The mean is weighted by the number of samples behind each rank's value wherever Keras kept that number
    (``loss`` and every ``Mean`` metric); other values count one per rank, as in Horovod. Put this callback
    first in the list.

    Args:
        device: TensorFlow device for the allreduce.
    """

    def __init__(self, device: str = ""):
        super().__init__()
        self.device = device
        self._weights: dict[str, float] = {}

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._weights = {}

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._weights.update(self._sample_counts(""))  # validation is about to reset the counts of training

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._weights.update(self._sample_counts("val_"))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not logs:
            return
        for name, count in self._sample_counts("").items():
            self._weights.setdefault(name, count)
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        weights = np.array([self._weights.get(name, 1.0) for name in names], np.float64)
        sums = np.array([float(logs[name]) for name in names], np.float64) * weights
        with tf.device(self.device):
            total = hvd.allreduce(np.stack([sums, weights]), op=hvd.Sum, name="MetricAverageCallback").numpy()
        for name, value, weight in zip(names, *total, strict=True):
            logs[name] = float(value / weight) if weight else float("nan")

    def _sample_counts(self, prefix: str) -> dict[str, float]:
        counts = {}
        for metric in self.model.metrics:
            inner = metric.metrics if hasattr(metric, "metrics") else [metric]
            for one in inner:
                if hasattr(one, "count") and hasattr(one, "total"):
                    counts[prefix + one.name] = float(np.asarray(one.count))
        return counts


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Set the learning rate to ``initial_lr * multiplier(epoch)`` between two epochs.

    Args:
        initial_lr: the rate that the multiplier multiplies.
        multiplier: a function of the epoch, or a constant c for c ** (epoch - start_epoch).
        start_epoch: first epoch in which to act.
        end_epoch: first one in which not to; None acts to the end.
        staircase: True adjusts at the start of an epoch (the epoch is an int), False at every step (the epoch
            is epoch + batch / steps_per_epoch).
        momentum_correction: when the rate changes by a factor, the momentum that was gathered at the old rate
            is multiplied by it (Goyal et al. 2017, arXiv:1706.02677, section 2.3).
        steps_per_epoch: asked of Keras where it is not given.

    Raises:
        UsageError: the optimizer's rate is a schedule object, which nothing can assign to.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: Callable[[float], float] | float,
        start_epoch: float = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ):
        super().__init__()
        if initial_lr is None:
            raise UsageError("initial_lr is required", "initial_lr=0.01 * hvd.size()")
        self.initial_lr, self.staircase = initial_lr, staircase
        self.steps_per_epoch: Any = steps_per_epoch  # a number once training has begun
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.momentum_correction = momentum_correction
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self.current_epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not isinstance(self.model.optimizer._learning_rate, keras.Variable):
            raise UsageError(
                f"{type(self).__name__} assigns the learning rate, but the optimizer's rate is a "
                f"{type(self.model.optimizer._learning_rate).__name__}",
                "give the optimizer a number, or drop this callback",
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise UsageError(
                    f"{type(self).__name__} cannot see how many steps an epoch has", "pass steps_per_epoch="
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        before = self.current_epoch < self.start_epoch
        after = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if before or after:
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = float(np.asarray(self.model.optimizer.learning_rate))

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = float(np.asarray(optimizer.learning_rate)), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate.assign(new)
        if self.momentum_correction and old and getattr(optimizer, "momentum", 0):
            # Keras keeps v = momentum * v - rate * gradient: scaling v corrects this one step's momentum.
            for velocity in getattr(optimizer, "momentums", None) or []:
                if velocity is not None:
                    velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate from ``initial_lr / size`` to ``initial_lr`` over the first epochs.

    rate(epoch) = initial_lr / size * (epoch * (size - 1) / warmup_epochs + 1): gradual warm-up as in Goyal et
    al. 2017 (arXiv:1706.02677, section 2.2). ``initial_lr`` is the scaled rate, normally base * hvd.size().

    Args:
        initial_lr: the rate after warm-up.
        warmup_epochs: how many epochs it takes.
        momentum_correction: as in ``LearningRateScheduleCallback``.
        steps_per_epoch: as there.
        verbose: 1 prints a line on rank 0 when warm-up is over.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ):
        def multiplier(epoch: float) -> float:
            # One step on, as Horovod does, so that the last step of an epoch ends on a round number.
            epoch += 1.0 / self.steps_per_epoch
            return float(1.0 / hvd.size() * (epoch * (hvd.size() - 1) / warmup_epochs + 1))

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs, self.verbose = warmup_epochs, verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and epoch == self.warmup_epochs - 1 and hvd.rank() == 0:
            rate = float(np.asarray(self.model.optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keep the best model, written by rank 0 alone. Set ``filepath`` before training starts.

    Args:
        monitor: as in ``keras.callbacks.ModelCheckpoint``, as is all that follows. Put MetricAverageCallback before
            this callback, so that all ranks agree on what is best.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ):
        placeholder = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(
            filepath=placeholder,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.filepath is None:
            raise UsageError("BestModelCheckpoint has no filepath", "callback.filepath = 'run/best.keras'")
        super().on_train_begin(logs)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if hvd.rank() == 0:
            super()._save_model(*args, **kwargs)
