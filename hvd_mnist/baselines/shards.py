"""Which ps task holds which part of which variable? Pure arithmetic, the same in every task of a job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BYTES = 4  # of a float32
PLACEMENTS = ("round-robin", "by-size")


@dataclass(frozen=True)
class Shard:
    """Rows first..stop-1 (along axis 0) of a variable, on one ps task; a scalar is one row."""

    variable: int
    first: int
    stop: int
    shape: tuple[int, ...]
    ps: int

    @property
    def bytes(self) -> int:
        return BYTES * math.prod(self.shape)


def place_shards(shapes: Sequence[tuple[int, ...]], ps: int, placement: str, largest: int) -> list[Shard]:
    """Cut large variables along axis 0 and give every part to a ps task.

    Args:
        shapes: of the variables, in the model's order.
        ps: number of ps tasks.
        placement: "round-robin" deals the parts out in order, as tf.compat.v1.train.replica_device_setter does;
            "by-size" gives each part, largest first, to the task that holds the fewest bytes.
        largest: bytes; a variable with more is cut into as many even parts as are needed, at most one for each task.

    Returns:
        in the order of the variables and, within one, of its rows.
    """
    parts = []
    for variable, shape in enumerate(shapes):
        rows = shape[0] if shape else 1
        wanted = min(ps, rows, max(1, -(-BYTES * math.prod(shape) // largest)))
        edges = [rows * part // wanted for part in range(wanted + 1)]
        for first, stop in zip(edges, edges[1:], strict=False):
            parts.append((variable, first, stop, (stop - first, *shape[1:]) if shape else ()))
    if placement == "round-robin":
        return [Shard(*part, number % ps) for number, part in enumerate(parts)]
    held, owner = [0] * ps, {}
    for number in sorted(range(len(parts)), key=lambda n: (-math.prod(parts[n][3]), n)):
        owner[number] = min(range(ps), key=lambda task: (held[task], task))
        held[owner[number]] += math.prod(parts[number][3])
    return [Shard(*part, owner[number]) for number, part in enumerate(parts)]


def bytes_by_ps(shards: Sequence[Shard], ps: int) -> list[int]:
    """Bytes of variables on each ps task: what one worker pulls from it, and pushes to it, in a step."""
    return [sum(shard.bytes for shard in shards if shard.ps == task) for task in range(ps)]
