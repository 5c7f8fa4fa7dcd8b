"""Where gradients are averaged: ``DistributedOptimizer.apply``, the first lines of ``_Averaging.apply`` below.

Keras 3 calls one method on an optimizer, ``apply(grads, variables)``, and everything else (clipping, weight
decay, moving averages of weights, the update) happens inside it. So gradients are averaged at its head:
what is clipped is the average, and all ranks do the same with it.

    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()))

The instance stays: its class becomes a subclass of its own class with ``apply`` in front, so schedules, slots
and optimizers of your own keep working, and what Keras saves names the plain class: a saved model loads where
Horovod is not installed.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_mnist.errors import UsageError
from hvd_mnist.keras import xla
from hvd_mnist.keras.compression import BF16Compressor, Compression, sum_bfloat16
from hvd_mnist.keras.groups import grouped
from hvd_mnist.keras.replicas import FirstSteps, is_distributed
from hvd_mnist.keras.votes import Votes

if TYPE_CHECKING:
    from hvd_mnist.keras.step_clock import StepClock

Gradient = Any  # a tf.Tensor, tf.IndexedSlices or None, in the place of its variable
_names = itertools.count()


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Any] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = hvd.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Iterable[Iterable[keras.Variable]] | None = None,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Make a Keras 3 optimizer average gradients over ranks before it applies them.

    The arguments are those of ``horovod.tensorflow.keras.DistributedOptimizer``.

    Args:
        optimizer: any ``keras.optimizers.Optimizer``; this instance itself becomes distributed.
        name: prefix of the collectives' names; the same on every rank.
        device_dense: TensorFlow device for the exchange of dense gradients.
        device_sparse: the same for sparse ones.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``: the gradients' dtype on the wire.
        sparse_as_dense: turn ``IndexedSlices`` into dense tensors before the exchange.
        gradient_predivide_factor: divide by this before the sum, and by size / this after it.
        op: ``Average``, ``Sum`` or ``Adasum``.
        backward_passes_per_step: communicate and update once in so many calls of ``apply``.
        average_aggregated_gradients: divide what those calls gathered by their number.
        num_groups: exchange gradients in this many groups, last layers first; 0: as groups.py chooses.
        groups: the same, or the groups themselves: lists of variables.
        process_set: the ranks to average over.
        scale_local_gradients: divide the gradients of local variables (``register_local_var``) by the number of
            ranks. The loss of N ranks is the mean of theirs, of which one rank's own variables see 1 / N.

    Returns:
        ``optimizer``. Under the global policy ``mixed_float16``, a ``LossScaleOptimizer`` around it, since averaging
        must come outermost, so that all ranks see the same infinite value and skip the same steps.

    Raises:
        UsageError: not a Keras 3 optimizer, already distributed, or an argument out of range.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"DistributedOptimizer wraps a keras.optimizers.Optimizer; found {type(optimizer).__name__}",
            "hvd.DistributedOptimizer(keras.optimizers.Adam(...))",
        )
    if is_distributed(optimizer):
        raise UsageError(f"{type(optimizer).__name__} '{optimizer.name}' is distributed already", "wrap it once")
    if op not in (hvd.Average, hvd.Sum, hvd.Adasum):
        raise UsageError(f"op={op}: expected Average, Sum or Adasum")
    if backward_passes_per_step < 1:
        raise UsageError(f"backward_passes_per_step={backward_passes_per_step}: expected 1 or more")
    if gradient_predivide_factor != 1.0 and op != hvd.Average:
        raise UsageError(f"gradient_predivide_factor={gradient_predivide_factor} needs op=Average")
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.config.dtype_policy().name == "mixed_float16" and not scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)  # as compile() would, but inside the average
    base = type(optimizer)
    number = next(_names)
    optimizer._exchange = Exchange(
        name or f"Distributed{base.__name__}" + (f".{number}" if number else ""),
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        predivide=gradient_predivide_factor,
        op=op,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        groups=groups if groups is not None else num_groups or None,
        process_set=process_set,
        scale_local=scale_local_gradients,
    )
    optimizer.__class__ = type(base.__name__, (_Averaging, base), {"__module__": base.__module__})
    xla.keep_keras_from_choosing_it()
    return optimizer


def PartialDistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    *,
    local_layers: keras.Layer | Iterable[keras.Layer] | None = None,
    **settings: Any,
) -> keras.optimizers.Optimizer:
    """A ``DistributedOptimizer`` that leaves the variables of some layers to each rank.

    Args:
        local_layers: a layer, or several, whose trainable variables are not averaged; the layers must be built.
        settings: those of ``DistributedOptimizer``.

    Raises:
        UsageError: not a layer, or a layer without variables; and as ``DistributedOptimizer``.
    """
    layers = [local_layers] if isinstance(local_layers, keras.Layer) else list(local_layers or [])
    for layer in layers:
        if not isinstance(layer, keras.Layer):
            raise UsageError(f"local_layers: expected keras layers, found {type(layer).__name__}")
        if not layer.trainable_variables:
            raise UsageError(
                f"local_layers: layer '{layer.name}' has no trainable variables",
                "build the model first; leave layers without weights out",
            )
    optimizer = DistributedOptimizer(optimizer, name, **settings)
    for layer in layers:
        for variable in layer.trainable_variables:
            optimizer.register_local_var(variable)
    return optimizer


class _Averaging:
    """What stands in front of the optimizer's own class."""

    _exchange: Exchange
    _trainable_variables: list[keras.Variable]

    @property  # type: ignore[misc]  # nobody assigns to it
    def __class__(self) -> type[keras.optimizers.Optimizer]:
        # What Keras writes into a saved model is the plain class; type(self) is still this one.
        return type(self).__mro__[2]

    def average_gradients(
        self, grads: Iterable[Gradient], trainable_variables: Iterable[keras.Variable]
    ) -> list[Gradient]:
        """The mean (or sum) over ranks of each gradient; None stays None."""
        return self._exchange.average(list(grads), list(trainable_variables))

    def register_local_var(self, variable: keras.Variable) -> None:
        """Leave a variable to each rank: not averaged, not broadcast, not compared. Before the first step."""
        self._exchange.local.add(id(variable))

    def apply(self, grads: Iterable[Gradient], trainable_variables: Iterable[keras.Variable] | None = None) -> None:
        """Average over ranks, then do what the wrapped optimizer does."""
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        xla.refuse_inside_xla(self)
        _refuse_inside_loss_scaling(self)

        def update(gradients: list[Gradient]) -> None:
            averaged = self.average_gradients(gradients, variables)
            self._exchange.prove_equal(averaged, variables)
            super(_Averaging, self).apply(averaged, trainable_variables)  # type: ignore[misc]  # the optimizer's own

        self._exchange.once_in_k_passes(list(grads), update)


