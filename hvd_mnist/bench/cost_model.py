"""How long a step's exchange takes, by arithmetic: alpha, beta and gamma of Hockney's model.

    a message of m bytes      alpha + m / bandwidth          seconds; adding m bytes up: gamma m more

A rank sends one message and receives another at a time (one port, both ways at once). All times are in seconds, all
sizes in bytes, bandwidths in bytes a second each way. Sources: Hockney, Parallel Computing 20(3), 1994 (the message);
Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005 (ring, trees, halving); Patarasuk and Yuan, JPDC 69(2), 2009 (no
allreduce sends fewer bytes than the ring); Jiang and others, OSDI 2020, "BytePS" (the parameter servers).
docs/cost-model.md derives what is not in them and holds the formulas against measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hvd_mnist.errors import UsageError


@dataclass(frozen=True)
class Links:
    """What the network does.

    Attributes:
        alpha: seconds that a message between hosts takes whatever its size.
        bandwidth: bytes a second that a host's link carries, each way at once; all its ranks share it.
        local_alpha: as alpha, between ranks of one host.
        local_bandwidth: bytes a second from a rank to another of its host, each way; every pair has its own.
        gamma: seconds to add up one byte.
        wait: seconds before an allreduce begins, whatever its size and ranks: Horovod's cycle time.
    """

    alpha: float
    bandwidth: float
    local_alpha: float = 0.0
    local_bandwidth: float = math.inf
    gamma: float = 0.0
    wait: float = 0.0


@dataclass(frozen=True)
class Servers:
    """Parameter servers: how many; on hosts of ranks (one each at most) or of their own; push beside pull or after."""

    count: int = 1
    colocated: bool = False
    overlap: bool = False


@dataclass(frozen=True)
class Shape:
    """So many hosts with so many ranks each. One host alone is seen as many whose links are the local ones."""

    hosts: int
    per_host: int

    @property
    def ranks(self) -> int:
        return self.hosts * self.per_host


def shape(ranks: int, per_host: int = 1) -> Shape:
    """``ranks`` on hosts of ``per_host``, filled one after the other.

    Raises:
        UsageError: the last host would be filled in part.
    """
    if ranks <= per_host:
        return Shape(1, ranks)
    if ranks % per_host:
        raise UsageError(f"{ranks} ranks do not fill hosts of {per_host}", f"--ranks {ranks - ranks % per_host}")
    return Shape(ranks // per_host, per_host)


def ring(size: float, where: Shape, links: Links) -> float:
    """Reduce-scatter and all-gather around one ring, as Gloo, NCCL and Baidu do it.

    2 (N - 1) messages one after the other, each S / N; the slower of the links within and between hosts sets the pace.
    Each rank sends 2 (N - 1) / N S, the least possible (Patarasuk and Yuan), and adds (N - 1) / N S up.
    """
    part = size / where.ranks
    paces = [0.0]
    if where.per_host > 1:
        paces.append(links.local_alpha + part / links.local_bandwidth)
    if where.hosts > 1:
        paces.append(links.alpha + part / links.bandwidth)
    return (where.ranks - 1) * (2 * max(paces) + part * links.gamma)


def tree(size: float, where: Shape, links: Links) -> float:
    """Reduce along a binomial tree, then broadcast along it, everything in one piece; within hosts first.

    2 ceil(lg N) messages of S one after the other, ceil(lg N) S added up (Thakur and others).
    """
    within, between = _levels(where.per_host), _levels(where.hosts)
    sent = within * (links.local_alpha + size / links.local_bandwidth)
    return 2 * (sent + between * (links.alpha + size / links.bandwidth)) + (within + between) * size * links.gamma


def halving(size: float, where: Shape, links: Links) -> float:
    """Recursive halving, then recursive doubling (Rabenseifner); near ranks first, so that hosts exchange S / L parts.

    p ranks, a power of two: 2 lg p messages, 2 (p - 1) / p S sent, (p - 1) / p S added up. Others first fold: the ranks
    above the power of two send all to a partner and get all back, 2 messages of S more (Thakur and others).
    """

    def among(ranks: int, size: float, alpha: float, bandwidth: float) -> float:
        power = 1 << (ranks.bit_length() - 1)
        kept = (power - 1) / power * size
        seconds = 2 * (power.bit_length() - 1) * alpha + 2 * kept / bandwidth + kept * links.gamma
        return seconds + (2 * (alpha + size / bandwidth) + size * links.gamma if power < ranks else 0.0)

    part = size / where.per_host  # of which every rank of a host sends its own over the one link
    within = among(where.per_host, size, links.local_alpha, links.local_bandwidth)
    return within + among(where.hosts, part, links.alpha, links.bandwidth / where.per_host)


def hierarchical(size: float, where: Shape, links: Links) -> float:
    """A ring's reduce-scatter within hosts, L rings at once between them, a ring's all-gather within hosts.

    2 (L - 1) local messages of S / L, 2 (H - 1) messages between hosts of S / L / H, L of them sharing a link. This is
    Horovod's HOROVOD_HIERARCHICAL_ALLREDUCE. One rank a host: the ring.
    """
    part = size / where.per_host
    within = ring(size, Shape(1, where.per_host), links)
    shared = replace(links, bandwidth=links.bandwidth / where.per_host)
    return within + ring(part, Shape(where.hosts, 1), shared)


def parameter_server(size: float, where: Shape, links: Links, servers: Servers = Servers()) -> float:
    """Each rank pushes S / k to each of k servers, which add up, and pulls S / k from each.

    Messages of S / k at the busiest link, one after the other:
        own hosts            a server takes N in a push, a host of ranks sends L k; as many in a pull. Push beside
                             pull: the larger number, once; after it: twice. (BytePS, L = 1: max(S, N S / k) / B.)
        on hosts of ranks    a server takes L (H - 1) in a push and sends as many in a pull; its ranks send and take
                             L (k - 1) more. After it: 2 L (H - 1); beside it: L (H + k - 2). k = H: 2 (N - 1) / N S.
    A server adds (N - 1) S / k up. Where all ranks and servers are on one host, its local links are used.
    """
    if where.hosts == 1 and servers.colocated:
        links = replace(links, alpha=links.local_alpha, bandwidth=links.local_bandwidth)
        where = Shape(where.per_host, 1)
    count, each = servers.count, where.per_host
    if servers.colocated:
        count = min(count, where.hosts)
        serial, beside = 2 * each * (where.hosts - 1), each * (where.hosts + count - 2)
    else:
        beside = max(where.ranks, each * count)
        serial = 2 * beside
    messages = beside if servers.overlap else serial
    part = size / count
    return messages * (links.alpha + part / links.bandwidth) + (where.ranks - 1) * part * links.gamma


ALLREDUCES = {"ring": ring, "tree": tree, "halving": halving, "hierarchical": hierarchical}
ALGORITHMS = (*ALLREDUCES, "ps")


def exchanges(size: float, where: Shape, links: Links, servers: Servers) -> dict[str, float]:
    """Seconds of one exchange of ``size`` bytes by every algorithm; a rank alone talks to servers elsewhere only."""
    wait = links.wait if where.ranks > 1 else 0.0
    found = {name: wait + seconds(size, where, links) for name, seconds in ALLREDUCES.items()}
    return found | {"ps": parameter_server(size, where, links, servers)}


def step_seconds(compute: float, exchange: float, overlap: float) -> float:
    """A step: its computing, and of the exchange what cannot be hidden behind the last ``overlap`` (0 to 1) of it.

    The backward pass is about two thirds of the computing, so 0.67 is the most that a perfect overlap hides behind; 0
    where all gradients leave together at its end. Weak scaling: every rank computes for as long at any number of ranks.
    """
    return compute + max(0.0, exchange - overlap * compute)


def efficiency(compute: float, exchange: float, overlap: float) -> float:
    """Images a second and rank, as part of what a rank alone does; 1 where all of the exchange is hidden."""
    return compute / step_seconds(compute, exchange, overlap)


def _levels(ranks: int) -> int:
    """ceil(lg ranks)."""
    return (ranks - 1).bit_length()
