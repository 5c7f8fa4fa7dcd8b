"""Where a step's time goes, from the times that each rank took (``train --step-times``). Pure arithmetic.

A step of one rank, from the end of the one before to its own end, all on that rank's clock:

    outside         callbacks and records, between two calls of Keras' step
    data            until the batch was there
    compute         until this rank's gradients were ready
    communication   the exchange itself, as the rank saw it that came last and waited for nobody
    wait            what the exchange took longer here than there: idle, for the slowest rank
    update          the optimizer's update, and handing the result to Python

``communication`` is the shortest exchange of all ranks in that step, ``wait`` a rank's own less that: differences of
each rank's own times, so no clock need agree with another. Both are exposed: no gradient was computed meanwhile. All of
it is the time of a wall clock: a rank that shares its core with another job has that job's time in ``compute``.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from hvd_mnist.errors import UsageError

PARTS = ("outside", "data", "compute", "communication", "wait", "update")
COLUMNS = ("epoch", "begin", "batch", "ready", "exchanged", "end", "cpu")
SLOW = 1.2  # times the other ranks' median: from here on a rank is called slow


def read(path: Path) -> dict:
    """RUN/step-times.json.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "the step-times.json of a run with train --step-times") from None
    except ValueError:
        told = None
    if not isinstance(told, dict) or told.get("columns") != list(COLUMNS) or not told.get("ranks"):
        raise UsageError(f"{path} holds no times of steps", "the step-times.json of a run with train --step-times")
    return told


def parts(ranks: Sequence[Sequence[Sequence[float]]], warm_up: int) -> list[list[dict[str, float]]]:
    """For each rank and step the seconds of each part, and ``step``, their sum, and ``cpu``, CPU seconds.

    Args:
        ranks: for each rank its rows, columns as in COLUMNS.
        warm_up: first steps that are left out; at least one is, and the first of each epoch: they have no beginning.
    """
    number = min(map(len, ranks))
    counted = [k for k in range(max(1, warm_up), number) if ranks[0][k][0] == ranks[0][k - 1][0]]
    shortest = {k: min(rows[k][4] - rows[k][3] for rows in ranks) for k in counted}
    return [[_step(rows[k - 1], rows[k], shortest[k]) for k in counted] for rows in ranks]


def _step(before: Sequence[float], row: Sequence[float], shortest: float) -> dict[str, float]:
    _, begin, batch, ready, exchanged, end, cpu = row
    return {
        "outside": begin - before[5],
        "data": batch - begin,
        "compute": ready - batch,
        "communication": shortest,
        "wait": exchanged - ready - shortest,
        "update": end - exchanged,
        "step": end - before[5],
        "cpu": cpu - before[6],
    }


def own(step: dict[str, float]) -> float:
    """What the rank needed without the others, in seconds."""
    return step["step"] - step["communication"] - step["wait"]


def by_rank(steps: Sequence[Sequence[dict[str, float]]], hosts: Sequence[str]) -> list[dict]:
    """For each rank, in milliseconds: the mean of each part, median of its own time, and how slow that makes it.

    ``factor`` is the rank's own time by the median of the other ranks'; None for a rank alone.
    """
    needs = [statistics.median(map(own, rank)) for rank in steps]
    rows = []
    for rank, of in enumerate(steps):
        others = needs[:rank] + needs[rank + 1 :]
        rows.append(
            {
                "rank": rank,
                "host": hosts[rank],
                "mean_ms": {name: 1e3 * statistics.fmean(step[name] for step in of) for name in (*PARTS, "step")},
                "cpu_ms": 1e3 * statistics.fmean(step["cpu"] for step in of),
                "own_ms": 1e3 * needs[rank],
                "factor": needs[rank] / statistics.median(others) if others else None,
            }
        )
    return rows


def slowest(rows: Sequence[dict]) -> dict | None:
    """The row of a rank that is slow, or None where none is."""
    worst = max(rows, key=lambda row: row["factor"] or 0.0)
    return worst if (worst["factor"] or 0.0) >= SLOW else None
