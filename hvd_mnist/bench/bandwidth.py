"""Sizes, bandwidths and their table, in the terms of nccl-tests and the OSU benchmarks. Arithmetic and words only.

    algbw = bytes / time                      what a user sees
    busbw = algbw x factor                    what the busiest link carries, comparable with the hardware's figure

The factor is the least that any algorithm can do (docs/bandwidth.md derives it): an allreduce moves each byte
2 (n-1)/n times over every rank's link, an allgather (n-1)/n times, a broadcast once. Source: nccl-tests,
doc/PERFORMANCE.md; Patarasuk and Yuan, JPDC 69(2), 2009.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hvd_mnist.errors import UsageError

OPS = ("allreduce", "broadcast", "allgather")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def bus_factor(op: str, ranks: int) -> float:
    """busbw / algbw of a collective over so many ranks; 0 alone, where nothing moves. Allgather: of the whole array."""
    if ranks == 1:
        return 0.0
    return {"allreduce": 2 * (ranks - 1) / ranks, "allgather": (ranks - 1) / ranks, "broadcast": 1.0}[op]


def bytes_of(text: str) -> int:
    """4, 64K, 256M, 1G (powers of 1024, as nccl-tests reads them) in bytes.

    Raises:
        UsageError: anything else.
    """
    found = re.fullmatch(r"(\d{1,12})([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    if not found or int(found[1]) == 0:
        raise UsageError(f"size {text!r:.40}: expected a number of bytes such as 4, 64K, 256M or 1G")
    return int(found[1]) * UNITS[found[2].upper()]


def sizes(smallest: int, largest: int, factor: int) -> list[int]:
    """smallest, smallest x factor, ... up to largest, in bytes.

    Raises:
        UsageError: nothing between the two, or a factor below 2.
    """
    if smallest > largest or factor < 2:
        raise UsageError(f"sizes from {smallest} to {largest} by {factor}: expected least <= most and a factor >= 2")
    found = [smallest]
    while found[-1] * factor <= largest:
        found.append(found[-1] * factor)
    return found


@dataclass(frozen=True)
class Row:
    """One size over one backend, from the times of all iterations of all rounds.

    Attributes:
        seconds: shape [iterations], each the slowest rank's.
        cpu_seconds: per iteration, summed over ranks.
        wrong: elements of all ranks that differed from the exact answer.
        cycle_ms: Horovod's cycle time, for which an exchange waits whatever its size; 0 without Horovod, or woken.
    """

    backend: str
    op: str
    dtype: str
    tensors: int
    bytes: int
    ranks: int
    seconds: tuple[float, ...]
    cpu_seconds: float
    wrong: int
    cycle_ms: float = 0.0

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def algbw(self) -> float:
        """GB/s (10^9) at the median time."""
        return self.bytes / self.median / 1e9

    @property
    def busbw(self) -> float:
        """GB/s (10^9) at the median time."""
        return self.algbw * bus_factor(self.op, self.ranks)

    def as_json(self) -> dict:
        quantile = np.quantile(self.seconds, (0, 0.25, 0.75, 0.99)) * 1e6
        return {
            "backend": self.backend,
            "op": self.op,
            "dtype": self.dtype,
            "tensors": self.tensors,
            "bytes": self.bytes,
            "ranks": self.ranks,
            "n": len(self.seconds),
            "min_us": round(float(quantile[0]), 2),
            "median_us": round(self.median * 1e6, 2),
            "quartiles_us": [round(float(q), 2) for q in quantile[1:3]],
            "p99_us": round(float(quantile[3]), 2),
            "cpu_us": round(self.cpu_seconds * 1e6, 2),
            "algbw_gb_s": round(self.algbw, 4),
            "busbw_gb_s": round(self.busbw, 4),
            "wrong": self.wrong,
            "cycle_ms": self.cycle_ms,
        }


def merged(parts: Iterable[Row]) -> list[Row]:
    """Rows of several rounds, put together by backend, size and number of tensors, in order of first appearance."""
    together: dict[tuple, list[Row]] = {}
    for row in parts:
        together.setdefault((row.backend, row.op, row.dtype, row.tensors, row.bytes, row.ranks), []).append(row)
    return [
        Row(
            *key,
            seconds=tuple(second for row in rows for second in row.seconds),
            cpu_seconds=float(np.mean([row.cpu_seconds for row in rows])),
            wrong=sum(row.wrong for row in rows),
            cycle_ms=rows[0].cycle_ms,
        )
        for key, rows in together.items()
    ]


COLUMNS = ("backend", "size (B)", "tensors", "type", "n", "min (us)", "median", "p99", "algbw (GB/s)", "busbw (GB/s)",
           "cpu (us)", "#wrong")  # fmt: skip


def cells(row: Row) -> list[str]:
    """A row of the table, under COLUMNS."""
    said = row.as_json()
    times = [f"{said[key]:.1f}" for key in ("min_us", "median_us", "p99_us")]
    bandwidths = [f"{row.algbw:.3f}", f"{row.busbw:.3f}"]
    return [row.backend, str(row.bytes), str(row.tensors), row.dtype, str(said["n"]), *times, *bandwidths,
            f"{said['cpu_us']:.0f}", str(row.wrong)]  # fmt: skip


def best_busbw(rows: Sequence[Row], backend: str) -> float:
    """The highest bus bandwidth that a backend reached, GB/s; 0 where it measured nothing."""
    return max((row.busbw for row in rows if row.backend == backend), default=0.0)
