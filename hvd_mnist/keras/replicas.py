"""The proof that replicas are equal: every rank fingerprints its tensors, all compare, a difference stops all.

What is compared, and when:
  step 1            the averaged gradients, inside the step (``FirstSteps``, part of DistributedOptimizer)
  start of step 2   the trainable variables (the same place): a missing broadcast shows here, whoever calls
  after step 1      trainable and optimizer variables (``ReplicaCheckCallback``); an optimizer that was not
  and every N       wrapped shows here, and any variable that one rank changed

Equal means equal in every bit: a ring sums each piece in one place and sends the sum to all. Ranks on
different processors may round an update differently; ``tolerance`` is for them. Not compared: variables that
are meant to differ, such as the state of dropout and the moving statistics of batch normalisation.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from hvd_mnist.console import ranks_named
from hvd_mnist.errors import ReplicasDiffer
from hvd_mnist.runtime import world

if TYPE_CHECKING:
    import tensorflow as tf

Named = Sequence[tuple[str, np.ndarray]]


def fingerprint(array: np.ndarray) -> str:
    """128 bits of BLAKE2b over dtype, shape and bytes, in hexadecimal."""
    array = np.ascontiguousarray(array)
    digest = hashlib.blake2b(f"{array.dtype}{array.shape}".encode(), digest_size=16)
    if array.size:
        digest.update(array.view(np.uint8).reshape(-1))
    return digest.hexdigest()


def first_difference(reports: Sequence[Sequence[str]]) -> tuple[int, dict[str, list[int]]] | None:
    """The first place at which not all ranks report the same fingerprint.

    Args:
        reports: one list of fingerprints per rank, in rank order.

    Returns:
        None where all agree; else the place, and {fingerprint: ranks that reported it}.
    """
    for place in range(max(len(report) for report in reports)):
        told: dict[str, list[int]] = {}
        for rank, report in enumerate(reports):
            told.setdefault(report[place] if place < len(report) else "nothing", []).append(rank)
        if len(told) > 1:
            return place, told
    return None


def assert_equal(named: Named, what: str, *, tolerance: float = 0.0, hint: str | None = None) -> None:
    """Compare the arrays of all ranks; every rank must call it, and every rank raises or none does.

    Args:
        named: (name, array) pairs in the same order on every rank.
        what: what these are, for the error, as in "variables after step 1".
        tolerance: largest absolute difference that still counts as equal; 0 compares bits.
        hint: what to type, added to the error.

    Raises:
        ReplicasDiffer: names the first variable that differs, the ranks and their hosts.
    """
    mine = [fingerprint(array) for _, array in named]
    # One short message while all is well; the long ones only to find out what is not.
    summary = hashlib.blake2b("".join(mine).encode(), digest_size=16).hexdigest()
    summaries = world.gather_json([summary, world.hostname()], "replicas.summary")
    if len({text for text, _ in summaries}) == 1:
        return
    found = first_difference(world.gather_json(mine, "replicas.report"))
    assert found is not None  # else the summaries would be equal
    place, told = found
    same_shapes, worst = _largest_difference(named, place)
    if same_shapes and tolerance > 0 and _within(named, tolerance):
        return
    name = world.root_json(named[place][0] if place < len(named) else "(none)", "replicas.name")
    majority = max(told.values(), key=len)
    odd = sorted(rank for ranks in told.values() if ranks is not majority for rank in ranks)
    places = ", ".join(f"rank {rank} on {summaries[rank][1]}" for rank in odd[:8]) + (" ..." if len(odd) > 8 else "")
    size_of_it = f"largest difference {worst:.3g}" if same_shapes else "other shapes: another model?"
    raise ReplicasDiffer(
        f"replicas differ in {what}: first in '{name}'; {places} against {ranks_named(majority)} ({size_of_it})", hint
    )


def _largest_difference(named: Named, place: int) -> tuple[bool, float]:
    """(all ranks have the same shapes, largest absolute difference from rank 0 at ``place``)."""
    shapes = world.gather_json([list(array.shape) for _, array in named], "replicas.shapes")
    if any(shape != shapes[0] for shape in shapes):
        return False, float("nan")
    return True, _spread(named[place][1])


def _within(named: Named, tolerance: float) -> bool:
    return max((_spread(array) for _, array in named), default=0.0) <= tolerance


def _spread(array: np.ndarray) -> float:
    """Largest absolute difference, over ranks and elements, between this array and rank 0's."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    with tf.device("/CPU:0"):
        root = hvd.broadcast(tf.constant(array.astype(np.float64)), 0, name="replicas.value").numpy()
    worst = float(np.max(np.abs(root - array.astype(np.float64)), initial=0.0))
    return max(float(told) for told in world.gather_json(worst, "replicas.spread"))


class Values(Sequence[tuple[str, np.ndarray]]):
    """(path, value) of Keras or TensorFlow variables; a value is copied when it is asked for, and not kept: comparing
    replicas takes the memory of the largest variable, not of all of them."""

    def __init__(self, variables: Iterable[keras.Variable | tf.Variable]) -> None:
        self._variables = list(variables)

    def __len__(self) -> int:
        return len(self._variables)

    def __getitem__(self, place: Any) -> Any:  # a number; nobody asks for slices
        variable = self._variables[place]
        return getattr(variable, "path", None) or variable.name, np.asarray(variable)


