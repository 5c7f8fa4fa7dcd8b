"""alpha and bandwidth from a measured sweep: what ``hvd-mnist bench allreduce --json FILE`` wrote.

Every formula of the cost model is a sum of alpha times messages and 1 / bandwidth times bytes, so that a straight line
through (bytes, seconds) gives both. gamma cannot be told from them: in every algorithm a rank adds up half of the bytes
that it receives, so the fitted 1 / bandwidth holds gamma / 2, and predictions are right with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvd_mnist.bench import cost_model
from hvd_mnist.bench.cost_model import Links, Servers, shape
from hvd_mnist.errors import DataError, UsageError

# What a backend of bench allreduce runs. Open MPI chooses by size and ranks; on two ranks all that it takes for large
# arrays sends what a ring sends. The server is rank 0, which sends when it has all.
LAW_OF = {"horovod-gloo": "ring", "horovod-mpi": "ring", "mpi": "ring", "parameter-server": "server"}
LAWS = {
    "ring": cost_model.ring,
    "halving": cost_model.halving,
    "server": lambda size, where, links: cost_model.parameter_server(size, where, links, Servers(1, colocated=True)),
}

ONE_PER_CENT = 0.01  # no row is trusted further: its n iterations lie seconds apart, a machine's drift minutes
NORMAL_QUARTILES, MEDIAN_TO_MEAN = 1.349, 1.2533  # of a normal distribution: quartile range, error of a median


@dataclass(frozen=True)
class Point:
    """A measured exchange: median seconds, the error of that median, and the wait that no size explains."""

    ranks: int
    bytes: int
    seconds: float
    error: float
    wait: float = 0.0


@dataclass(frozen=True)
class Fit:
    """Fitted links, one standard error of each number, and how far the worst row is from them.

    Attributes:
        alpha_error: seconds.
        bandwidth_error: bytes a second.
        worst: (bytes, measured / fitted - 1) of the row that is furthest off.
    """

    links: Links
    alpha_error: float
    bandwidth_error: float
    law: str
    ranks: tuple[int, ...]
    rows: int
    worst: tuple[int, float]


def read_sweep(path: str | Path, backend: str | None = None, least: int = 0) -> tuple[str, list[Point]]:
    """(backend, its points of ``least`` bytes or more) of a file that ``bench allreduce --json`` wrote.

    Raises:
        DataError: no such file, or not one of ours.
        UsageError: the file has no such backend, or several and none was named.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = [row for row in found["rows"] if row["op"] == "allreduce"]
        backends = list(dict.fromkeys(str(row["backend"]) for row in rows))
        points = {name: [_point(row) for row in rows if row["backend"] == name] for name in backends}
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path}: expected what bench allreduce --json writes, found {what:.80}",
            "hvd-mnist bench allreduce -H host1:1,host2:1 --json FILE",
        ) from None
    if not backends:
        raise DataError(f"{path}: holds no row of an allreduce", "hvd-mnist bench allreduce --json FILE")
    if backend is None and len(backends) > 1:
        raise UsageError(f"{path} measured {', '.join(backends)}: choose one", f"--backend {backends[0]}")
    if backend is not None and backend not in backends:
        raise UsageError(f"{path} measured {', '.join(backends)}, not {backend}", f"--backend {backends[0]}")
    name = backend or backends[0]
    if name not in LAW_OF:
        raise DataError(f"{path}: no law is known of the backend {name!r:.40}", f"--backend of {', '.join(LAW_OF)}")
    return name, [point for point in points[name] if point.bytes >= least]


def _point(row: dict) -> Point:
    median, (low, high), count = float(row["median_us"]), map(float, row["quartiles_us"]), int(row["n"])
    error = (high - low) / NORMAL_QUARTILES * MEDIAN_TO_MEAN / math.sqrt(count)
    point = Point(int(row["ranks"]), int(row["bytes"]), median / 1e6, error / 1e6, float(row.get("cycle_ms", 0)) / 1e3)
    if not (point.ranks > 0 and point.bytes > 0 and 0 < point.seconds < math.inf and 0 <= point.error < math.inf):
        raise ValueError(f"a row with {point.ranks} ranks, {point.bytes} bytes, {median} us")
    return point


def fit(points: Sequence[Point], law: str = "ring") -> Fit:
    """Weighted least squares for alpha and 1 / bandwidth of one of LAWS, ranks one a host (or all of them on one).

    A point weighs 1 / error^2; its error is that of its median (quartiles, n), 1 % of it at least. The covariance is
    inv(A' W A), times chi^2 / (points - 2) where that is above 1: where the law misses the points by more than their
    errors, it is the law's miss that the standard errors tell. An alpha that would be negative is put to 0.

    Raises:
        UsageError: too few sizes, or times that do not grow with them.
    """
    points = [point for point in points if point.ranks > 1]
    if len({(point.ranks, point.bytes) for point in points}) < 3:
        raise UsageError(
            f"{len(points)} rows of two ranks or more: a fit needs three different sizes",
            "hvd-mnist bench allreduce -np 2 --min-bytes 64K --max-bytes 16M --json FILE",
        )
    factors = np.array([_factors(point, law) for point in points])
    measured = np.array([point.seconds - point.wait for point in points])
    errors = np.array([max(point.error, ONE_PER_CENT * point.seconds) for point in points])
    (alpha, per_byte), (alpha_error, per_byte_error) = _least_squares(factors, measured, errors)
    if alpha < 0:
        (per_byte,), (per_byte_error,) = _least_squares(factors[:, 1:], measured, errors)
        alpha = 0.0
    if per_byte <= 0:
        raise UsageError("the times do not grow with the sizes: no bandwidth can be told", "measure larger sizes")
    links = Links(float(alpha), float(1 / per_byte), wait=float(np.median([point.wait for point in points])))
    fitted = factors @ np.array([alpha, per_byte]) + [point.wait for point in points]
    off = np.array([point.seconds for point in points]) / fitted - 1
    furthest = int(np.argmax(np.abs(off)))
    return Fit(
        links=links,
        alpha_error=float(alpha_error),
        bandwidth_error=float(per_byte_error / per_byte**2),
        law=law,
        ranks=tuple(sorted({point.ranks for point in points})),
        rows=len(points),
        worst=(points[furthest].bytes, float(off[furthest])),
    )


def predicted(point: Point, law: str, links: Links) -> float:
    """Seconds of the exchange of ``point`` by one of LAWS, its ranks one a host; the point's wait included."""
    return point.wait + LAWS[law](point.bytes, shape(point.ranks), links)


def _factors(point: Point, law: str) -> tuple[float, float]:
    """(messages, bytes) by which alpha and 1 / bandwidth are multiplied: the law with one of them 1, the other 0."""
    where = shape(point.ranks)
    return LAWS[law](point.bytes, where, Links(1.0, math.inf)), LAWS[law](point.bytes, where, Links(0.0, 1.0))


def _least_squares(factors: np.ndarray, measured: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(values, standard errors), float64 [columns]; factors [points, columns], measured and errors [points]."""
    scale = np.linalg.norm(factors / errors[:, None], axis=0)  # columns differ by ten orders of magnitude
    weighted, target = factors / errors[:, None] / scale, measured / errors
    covariance = np.linalg.inv(weighted.T @ weighted)
    values = covariance @ weighted.T @ target
    spare = len(measured) - factors.shape[1]
    chi = float(np.sum((target - weighted @ values) ** 2)) / spare
    return values / scale, np.sqrt(np.diag(covariance) * max(1.0, chi)) / scale
