"""A model's variables as data: what they are called, how large they are, and a digest of what they hold."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Variable:
    """One variable: its path as Keras names it, shape, dtype, and a digest of its value ("" when not taken).

    ``value`` is set only for what Keras does not write in its file: the states of seed generators.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    digest: str = ""
    value: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"{self.path} {self.shape} {self.dtype}"

    def kind(self) -> tuple:
        """What two models must share: the path without the numbers that Keras counts up, shape and dtype."""
        return re.sub(r"_\d+(?=[_/]|$)", "", self.path), self.shape, self.dtype


@dataclass(frozen=True)
class Fingerprint:
    """Names, shapes and dtypes of a model: its weights, its seed generators, its optimizer (None: not compiled)."""

    weights: tuple[Variable, ...]
    seeds: tuple[Variable, ...]
    optimizer: str | None
    slots: tuple[Variable, ...]

    def difference(self, expected: Fingerprint) -> str | None:
        """The first thing in which this one (found) differs from ``expected``, in one line; None when nothing."""
        for kind in ("weights", "seeds"):
            if different := _first_difference(getattr(self, kind), getattr(expected, kind)):
                return different
        if self.optimizer != expected.optimizer:
            return f"optimizer: found {self.optimizer or 'none'}, expected {expected.optimizer or 'none'}"
        return _first_difference(_without_owner(self.slots), _without_owner(expected.slots))

    def changed(self, expected: Fingerprint) -> str | None:
        """Path of the first variable whose value differs, of two fingerprints taken with digests."""
        for kind in ("weights", "seeds", "slots"):
            for here, there in zip(getattr(self, kind), getattr(expected, kind), strict=True):
                if here.digest != there.digest:
                    return here.path
        return None


def _without_owner(slots: tuple[Variable, ...]) -> list[Variable]:
    # The first part of a slot's path is the optimizer's name, which a wrapper may change.
    return [replace(slot, path=slot.path.split("/", 1)[-1]) for slot in slots]


def _first_difference(found, expected) -> str | None:
    for here, there in zip(found, expected, strict=False):
        if here.kind() != there.kind():
            return f"first differing variable: found {here}, expected {there}"
    if len(found) > len(expected):
        return f"first differing variable: found {found[len(expected)]}, expected only {len(expected)} variables"
    if len(found) < len(expected):
        return f"first differing variable: found only {len(found)} variables, expected {expected[len(found)]}"
    return None


def fingerprint(model, *, digests: bool = False) -> Fingerprint:
    """The fingerprint of a built Keras model.

    Args:
        digests: digest every value too (blake2b of the bytes; about 1 ms a MB).
    """
    optimizer = getattr(model, "optimizer", None)
    return Fingerprint(
        weights=tuple(_describe(v, digests) for v in model.weights),
        seeds=tuple(_describe(v, digests, keep_value=digests) for v in seed_states(model)),
        # __class__, not type(): a distributed optimizer reports the class that it wraps, the one in the file.
        optimizer=None if optimizer is None else optimizer.__class__.__name__,
        slots=() if optimizer is None else tuple(_describe(v, digests) for v in optimizer.variables),
    )


def seed_states(model) -> list:
    """The states of the model's seed generators (dropout, augmentation), which Keras leaves out of its file."""
    written = {id(weight) for weight in model.weights}
    return [variable for variable in model.variables if id(variable) not in written]


def _describe(variable, digests: bool, keep_value: bool = False) -> Variable:
    shape, dtype = tuple(int(n) for n in variable.shape), str(variable.dtype)
    if not digests:
        return Variable(variable.path, shape, dtype)
    import numpy as np

    array = np.ascontiguousarray(variable.numpy())
    digest = hashlib.blake2b(array.reshape(-1).view(np.uint8), digest_size=16).hexdigest()
    value = tuple(int(n) for n in array.reshape(-1)) if keep_value else None
    return Variable(variable.path, shape, dtype, digest, value)
