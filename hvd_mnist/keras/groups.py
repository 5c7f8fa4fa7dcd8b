"""Which gradients travel together, and in what order: last layers first, as a backward pass has them ready.

Where all of them travel as one, no exchange begins before the last gradient is there. In several groups, the first ones
travel while the rest is computed. What that gains and costs: docs/performance.md, "Exchange while computing".
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_mnist.errors import UsageError

Variables = Sequence[keras.Variable | tf.Variable]
LEAST_BYTES = 4 << 20  # of a group: below it an exchange costs more in questions and latency than in bytes
MOST_GROUPS = 8  # so that the last group, which nothing hides, is an eighth of all at most, give or take one tensor


def grouped(
    places: list[int],
    variables: Variables,
    asked: int | Iterable[Iterable[keras.Variable]] | None,
    *,
    all_at_once: bool = False,
) -> list[list[int]]:
    """Split the places of dense gradients into groups, in the order in which they are to be exchanged.

    Args:
        places: indices into ``variables``, ascending.
        asked: a number of groups, the groups themselves (the rest alone), or None: one, or by size where that pays.
        all_at_once: no gradient is there before the others (an eager step, a sum over several passes).

    Returns:
        Groups of ``places``, none of them empty.

    Raises:
        UsageError: a number below 1.
    """
    if asked is None:
        return by_size(places, variables) if pays() and not all_at_once else [places] if places else []
    if isinstance(asked, int):
        if asked < 1:
            raise UsageError(f"groups={asked}: expected a positive number or lists of variables")
        bounds = [len(places) * k // asked for k in range(asked + 1)]
        return [places[a:b] for a, b in zip(bounds, bounds[1:], strict=False) if b > a][::-1]
    of = {id(variable): k for k, members in enumerate(asked) for variable in members}
    together: dict[object, list[int]] = {}
    for i in reversed(places):
        together.setdefault(of.get(id(variables[i]), ("alone", i)), []).insert(0, i)
    return list(together.values())


def by_size(places: list[int], variables: Variables) -> list[list[int]]:
    """Groups of LEAST_BYTES or more but for the last one, MOST_GROUPS at most."""
    size = {i: math.prod(variables[i].shape) * tf.as_dtype(variables[i].dtype).size for i in places}
    enough = max(LEAST_BYTES, sum(size.values()) / MOST_GROUPS)
    groups: list[list[int]] = []
    for i in reversed(places):
        if not groups or sum(size[k] for k in groups[-1]) >= enough:
            groups.append([])
        groups[-1].insert(0, i)
    return groups


def pays() -> bool:
    """Whether gradients travel by other means than the cores that compute the next ones: by NCCL, from GPU to GPU. On
    CPUs several groups gain over a slow network alone, and lose over a fast one; ``asked`` is for that.

    All ranks must answer alike: so by what was built, not by what this rank sees of GPUs. And not in an elastic job,
    where a rank that joins and one whose step has been traced already need not come to the same answer.
    """
    return bool(hvd.size() > 1 and hvd.nccl_built() and os.environ.get("HOROVOD_ELASTIC") != "1")
