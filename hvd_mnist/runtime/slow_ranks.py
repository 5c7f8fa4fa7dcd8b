"""Which rank is called slow, and in which words: a rule on numbers, for ``hvd_mnist.keras.stragglers``."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

WINDOWS = 3  # in a row, before a rank is named
FACTOR = 1.5  # of the median of the other ranks


@dataclass
class Slow:
    """A rank that is slow: since how many windows, and in the last one by which factor."""

    rank: int
    windows: int
    factor: float


class Judge:
    """Names a rank that took ``factor`` times the others' median in ``windows`` windows in a row. Pure.

    A rank is named again each time that as many windows have passed, and once more, with factor 0, when it keeps up.
    """

    def __init__(self, size: int, factor: float = FACTOR, windows: int = WINDOWS):
        self.factor, self.windows = factor, windows
        self._slow_for = [0] * size

    def look(self, seconds: list[float]) -> list[Slow]:
        """Take in one window: each rank's own time; ranks to speak of. Where one told nothing (0), it is no window."""
        if len(seconds) < 2 or not all(value > 0 for value in seconds):
            return []
        named = []
        for rank, value in enumerate(seconds):
            factor = value / statistics.median(seconds[:rank] + seconds[rank + 1 :])
            before = self._slow_for[rank]
            self._slow_for[rank] = before + 1 if factor >= self.factor else 0
            if self._slow_for[rank] and self._slow_for[rank] % self.windows == 0:
                named.append(Slow(rank, self._slow_for[rank], factor))
            elif not self._slow_for[rank] and before >= self.windows:
                named.append(Slow(rank, before, 0.0))
        return named


def in_words(slow: Slow, host: str, steps: int) -> str:
    """The line. ``steps``: for how many it has been slow."""
    if not slow.factor:
        return f"straggler: rank {slow.rank} on {host} keeps up again, after {steps} slow steps"
    return (
        f"straggler: rank {slow.rank} on {host} takes {slow.factor:.1f} times as long as the others for its own part "
        f"of a step, and they wait for it; for {steps} steps now"
    )
