"""What Horovod's timeline says: where the time of an exchange goes, who comes last, what to change.

Rank 0 writes the file (``train --timeline FILE``), so all times are on its clock, in microseconds. For each tensor:

    NEGOTIATE_ALLREDUCE    from the first rank that is ready to the last    the ranks' own events stand inside
                           queue: until rank 0 begins
    ALLREDUCE              the work, with its phases inside: copy into the fusion buffer, communication, copy out

Tensors that travel together have the same phases at the same time; a step's figures count such time once (``covered``).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

PHASES = ("negotiation", "queue", "wait for data", "set-up", "copy in", "communication", "copy out", "other")
_PHASE_OF = {  # beginning of an activity's name -> phase
    "WAIT_FOR": "wait for data",
    "QUEUE": "queue",
    "MEMCPY_IN": "copy in",
    "MEMCPY_OUT": "copy out",
    "COPY_ALLGATHER": "copy out",
    "INIT": "set-up",
    "ALLOCATE": "set-up",
    "MPI_": "communication",
    "GLOO_": "communication",
    "NCCL_": "communication",
    "CCL_": "communication",
}
_EVERY_STEP = ("ALLREDUCE", "ADASUM", "REDUCESCATTER")  # what gradients travel in
FIRST_STEPS = 2  # not counted where there are enough: tracing and first connections are in them
TOGETHER = 200  # microseconds: ranks that are ready within this were heard in one cycle, in an order without meaning
_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "int8": 1}

Interval = tuple[float, float]


@dataclass
class Exchange:
    """One tensor, once. Times in microseconds on rank 0's clock.

    Attributes:
        op: ALLREDUCE, ALLGATHER, BROADCAST, ...
        negotiated: from the first rank ready to the last, or None where the file does not say.
        ready: when each rank was, as far as the file says; answers from Horovod's cache carry no rank.
        ran: the work itself.
        activities: (name, begin, end) inside ``ran``.
        kind, shape: as Horovod prints them.
    """

    tensor: str
    op: str = ""
    negotiated: Interval | None = None
    ready: dict[int, float] = field(default_factory=dict)
    ran: Interval = (0.0, 0.0)
    activities: list[tuple[str, float, float]] = field(default_factory=list)
    kind: str = ""
    shape: str = ""

    @property
    def begin(self) -> float:
        return self.negotiated[0] if self.negotiated else self.ran[0]

    def intervals(self) -> dict[str, list[Interval]]:
        """phase -> when this tensor was in it."""
        found = defaultdict(list)
        if self.negotiated:
            found["negotiation"].append(self.negotiated)
            found["queue"].append((self.negotiated[1], self.ran[0]))
        at = self.ran[0]
        for name, begin, end in self.activities:
            phase = next((phase for start, phase in _PHASE_OF.items() if name.startswith(start)), "other")
            found[phase].append((begin, end))
            found["other"].append((at, begin))
            at = end
        found["other"].append((at, self.ran[1]))
        return found

    @property
    def bytes(self) -> int | None:
        """Of the result, or None where the file does not say."""
        sizes = [int(word) for word in self.shape.strip("[] ").split(",") if word.strip().isdigit()]
        if self.kind not in _BYTES or not self.shape:
            return None
        product = _BYTES[self.kind]
        for size in sizes:
            product *= size
        return product


def exchanges(events: Iterable[dict]) -> list[Exchange]:
    """Complete exchanges in the order in which they ended; what a kill cut off is left out."""
    names: dict[int, str] = {}
    open_: dict[int, list[tuple[str, float]]] = defaultdict(list)
    now: dict[int, Exchange] = {}
    done = []
    for event in events:
        pid, phase = event.get("pid"), event.get("ph")
        if phase == "M":
            if event.get("name") == "process_name" and "name" in event.get("args", {}):
                names[pid] = event["args"]["name"]
            continue
        if pid not in names or "ts" not in event:
            continue
        exchange = now.setdefault(pid, Exchange(names[pid]))
        if phase == "B":
            open_[pid].append((event.get("name", ""), event["ts"]))
        elif phase == "X" and event.get("name", "").isdigit():
            exchange.ready[int(event["name"])] = event["ts"]
        elif phase == "E" and open_[pid]:
            name, begin = open_[pid].pop()
            span = (begin, event["ts"])
            if open_[pid]:
                exchange.activities.append((name, *span))
            elif name.startswith("NEGOTIATE_"):
                exchange.negotiated = span
            else:
                exchange.op, exchange.ran = name, span
                told = event.get("args", {})
                exchange.kind, exchange.shape = told.get("dtype", ""), told.get("shape", "")
                done.append(now.pop(pid))
    return done


def covered(intervals: Iterable[Interval], until: float = float("inf")) -> float:
    """Length of the union of intervals, up to ``until``."""
    total, reach = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        begin, end = max(begin, reach), min(end, until)
        if end > begin:
            total += end - begin
            reach = end
    return total


def steps_of(found: Sequence[Exchange]) -> list[list[Exchange]]:
    """The exchanges of each training step: of the tensors that are reduced again and again, the first time of each,
    the second, and so on. A tensor that the end of the file cut off may be there once less."""
    by_tensor: dict[str, list[Exchange]] = defaultdict(list)
    for exchange in found:
        if exchange.op in _EVERY_STEP:
            by_tensor[exchange.tensor].append(exchange)
    most = max(map(len, by_tensor.values()), default=0)
    if most < 2:
        return []
    rounds: list[list[Exchange]] = [[] for _ in range(most)]
    whole = [of for of in by_tensor.values() if len(of) >= most - 1]
    for of in whole:
        for number, exchange in enumerate(of):
            rounds[number].append(exchange)
    return [each for each in rounds if len(each) == len(whole)]


@dataclass(frozen=True)
class Step:
    """One step's exchange, in microseconds.

    Attributes:
        phases: time in each phase, whatever else went on at the same time.
        exchange: from the first tensor that a rank was ready with to the end of the last.
        hidden: communication before the last tensor was ready on the last rank: somebody still computed.
        period: from this step's beginning to the next one's; None for the last.
        last: the rank that was ready last, or None where the file does not say or two came together.
        late: how long the first rank waited for it.
        known: does the file say when each rank was ready?
    """

    begin: float
    phases: dict[str, float]
    exchange: float
    hidden: float
    period: float | None
    last: int | None
    late: float
    known: bool


def measured(rounds: Sequence[Sequence[Exchange]], ranks: int) -> list[Step]:
    """The figures of each step."""
    begins = [min(exchange.begin for exchange in each) for each in rounds]
    steps = []
    for number, each in enumerate(rounds):
        at: dict[str, list[Interval]] = defaultdict(list)
        for exchange in each:
            for phase, intervals in exchange.intervals().items():
                at[phase] += intervals
        ready = max((exchange.negotiated[1] for exchange in each if exchange.negotiated), default=float("-inf"))
        last, late, known = _last_ready(each, ranks)
        steps.append(
            Step(
                begin=begins[number],
                phases={phase: covered(at[phase]) for phase in PHASES},
                exchange=max(exchange.ran[1] for exchange in each) - begins[number],
                hidden=covered(at["communication"], until=ready),
                period=begins[number + 1] - begins[number] if number + 1 < len(begins) else None,
                last=last,
                late=late,
                known=known,
            )
        )
    return steps


def _last_ready(each: Sequence[Exchange], ranks: int) -> tuple[int | None, float, bool]:
    told = [exchange.ready for exchange in each if ranks > 1 and len(exchange.ready) == ranks]
    if not told:
        return None, 0.0, False
    latest = max(told, key=lambda ready: max(ready.values()))
    late = max(latest.values()) - min(latest.values())
    return (max(latest, key=latest.get) if late > TOGETHER else None), late, True


def summarize(events: Sequence[dict]) -> dict:
    """Everything the file says, in milliseconds, as --json writes it."""
    found = exchanges(events)
    ranks = 1 + max((rank for exchange in found for rank in exchange.ready), default=-1)
    rounds = steps_of(found)
    steps = measured(rounds, ranks)
    skipped = FIRST_STEPS if len(steps) >= 3 * FIRST_STEPS else 0
    counted = steps[skipped:]
    known = [step for step in counted if step.known]
    lasts = [step for step in known if step.last is not None]
    cycles = [event["ts"] for event in events if event.get("name") == "CYCLE_START" and "ts" in event]
    return {
        "ranks": ranks or None,
        "exchanges": len(found),
        "steps": len(steps),
        "steps_not_counted": skipped,
        "tensors_a_step": len(rounds[0]) if rounds else 0,
        "bytes_a_step": _sum(exchange.bytes for exchange in rounds[0]) if rounds else None,
        "step_ms": _ms(step.period for step in counted),
        "exchange_ms": _ms(step.exchange for step in counted),
        "hidden_ms": _ms(step.hidden for step in counted),
        "phases_ms": {phase: _ms(step.phases[phase] for step in counted) for phase in PHASES},
        "cycle_ms": _ms(later - earlier for earlier, later in zip(cycles, cycles[1:], strict=False)),
        "ready": {
            "steps_known": len(known),
            "together": len(known) - len(lasts),
            "last": {
                rank: {"steps": len(late), "late_ms": _ms(late)}
                for rank in range(ranks)
                if (late := [step.late for step in lasts if step.last == rank])
            },
        },
        "tensors": tensors(found),
        "each_step_ms": [
            {"at": step.begin / 1e3, "exchange": step.exchange / 1e3, "hidden": step.hidden / 1e3}
            | {phase: micro / 1e3 for phase, micro in step.phases.items()}
            for step in steps
        ],
    }


def tensors(found: Sequence[Exchange]) -> list[dict]:
    """For each tensor and operation: how often, bytes, and the median milliseconds in each phase; longest first."""
    by_name: dict[tuple[str, str], list[Exchange]] = defaultdict(list)
    for exchange in found:
        by_name[exchange.tensor, exchange.op].append(exchange)
    rows = []
    for (tensor, op), of in by_name.items():
        spent = [{phase: covered(at) for phase, at in exchange.intervals().items()} for exchange in of]
        rows.append(
            {
                "tensor": tensor,
                "op": op,
                "times": len(of),
                "bytes": of[-1].bytes,
                "activities": sorted({name for exchange in of for name, _, _ in exchange.activities}),
                "phases_ms": {phase: _ms(each.get(phase, 0.0) for each in spent) for phase in PHASES},
                "total_ms": sum(sum(each.values()) for each in spent) / 1e3,
            }
        )
    return sorted(rows, key=lambda row: -row["total_ms"])


def _ms(micros: Iterable[float | None]) -> dict | None:
    """Median, smallest, largest and number of what was measured, in milliseconds."""
    values = [micro / 1e3 for micro in micros if micro is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "n": len(values)}


def _sum(values: Iterable[int | None]) -> int | None:
    values = list(values)
    return None if None in values else sum(values)
