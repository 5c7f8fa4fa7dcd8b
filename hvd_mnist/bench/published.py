"""What others published, beside what the cost model says of the same machines: ``hvd-mnist bench predict --published``.

Two predictions bound each figure: nothing of the exchange hidden, and all of it that fits behind the backward pass. The
assumptions stand in ``SYSTEMS``; what is an assumption of ours and not in the source is marked so. Line rates, no
latency, no adding up, nobody late: the model's bounds are the best that such a machine could do.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvd_mnist.bench.cost_model import Links, Servers, efficiency, exchanges, shape
from hvd_mnist.bench.predictions import PARAMETERS

BACKWARD = 2 / 3  # of a step's computing: two products of matrices a layer, against one forward
GBIT = 1e9 / 8

# Images a second on one GPU, "Benchmarks" of TensorFlow's guide of 2017, synthetic data, batch of 64 (ResNet-152 on the
# K80: 32). ResNet-101 is not in it: the mean of ResNet-50's and ResNet-152's time an image, our assumption (its
# multiplications lie half way between theirs).
P100 = {"inception3": 142, "resnet101": 2 / (1 / 219 + 1 / 91.8), "vgg16": 154}
K80 = {"inception3": 29.7, "resnet50": 52.4, "resnet152": 19.4}


@dataclass(frozen=True)
class System:
    """A published result: which algorithm, on how many ranks, and the efficiency that its authors give.

    Attributes:
        compute: seconds of a step on one GPU.
        bandwidth: bytes a second of a host's link.
        why: what is off, in a sentence; and what of the above is our assumption.
    """

    name: str
    model: str
    ranks: int
    per_host: int
    algorithm: str
    compute: float
    bandwidth: float
    efficiency: float
    why: str
    servers: Servers = Servers()


def _horovod(model: str, ranks: int, network: str, published: float, why: str) -> System:
    compute = 64 / P100[model]
    return System(f"Horovod, {network}", model, ranks, 4, "ring", compute, 25 * GBIT, published, why)


def _tensorflow(model: str, batch: int, servers: int, rate: float, why: str) -> System:
    """64 K80 in 8 hosts of 8; a host's towers add up first, so that a host is one rank for the servers."""
    published = rate / 64 / K80[model]
    return System("TensorFlow's servers, 64 K80", model, 8, 1, "ps", batch / K80[model], 10 * GBIT, published, why,
                  Servers(servers, colocated=True))  # fmt: skip


def _old_servers(model: str) -> System:
    why = "assumed: a server on each of 32 hosts, every GPU pushes by itself; gRPC of then reached a part of 25 Gbit/s"
    return System("TensorFlow's servers, TCP", model, 128, 4, "ps", 64 / P100[model], 25 * GBIT, 0.5, why,
                  Servers(32, colocated=True))  # fmt: skip


TCP = "what TCP loses of the line rate took what was hidden"
SYSTEMS = (
    _horovod("inception3", 128, "TCP", 0.88, TCP),
    _horovod("resnet101", 128, "TCP", 0.88, TCP),
    _horovod("inception3", 512, "RoCE", 0.90, "little was hidden, or late ranks: the slowest of 512 sets every step"),
    _horovod("resnet101", 512, "RoCE", 0.90, "a part was hidden"),
    _horovod(
        "vgg16",
        512,
        "RoCE",
        0.68,
        "three quarters of the bytes are one layer's, one tensor: it is sent when it is whole",
    ),
    _old_servers("inception3"),
    _old_servers("resnet101"),
    _tensorflow("inception3", 64, 6, 1783, "a part was hidden"),
    _tensorflow(
        "resnet50", 64, 8, 2744, "the link's 10 Gbit/s are nominal, gRPC copies, the slowest host sets the step"
    ),
    _tensorflow("resnet152", 32, 4, 981, "little was hidden"),
)

NOT_PREDICTED = (
    "Baidu, 40 GPUs, 31 times one GPU (77.5 %): no time of a step on one GPU and no link is published, so there is "
    "nothing to predict from. The other way round: what is not hidden took 0.29 of the computing."
)


def bounds(system: System) -> tuple[float, float]:
    """(nothing hidden, all hidden that fits behind the backward pass): efficiencies by the model."""
    links = Links(alpha=0.0, bandwidth=system.bandwidth)  # within a host: at once
    where = shape(system.ranks, system.per_host)
    seconds = exchanges(4 * PARAMETERS[system.model], where, links, system.servers)[system.algorithm]
    return efficiency(system.compute, seconds, 0.0), efficiency(system.compute, seconds, BACKWARD)


HEADER = ("published", "model", "ranks", "by the model", "figure", "", "why")


def table() -> list[tuple[str, ...]]:
    """Rows under HEADER: the two bounds, the published figure, and on which side of the bounds it is."""
    rows = []
    for system in SYSTEMS:
        low, high = (round(bound, 2) for bound in bounds(system))  # as exactly as the figures are given
        side = "in" if low <= system.efficiency <= high else "below" if system.efficiency < low else "above"
        distance = {
            "in": "",
            "below": f" by {low - system.efficiency:.0%}",
            "above": f" by {system.efficiency - high:.0%}",
        }
        rows.append((system.name, system.model, str(system.ranks), f"{low:.0%} to {high:.0%}",
                     f"{system.efficiency:.0%}", side + distance[side], system.why))  # fmt: skip
    return rows
