"""``hvd-mnist bench predict``: the cost model over many numbers of ranks, as rows, table, JSON and picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.bench.cost_fit import Fit
from hvd_mnist.bench.cost_model import ALGORITHMS, Links, Servers, efficiency, exchanges, shape, step_seconds

PICTURE_RANKS = 10_000  # at least, in the picture

# Trainable variables, each 4 bytes. Ours: tests/test_cost_model.py counts them again. The others: as Keras' list of
# applications gives them, all variables, a thousandth of which are statistics that no exchange carries.
PARAMETERS = {
    "small": 161_066,
    "cnn": 1_199_882,
    "mlp": 79_510,
    "inception3": 23_851_784,
    "resnet50": 25_636_712,
    "resnet101": 44_707_176,
    "resnet152": 60_419_944,
    "vgg16": 138_357_544,
}


@dataclass(frozen=True)
class Question:
    """What is asked: ``size`` in bytes; ``compute`` in seconds a step, or None where only the exchange is asked for."""

    size: int
    links: Links
    per_host: int = 1
    servers: Servers = Servers()
    compute: float | None = None
    overlap: float = 0.0
    algorithm: str = "best"


@dataclass(frozen=True)
class Prediction:
    """For so many ranks: seconds of an exchange by each algorithm, the fastest, and a step with the one asked for."""

    ranks: int
    exchange: dict[str, float]
    best: str
    step: float | None
    efficiency: float | None

    def as_json(self) -> dict:
        return {
            "ranks": self.ranks,
            "exchange_ms": {name: 1e3 * seconds for name, seconds in self.exchange.items()},
            "best": self.best,
            "step_ms": None if self.step is None else 1e3 * self.step,
            "efficiency": self.efficiency,
        }


def predict(asked: Question, ranks: int) -> Prediction:
    """Raises UsageError where so many ranks do not fill their hosts."""
    found = exchanges(asked.size, shape(ranks, asked.per_host), asked.links, asked.servers)
    best = min(found, key=found.get)
    taken = found[best if asked.algorithm == "best" else asked.algorithm]
    if asked.compute is None:
        return Prediction(ranks, found, best, None, None)
    step, kept = (each(asked.compute, taken, asked.overlap) for each in (step_seconds, efficiency))
    return Prediction(ranks, found, best, step, kept)


def cells(one: Prediction, per_host: int) -> list[str]:
    """A row of the table: ranks, ms of each algorithm, best, and step and efficiency where they were asked for."""
    told = [f"{1e3 * one.exchange[name]:.3f}" for name in ALGORITHMS]
    if per_host == 1 or one.ranks == 1:
        told[ALGORITHMS.index("hierarchical")] = "-"  # it is the ring
    row = [str(one.ranks), *told, "-" if one.ranks == 1 else one.best]
    return row if one.step is None else [*row, f"{1e3 * one.step:.3f}", f"{one.efficiency:.1%}"]


def columns(with_step: bool) -> list[str]:
    return ["ranks", *(f"{name} (ms)" for name in ALGORITHMS), "best", *(["step (ms)", "efficiency"] * with_step)]


def fit_in_words(found: Fit) -> str:
    """alpha = 210 +- 12 us, bandwidth = 0.0238 +- 0.0001 GB/s, from 9 rows of mpi ..."""
    links, (size, off) = found.links, found.worst
    alpha = f"{1e6 * links.alpha:.1f} +- {1e6 * found.alpha_error:.1f} us"
    bandwidth = f"{links.bandwidth / 1e9:.5g} +- {found.bandwidth_error / 1e9:.2g} GB/s"
    ranks = ", ".join(map(str, found.ranks))
    return (
        f"alpha {alpha}, bandwidth {bandwidth} (+- one standard error), wait {1e3 * links.wait:g} ms; "
        f"{found.rows} rows on {ranks} ranks read as a {found.law}, the worst at {size} bytes: measured {off:+.1%}"
    )


def draw(asked: Question, path: Path) -> None:
    """Exchange by each algorithm over ranks, and efficiency where a step is known; the suffix chooses the format.

    Hosts are powers of two: recursive halving folds other numbers, and its line would go up and down.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: a third of the size
    from matplotlib.figure import Figure

    rows, ranks = [predict(asked, 1)], max(2, asked.per_host)
    while rows[-1].ranks < PICTURE_RANKS:
        rows.append(predict(asked, ranks))
        ranks *= 2
    panels = 1 if asked.compute is None else 2
    figure = Figure(figsize=(5.5 * panels, 3.8), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    shown = [name for name in ALGORITHMS if name != "hierarchical" or asked.per_host > 1]
    for name, style in zip(shown, ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))), strict=False):
        its = [(row.ranks, row.exchange[name]) for row in rows if row.ranks > 1]
        axes[0].plot([ranks for ranks, _ in its], [1e3 * seconds for _, seconds in its], ls=style, label=name)
        if asked.compute is not None:
            kept = [100 * efficiency(asked.compute, row.exchange[name], asked.overlap) for row in rows]
            axes[1].plot([row.ranks for row in rows], kept, ls=style, label=name)
    axes[0].set(xscale="log", yscale="log", xlabel="ranks", ylabel="ms", title=f"exchange of {asked.size / 1e6:g} MB")
    if asked.compute is not None:
        title = f"efficiency, {1e3 * asked.compute:g} ms of computing, overlap {asked.overlap:g}"
        axes[1].set(xscale="log", xlabel="ranks", ylabel="%", ylim=(0, 105), title=title)
    for each in axes:
        each.grid(alpha=0.3)
        each.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path)


def as_json(asked: Question, rows: Sequence[Prediction], found: Fit | None) -> dict:
    """Everything in SI units but the rows' ms; ``schema`` grows when a name changes its meaning."""
    from dataclasses import asdict

    return {
        "schema": 1,
        "asked": {**asdict(asked), "links": {k: _finite(v) for k, v in asdict(asked.links).items()}},
        "fit": None
        if found is None
        else asdict(found) | {"links": {k: _finite(v) for k, v in asdict(found.links).items()}},
        "rows": [row.as_json() for row in rows],
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity: null stands for a bandwidth without a limit."""
    return None if value == float("inf") else value
