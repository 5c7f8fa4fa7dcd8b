"""Curves as numbers for an SVG: where each line, mark and tick stands. Pure; the template draws them.

The drawing has no colours of its own, so that the page's light and dark style sheets can give them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 400, 250  # of the view box; the page scales it
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 12, 36
MOST_POINTS = 400  # of a line: more cannot be told apart in a picture of this width
MOST_MARKS = 24
COLOURS = 6  # of the style sheet; each also has a dash and a mark of its own


@dataclass(frozen=True)
class Series:
    """One curve: ``points`` are (x, y), x rising. ``run`` chooses colour, dash and mark."""

    label: str
    points: Sequence[tuple[float, float]]
    run: int = 0
    marks: bool = False


@dataclass(frozen=True)
class Line:
    """A curve in the view box: ``path`` for one polyline, ``marks`` for the single points."""

    label: str
    run: int
    path: str
    marks: tuple[tuple[float, float, str], ...]  # x, y, what a reader is told of the point


@dataclass(frozen=True)
class Chart:
    title: str
    description: str
    x_label: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


def chart(title: str, x_label: str, series: Sequence[Series], *, log: bool = False, zero: bool = False) -> Chart | None:
    """Lay out curves; None where no series has a point that can be drawn.

    Args:
        log: logarithmic y; points that are not positive are left out.
        zero: let y begin at 0, where it is not logarithmic.
    """
    drawn = [(one, _drawable(one.points, log)) for one in series]
    drawn = [(one, points) for one, points in drawn if points]
    if not drawn:
        return None
    xs = [x for _, points in drawn for x, _ in points]
    ys = [math.log10(y) if log else y for _, points in drawn for _, y in points]
    low, high = _room(min(0.0, *ys) if zero and not log else min(ys), max(ys))
    left, right = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 1, max(xs) + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        up = HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return round(across, 1), round(up, 1)

    lines = []
    for one, points in drawn:
        places = [(*place(x, math.log10(y) if log else y), f"{one.label}, {x:g}: {y:.4g}") for x, y in points]
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y, _ in thinned(places))
        lines.append(Line(one.label, one.run, path, tuple(thinned(places, MOST_MARKS)) if one.marks else ()))
    y_ticks = _log_ticks(low, high) if log else ticks(low, high)
    return Chart(
        title,
        "; ".join(f"{one.label}: from {points[0][1]:.4g} to {points[-1][1]:.4g}" for one, points in drawn),
        x_label,
        tuple(lines),
        tuple((place(x, low)[0], short(x)) for x in ticks(left, right)),
        tuple((place(left, math.log10(y) if log else y)[1], short(y)) for y in y_ticks),
    )


def _drawable(points, log: bool) -> list[tuple[float, float]]:
    return [
        (float(x), float(y))
        for x, y in points
        if isinstance(y, (int, float)) and math.isfinite(y) and (y > 0 or not log)
    ]


def _room(low: float, high: float) -> tuple[float, float]:
    """A little air above and below; some height where all values are equal."""
    if high - low < 1e-12:
        half = abs(high) / 10 or 1.0
        return (low - half if low else 0.0), high + half
    return (low - (high - low) * 0.04 if low else 0.0), high + (high - low) * 0.04


def thinned(points: list, most: int = MOST_POINTS) -> list:
    """At most ``most`` of the points, evenly taken; the first and the last always."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(number * step)] for number in range(most)]


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between ``low`` and ``high``: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20 ... between 10^low and 10^high, or powers of ten alone where these would be many."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    factors = (1,) if high - low > 3 else (1, 2, 5)
    found = [factor * 10.0**decade for decade in decades for factor in factors]
    found = [value for value in found if low <= math.log10(value) <= high]
    return found if len(found) > 1 else [10.0**y for y in ticks(low, high, 3)]


def short(value: float) -> str:
    """A number for a tick: 12000 is 12k, 2500000 is 2.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):g}{unit}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:g}"