def layout(model: keras.Model) -> dict[str, str]:
    """{path: "shape dtype"} of a model's variables, without the numbers that Keras counts up in one process."""
    described: dict[str, str] = {}
    for place, variable in enumerate(model.variables):
        path = re.sub(r"_\d+(?=[_/]|$)", "", variable.path)
        described[f"{place} {path}"] = f"{tuple(variable.shape)} {variable.dtype}"
    return described


class FirstSteps:
    """Two checks inside the training step, on its first two applications only; then one comparison of an
    integer, and nothing else, stays in the step.

    Its own counter, and not ``optimizer.iterations``: a rank that restored a checkpoint which the others
    lack would count differently and wait alone.
    """

    CHECKED = 2

    def __init__(self, name: str):
        import tensorflow as tf

        self._name = name
        self.failure: ReplicasDiffer | None = None
        with tf.init_scope(), tf.device("/CPU:0"):
            self._applied = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{name}.applied")

    def begin_again(self) -> None:
        """Compare the next two applications too: the ranks are others than before."""
        self.failure = None
        self._applied.assign(0)

    def watch(self, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable | tf.Variable]) -> None:
        """Compare ``gradients`` (and, at step 2, ``variables`` as they are before the update) over ranks."""
        import tensorflow as tf

        paths = [getattr(v, "path", None) or v.name for v in variables]
        dense = [(p, g) for p, g in zip(paths, gradients, strict=True) if isinstance(g, tf.Tensor)]
        names = [p for p, _ in dense]

        def compare() -> tf.Tensor:
            inputs = [applied, *(g for _, g in dense), *(tf.convert_to_tensor(v) for v in variables)]
            compared = tf.py_function(lambda *arrays: self._compare(names, paths, *arrays), inputs, tf.int64)
            return self._applied.assign_add(compared)

        with tf.device("/CPU:0"):
            applied = self._applied.read_value()
            tf.cond(applied < self.CHECKED, compare, lambda: applied)

    def _compare(
        self, gradient_names: list[str], variable_names: list[str], applied: tf.Tensor, *tensors: tf.Tensor
    ) -> int:
        step = int(applied) + 1
        arrays = [tensor.numpy() for tensor in tensors]
        gradients, variables = arrays[: len(gradient_names)], arrays[len(gradient_names) :]
        try:
            if step == 2:
                assert_equal(
                    list(zip(variable_names, variables, strict=True)),
                    "model variables before step 2",
                    hint="give every rank the same start: callbacks.BroadcastGlobalVariablesCallback(0)",
                )
            assert_equal(list(zip(gradient_names, gradients, strict=True)), f"averaged gradients of step {step}")
        except ReplicasDiffer as difference:
            self.failure = difference
            raise
        return 1


class ReplicaCheckCallback(keras.callbacks.Callback):
    """Compare all replicas after the first step, at the end of every epoch, and every ``every`` steps.

    Args:
        every: steps between checks, or None for the first step and the ends of epochs only.
        tolerance: see ``assert_equal``.
        skip: variables that are meant to differ.

    Attributes:
        checks: how many comparisons were made; all of them held, or ReplicasDiffer was raised.
        seconds: wall time that they took on this rank.
    """

    def __init__(self, every: int | None = None, tolerance: float = 0.0, skip: Iterable[keras.Variable] = ()):
        super().__init__()
        self.every, self.tolerance = every, tolerance
        self._skip = {id(variable) for variable in skip}
        self.checks, self.seconds, self.steps = 0, 0.0, 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.steps += 1
        if self.steps == 1 or (self.every and self.steps % self.every == 0):
            self.check(f"after step {self.steps}")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.every:
            self.check(f"after epoch {epoch + 1}")

    def check(self, when: str) -> None:
        """Compare now; every rank must call it."""
        started = time.perf_counter()
        optimizer = self.model.optimizer
        compared = [*self.model.trainable_variables, *optimizer.variables]
        skip = self._skip | local_to_a_rank(optimizer)
        assert_equal(
            Values(v for v in compared if id(v) not in skip),
            f"variables {when}",
            tolerance=self.tolerance,
            hint=None if is_distributed(optimizer) else "wrap the optimizer: hvd.DistributedOptimizer(optimizer)",
        )
        self.checks += 1
        self.seconds += time.perf_counter() - started


def is_distributed(optimizer: keras.optimizers.Optimizer) -> bool:
    """True for what ``DistributedOptimizer`` returned."""
    return hasattr(type(optimizer), "average_gradients")


def local_to_a_rank(optimizer: keras.optimizers.Optimizer) -> set[int]:
    """id() of the variables that were registered as local, and of what the optimizer keeps for each of them."""
    if not is_distributed(optimizer) or not optimizer._exchange.local:
        return set()
    local: set[int] = optimizer._exchange.local
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    trained = inner._trainable_variables
    kept = [slots for slots in vars(inner).values() if isinstance(slots, list) and len(slots) == len(trained)]
    return local | {id(slots[i]) for i, v in enumerate(trained) if id(v) in local for slots in kept}


def proof_failure(optimizer: keras.optimizers.Optimizer) -> ReplicasDiffer | None:
    """What the checks inside the step found on this rank; TensorFlow wraps it in an error of its own."""
    return optimizer._exchange.proof.failure if is_distributed(optimizer) else None
