"""Gradients of a loop of your own: a ``tf.GradientTape`` whose ``gradient`` is the mean over ranks.

    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = ...
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

The exchange, and the proof in the first two steps, are those of ``DistributedOptimizer`` (optimizer.py). Use one or the
other: with both, gradients would be exchanged twice, which doubles the time, and a sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_mnist.errors import UsageError
from hvd_mnist.keras import xla
from hvd_mnist.keras.compression import Compression
from hvd_mnist.keras.optimizer import Exchange

_exchanges: dict[tuple[Any, ...], tuple[Exchange, Sequence[Any]]] = {}


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Any] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = hvd.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Iterable[Iterable[tf.Variable]] | None = None,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    scale_local_gradients: bool = True,
) -> _AveragingTape:
    """Make the ``gradient`` of a tape average over ranks. The arguments are those of Horovod and of
    ``DistributedOptimizer``; ``register_local_source`` leaves a variable to each rank.

    Args:
        gradtape: a ``tf.GradientTape``, persistent or not.

    Raises:
        UsageError: not a tape, or an argument out of range.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise UsageError(
            f"DistributedGradientTape wraps a tf.GradientTape; found {type(gradtape).__name__}",
            "hvd.DistributedGradientTape(tf.GradientTape())",
        )
    if gradient_predivide_factor != 1.0 and op != hvd.Average:
        raise UsageError(f"gradient_predivide_factor={gradient_predivide_factor} needs op=Average")
    settings = {
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "predivide": gradient_predivide_factor,
        "op": op,
        "groups": groups if groups is not None else num_groups or None,
        "process_set": process_set,
        "scale_local": scale_local_gradients,
    }
    return _AveragingTape(gradtape, settings)


class _AveragingTape:
    """Everything of the tape, with another ``gradient``."""

    def __init__(self, tape: tf.GradientTape, settings: dict[str, Any]):
        self.name = "DistributedGradientTape"
        self._tape, self._settings = tape, settings
        self._local: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def __enter__(self) -> _AveragingTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: object) -> Any:
        return self._tape.__exit__(*exception)

    def register_local_source(self, source: keras.Variable | tf.Variable) -> None:
        """Leave a variable to each rank: its gradient is not averaged."""
        self._local.add(id(source))

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """As ``tf.GradientTape.gradient``, averaged over ranks; every rank must ask for the same sources."""
        found = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        xla.refuse_inside_xla(self)
        flat = tf.nest.flatten(sources)
        exchange = self._exchange(flat)
        exchange.local = self._local
        averaged = exchange.average(tf.nest.flatten(found), flat)
        exchange.prove_equal(averaged, flat)
        return tf.nest.pack_sequence_as(found, averaged)

    def _exchange(self, sources: Sequence[keras.Variable | tf.Variable]) -> Exchange:
        """One for each set of sources: an eager loop makes a new tape in every step, and a GAN asks for two sets."""
        groups = self._settings["groups"]
        told = tuple((name, str(value) if name == "groups" else value) for name, value in self._settings.items())
        key = (tuple(map(id, sources)), told if groups is None or isinstance(groups, int) else (*told, id(groups)))
        if key not in _exchanges:
            number = len(_exchanges)
            exchange = Exchange(
                "DistributedGradientTape" + (f".{number}" if number else ""), passes=1, votes=False, **self._settings
            )
            _exchanges[key] = exchange, sources  # kept alive, so that no other variable gets their id
        return _exchanges[key][0]
