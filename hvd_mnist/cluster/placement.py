"""Hosts and a number of ranks become places: rank, local rank, host, cross rank. Arithmetic only.

    place(parse_hosts("h1:4,h2:4"), 6)                h1: ranks 0-3, h2: ranks 4-5   (hosts are filled in order)
    place(parse_hosts("h1:4,h2:4"), 6, spread=True)   h1: ranks 0-2, h2: ranks 3-5

Ranks are numbered host by host, as horovodrun and ``mpirun --map-by slot`` do. The cross rank is Horovod's: the
index of a host among the hosts that have this local rank (not among all hosts).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from hvd_mnist.cluster.host import Host, shorten
from hvd_mnist.errors import LaunchError, UsageError

MAX_RANKS = 100_000
"""Most ranks of one job."""


@dataclass(frozen=True)
class RankPlace:
    """Where one rank runs. ``slot`` is the GPU index on its host: local_rank, unless a filter kept others."""

    rank: int
    local_rank: int
    local_size: int
    host: str
    cross_rank: int
    cross_size: int
    slot: int


@dataclass(frozen=True)
class Placement:
    """Places of all ranks, by rank; ``hosts`` are the hosts in use, in order, ``counts`` their ranks."""

    ranks: tuple[RankPlace, ...]
    hosts: tuple[Host, ...]
    counts: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.ranks)

    def table_rows(self) -> list[tuple[str, ...]]:
        """A heading and one row for each rank."""
        head = ("rank", "host", "local rank", "local size", "cross rank", "cross size", "slot")
        return [
            head,
            *(
                tuple(
                    str(value)
                    for value in (r.rank, r.host, r.local_rank, r.local_size, r.cross_rank, r.cross_size, r.slot)
                )
                for r in self.ranks
            ),
        ]

    def host_rows(self) -> list[tuple[str, ...]]:
        """A heading and one row for each host: for jobs of many ranks."""
        first = [0, *accumulate(self.counts)]
        return [
            ("host", "ranks", "slots in use"),
            *(
                (str(host.name), f"{low}-{low + count - 1}" if count > 1 else str(low), f"{count} of {host.slot_count}")
                for host, low, count in zip(self.hosts, first, self.counts, strict=False)
            ),
        ]


def place(hosts: Iterable[Host], np: int | None = None, spread: bool = False) -> Placement:
    """Give each rank a host.

    Args:
        hosts: a HostList, or any hosts with different names.
        np: number of ranks; None uses every slot.
        spread: share ranks evenly over hosts, instead of filling hosts in order.

    Raises:
        LaunchError: more ranks than slots, or no host.
        UsageError: np is below 1.
    """
    hosts = tuple(hosts)
    slots = [host.slot_count for host in hosts]
    if not hosts:
        raise LaunchError("no host to place ranks on", "give -H h1:4,h2:4 or --hostfile FILE")
    if np is None:
        np = sum(slots)
    if np < 1:
        raise UsageError(f"-np {np}: a job has at least 1 rank", "write -np 1 or more")
    if np > MAX_RANKS:
        raise LaunchError(f"-np {np}: at most {MAX_RANKS} ranks can be placed", "check -np and the slots")
    if np > sum(slots):
        raise _too_many(hosts, np, sum(slots))
    counts = _spread(slots, np) if spread else _fill(slots, np)
    used = [(host, count) for host, count in zip(hosts, counts, strict=True) if count]
    cross_sizes = [sum(count > local_rank for _, count in used) for local_rank in range(max(counts))]
    met = [0] * max(counts)  # hosts so far that have this local rank
    ranks: list[RankPlace] = []
    for host, count in used:
        for local_rank in range(count):
            slot = host.slot_ids[local_rank] if host.slot_ids else local_rank
            ranks.append(
                RankPlace(len(ranks), local_rank, count, host.name, met[local_rank], cross_sizes[local_rank], slot)
            )
            met[local_rank] += 1
    return Placement(tuple(ranks), tuple(host for host, _ in used), tuple(count for _, count in used))


def _fill(slots: list[int], np: int) -> list[int]:
    """Ranks per host when hosts are filled in order."""
    counts = []
    for most in slots:
        counts.append(min(most, np))
        np -= counts[-1]
    return counts


def _spread(slots: list[int], np: int) -> list[int]:
    """Ranks per host as even as slots allow: two hosts with a free slot differ by at most 1, earlier ones first."""
    level = 0  # each host has min(slots, level) ranks, and the rest goes one by one to hosts with a slot above it
    while sum(min(most, level + 1) for most in slots) <= np and level < max(slots):
        level += 1
    counts = [min(most, level) for most in slots]
    rest = np - sum(counts)
    for index, most in enumerate(slots):
        if rest and most > level:
            counts[index] += 1
            rest -= 1
    return counts


def _too_many(hosts: tuple[Host, ...], np: int, total: int) -> LaunchError:
    shown = shorten(",".join(f"{host.address}:{host.slot_count}" for host in hosts))
    each = -(-np // len(hosts))
    more = shorten(",".join(f"{host.address}:{max(each, host.slot_count)}" for host in hosts))
    unsaid = [host.name for host in hosts if host.slots is None]
    because = f"; {shorten(', '.join(unsaid))} has no number of slots, which means 1" if unsaid else ""
    return LaunchError(
        f"-np {np} needs {np} slots, but {shown} has {total}{because}",
        f"write -H {more} if the hosts have the GPUs or cores for it, or -np {total}",
    )