class Exchange:
    """How gradients travel: settings, the collectives, and the local sums between two exchanges."""

    device_dense: str
    device_sparse: str
    compression: type[Any]
    sparse_as_dense: bool
    predivide: float
    average_passes: bool
    groups: int | Iterable[Iterable[keras.Variable]] | None
    scale_local: bool

    def __init__(
        self, name: str, *, op: int, process_set: hvd.ProcessSet, passes: int, votes: bool = True, **settings: Any
    ):
        self.name, self.op, self.process_set, self.passes = name, op, process_set, passes
        self._carries_votes = votes
        self.__dict__.update(settings)
        self.proof, self.votes = FirstSteps(name), Votes(name)
        self.clock: StepClock | None = None
        self.local: set[int] = set()  # id() of variables that stay each rank's own
        self._sums: list[tf.Variable] = []
        self._pass: Any = None  # a tf.Variable, where passes > 1, from the first call on

    def begin_again(self) -> None:
        """Other ranks than before (elastic.py): prove anew, and forget what was gathered for a step not yet made."""
        self.proof.begin_again()
        self.votes.clear()
        for variable in [*self._sums, *([self._pass] if self._pass is not None else [])]:
            variable.assign(tf.zeros_like(variable))

    def average(self, grads: list[Gradient], variables: Sequence[keras.Variable | tf.Variable]) -> list[Gradient]:
        ready = self.clock.ready(grads) if self.clock else None
        dense: list[int] = []
        sparse: list[int] = []
        for i, gradient in enumerate(grads):
            if isinstance(gradient, tf.IndexedSlices) and self.sparse_as_dense:
                grads[i] = gradient = tf.convert_to_tensor(gradient)
            if id(variables[i]) in self.local:
                grads[i] = self._scaled_local(gradient)
            elif gradient is not None:
                (sparse if isinstance(gradient, tf.IndexedSlices) else dense).append(i)
        # One after the other, in this order on every rank: TensorFlow runs a small step's operations one at a time and
        # in an order of its own; two ranks that each waited in another collective would wait for ever.
        before: list[tf.Tensor] = []
        mine = [grads[i] for i in dense]
        groups = grouped(dense, variables, self.groups, all_at_once=self.passes > 1 or tf.executing_eagerly())
        for number, members in enumerate(groups):
            tensors = [grads[i] for i in members]
            with_votes = number == len(groups) - 1 and self._votes_can_ride()  # the last: all gradients are there
            if with_votes:
                paths = [getattr(variables[i], "path", variables[i].name) for i in dense]
                tensors = [*tensors, tf.cast(self.votes.outgoing(mine, paths), tensors[0].dtype)]
            with tf.control_dependencies(before):
                exchanged = self._average_dense(tensors, f"{self.name}.group{number}")
            if with_votes:
                self.votes.incoming(exchanged.pop())
            for i, gradient in zip(members, exchanged, strict=True):
                grads[i] = gradient
            before = exchanged[:1]
        for i in sparse:
            with tf.control_dependencies(before):
                grads[i] = self._average_sparse(grads[i], f"{self.name}.sparse{i}")
            before = [grads[i].indices]
        if self.clock:
            self.clock.exchanged(ready, grads)
        return grads

    def _scaled_local(self, gradient: Gradient) -> Gradient:
        if gradient is None or not self.scale_local:
            return gradient
        size = self.process_set.size()
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
        return gradient / size

    def _all_ranks(self) -> bool:
        return bool(self.process_set.process_set_id == hvd.global_process_set.process_set_id)

    def _votes_can_ride(self) -> bool:
        return self._carries_votes and self._all_ranks() and self.op in (hvd.Average, hvd.Sum)

    def prove_equal(self, averaged: Sequence[Gradient], variables: Sequence[keras.Variable | tf.Variable]) -> None:
        """Compare over ranks, in the first two steps; the ranks of a smaller process set are not compared."""
        if not self._all_ranks():
            return
        pairs = [(g, v) for g, v in zip(averaged, variables, strict=True) if g is not None and id(v) not in self.local]
        exchanged = [g.indices if isinstance(g, tf.IndexedSlices) else g for g, _ in pairs]
        with tf.control_dependencies(exchanged):  # the comparison waits too: not before every exchange is done
            self.proof.watch([g for g, _ in pairs], [v for _, v in pairs])

    def _average_dense(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        if self.compression is BF16Compressor and self.op != hvd.Adasum:
            sums = sum_bfloat16([t / self.predivide for t in tensors], name, self.process_set)
            divisor = self.process_set.size() / self.predivide if self.op == hvd.Average else 1
            return [t / divisor for t in sums]
        averaged: list[tf.Tensor] = hvd.grouped_allreduce(
            tensors,
            device_dense=self.device_dense,
            compression=self.compression,
            op=self.op,
            prescale_factor=1.0 / self.predivide,
            postscale_factor=self.predivide,
            process_set=self.process_set,
            name=name,
            # The collective must have one name on all ranks, whatever scopes the step was traced in.
            ignore_name_scope=True,
        )
        return averaged

    def _average_sparse(self, gradient: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
        """Rows of all ranks together. hvd.grouped_allreduce pairs them with shapes of other gradients."""
        if self.op == hvd.Adasum:
            raise UsageError("Adasum cannot add sparse gradients", "sparse_as_dense=True")
        settings = {"process_set": self.process_set, "ignore_name_scope": True}
        with tf.device(self.device_sparse):
            rows = hvd.allgather(gradient.values, name=f"{name}.values", **settings)
            with tf.control_dependencies([rows]):
                indices = hvd.allgather(gradient.indices, name=f"{name}.indices", **settings)
        if self.op == hvd.Average:
            rows /= tf.cast(self.process_set.size(), rows.dtype)
        return tf.IndexedSlices(rows, indices, dense_shape=gradient.dense_shape)

    def once_in_k_passes(self, grads: list[Gradient], update: Callable[[list[Gradient]], None]) -> None:
        """Call ``update`` with the gradients of this pass, or once in ``passes`` with the sum of all of them."""
        if self.passes == 1:
            return update(grads)
        present = [i for i, g in enumerate(grads) if g is not None]
        dense = [tf.convert_to_tensor(grads[i]) for i in present]
        if self._pass is None:
            # Not the optimizer's variables: they must not appear in a saved model.
            with tf.init_scope():
                self._sums = [tf.Variable(tf.zeros(g.shape, g.dtype), trainable=False) for g in dense]
                self._pass = tf.Variable(0, dtype=tf.int64, trainable=False)
        for total, gradient in zip(self._sums, dense, strict=True):
            total.assign_add(gradient)
        self._pass.assign_add(1)

        def exchange() -> tf.Tensor:
            gathered = list(grads)
            divisor = self.passes if self.average_passes else 1
            for i, total in zip(present, self._sums, strict=True):
                gathered[i] = total.read_value() / tf.cast(divisor, total.dtype)
            update(gathered)
            for total in self._sums:
                total.assign(tf.zeros_like(total))
            return tf.constant(True)

        tf.cond(tf.equal(self._pass % self.passes, 0), exchange, lambda: tf.constant(False))


def _refuse_inside_loss_scaling(optimizer: keras.optimizers.Optimizer) -> None:
    """LossScaleOptimizer looks at local gradients for infinities and may skip its inner optimizer on one rank
    alone; the others would wait in the allreduce for ever. Looks at the call stack, when a step is traced."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if caller is not optimizer and isinstance(caller, keras.optimizers.LossScaleOptimizer):
            if is_distributed(caller):
                break
            raise UsageError(
                "DistributedOptimizer is inside a LossScaleOptimizer (mixed_float16), where one rank can skip a step "
                "that the others wait in",
                "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))",
            )
        frame = frame.f_back
