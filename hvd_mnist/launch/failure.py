"""Why did the job fail: the first rank that failed, or what its launcher said. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from hvd_mnist import errors
from hvd_mnist.cluster.placement import Placement
from hvd_mnist.launch import ssh

_GUARD = re.compile(
    r"hvd-mnist: rank (\d+) on (\S+), process (\d+), ended with (?:status (\d+)|signal (\d+) \(\w+\))(, told to stop)?$"
)


@dataclass(frozen=True)
class Ending:
    """How one rank ended badly. ``status`` is 128 + n for signal n; ``told`` where its launcher stopped it."""

    rank: int
    host: str
    status: int
    told: bool

    def text(self, ours: bool) -> str:
        return f"rank {self.rank} on {self.host} {meaning(self.status, ours)}"


def ending_in(line: str) -> Ending | None:
    """The ending that a guard's line tells, or None for any other line."""
    found = _GUARD.search(line)
    if not found:
        return None
    rank, host, _, status, number, told = found.groups()
    return Ending(int(rank), host, int(status) if status else 128 + int(number), bool(told))


def first_failure(endings: Iterable[Ending]) -> Ending | None:
    """The rank that failed first. Ranks that lost a peer or were told to stop are consequences, unless all are."""
    endings = list(endings)
    lost = errors.PeerLost.exit_status
    causes = [ending for ending in endings if not ending.told and ending.status != lost]
    own = [ending for ending in endings if not ending.told]
    return next(iter(causes or own or endings), None)


def meaning(status: int, ours: bool) -> str:
    """``ended with status 10 (ReplicasDiffer)``, ``was ended by signal 9 (SIGKILL ...)``.

    Args:
        ours: the program is hvd-mnist, whose statuses have names (docs/exit-codes.md).
    """
    known = next((kind.__name__ for kind in _kinds(errors.HvdMnistError) if kind.exit_status == status), None)
    if ours and known and status != 1:
        return f"ended with status {status} ({known})"
    if status > 128 and status - 128 in set(signal.Signals):
        number = signal.Signals(status - 128)
        why = ", often for want of memory" if number == signal.SIGKILL else ""
        return f"was ended by signal {int(number)} ({number.name}{why})"
    return f"ended with status {status}"


def _kinds(kind: type) -> list[type]:
    return [kind, *(one for child in kind.__subclasses__() for one in _kinds(child))]


# What launchers say when a job does not start: (pattern, what it means, what to type).
_CAUSES = (
    (r"(orted|prted): (command )?not found|/(orted|prted): No such file", "Open MPI is not on the host",
     "--prefix DIR, the folder with bin/orted on the hosts"),
    (r"not enough slots|Requested more processes", "more ranks than slots", "check -np against the slots"),
    (r"unable to find the specified|could not find an executable", "the program is not there", "check its path"),
)  # fmt: skip
_SSH_ENDED = re.compile(r"Process (\d+) exit with status code 255")


def cause_in(text: str) -> tuple[str, str] | None:
    """(what it means, what to type) of the first known message in what a launcher or ssh said."""
    own = next(((what, hint) for pattern, what, hint in _CAUSES if re.search(pattern, text)), None)
    return own or ssh.failure_in(text)


def lost_hosts(launcher: str, endings: Iterable[Ending], said: Iterable[str], placement: Placement) -> tuple[str, ...]:
    """Hosts that went away in mid-job: horovodrun's ssh to them ended, or no rank there could say how it ended."""
    where = {each.rank: each.host for each in placement.ranks}
    if launcher == "horovodrun-gloo":
        ranks = [int(found[1]) for line in said for found in _SSH_ENDED.finditer(line)]
        return tuple(dict.fromkeys(where[rank] for rank in ranks if rank in where))
    heard = {where[ending.rank] for ending in endings if ending.rank in where}
    return tuple(host.name for host in placement.hosts if host.name not in heard) if heard else ()
