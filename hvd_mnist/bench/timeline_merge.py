"""All ranks' steps beside rank 0's timeline, on one clock. Pure.

Horovod's file knows rank 0 alone, and each rank's times of its steps (``train --step-times``) are of its own host's
clock. An exchange ends on all ranks at about the same moment, because none can have the sum before the last one has
given its part. So a rank's clock is set by the median, over all steps, of its end of the exchange less rank 0's. How
far single steps are from that median is the error that is told: what lies closer together than that has no order.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hvd_mnist.errors import UsageError

_PARTS = ("data", "compute", "exchange", "update")
_FIRST_PID = 1_000_000  # above the numbers that Horovod gives to tensors


def offsets(ranks: Sequence[Sequence[Sequence[float]]]) -> list[tuple[float, float]]:
    """For each rank: by how many seconds its clock is ahead of rank 0's, and the error of that.

    The error is the larger distance from the median to the tenth and the ninetieth percentile of the steps.

    Args:
        ranks: for each rank its rows of step-times.json.
    """
    steps = min(map(len, ranks))
    found = []
    for rows in ranks:
        ahead = [rows[k][4] - ranks[0][k][4] for k in range(steps)]
        middle = statistics.median(ahead)
        if len(ahead) > 1:
            tenths = statistics.quantiles(ahead, n=10, method="inclusive")
            error = max(middle - tenths[0], tenths[-1] - middle)
        else:
            error = float("inf")
        found.append((middle, error))
    return found


def merged(events: Sequence[dict], told: dict) -> tuple[list[dict], list[str]]:
    """The timeline's events with each rank's steps added, and a line for each rank on its clock.

    Args:
        told: step-times.json of the same run.

    Raises:
        UsageError: the timeline does not say when it began, or the steps are of another time.
    """
    start = next(
        (
            event["args"]["start_time_since_epoch_in_micros"]
            for event in events
            if event.get("ph") == "M" and "start_time_since_epoch_in_micros" in event.get("args", {})
        ),
        None,
    )
    if start is None:
        raise UsageError("the timeline does not say when it began", "one that Horovod 0.28 wrote")
    ranks = [rank["steps"] for rank in told["ranks"]]
    last = max((event["ts"] for event in events if "ts" in event), default=0)
    inside = [row for row in ranks[0] if 0 <= 1e6 * row[4] - start <= last]
    if not inside:
        raise UsageError("the timeline and the step times are not of one run: no step lies in the timeline's time")
    result, lines = list(events), []
    for number, (rank, (ahead, error)) in enumerate(zip(told["ranks"], offsets(ranks), strict=True)):
        pid = _FIRST_PID + number
        name = f"rank {number} on {rank['host']}"
        result.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        result.append(
            {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": number - len(ranks)}}
        )
        for step, row in enumerate(rank["steps"]):
            at = [1e6 * (seconds - ahead) - start for seconds in row[1:6]]
            for part, begin, end in zip(_PARTS, at[:-1], at[1:], strict=True):
                result.append(
                    {"ph": "X", "name": part, "ts": round(begin), "dur": round(end - begin), "pid": pid, "tid": 0}
                    | {"args": {"step": step}}
                )
        if number:
            lines.append(f"{name}: its clock is {1e3 * ahead:+.2f} ms from rank 0's, give or take {1e3 * error:.2f} ms")
    return result, lines
