"""Scaling in tables, words and a picture; from ``scaling.summarize``."""

from __future__ import annotations

from pathlib import Path

from hvd_mnist.bench.step_parts import PARTS, SLOW
from hvd_mnist.console import count
from hvd_mnist.errors import UsageError


def shown(value: dict | None, form: str = "{:.1f}", scale: float = 1.0) -> str:
    """Median, and least to most where there is more than one."""
    if value is None:
        return "-"
    middle, least, most = (form.format(scale * value[name]) for name in ("median", "least", "most"))
    return middle if value["n"] == 1 else f"{middle} ({least} to {most})"


def tell(result: dict, console) -> None:
    """Tables and lines."""
    what = result["settings"]
    each = "a rank" if what["kind"] == "weak" else "over all ranks"
    console.say(
        f"{what['kind']} scaling of {what['model']} on {what['data']}: {what['batch']} images a step {each}, "
        f"{count(what['threads'], 'thread')} a rank, {count(result['cores'], 'core')} a host; medians of "
        f"{count(what['repeats'], 'repeat')} of {what['steps']} steps, least to most in brackets"
    )
    rows = [
        (
            row["ranks"],
            row["hosts"],
            shown(row["images_per_second"], "{:.0f}"),
            shown(row["efficiency"], "{:.0f}%", 100),
            shown(row["cpu_ms_per_image"], "{:.3g}"),
            shown(row["cpu_efficiency"], "{:.0f}%", 100),
        )
        for row in result["rows"]
    ]
    header = ("ranks", "hosts", "images/s", "efficiency", "CPU ms an image", "the same by CPU seconds")
    console.table("", rows, header, width=140)
    rows = [
        (
            row["ranks"],
            *(f"{row['parts_ms'][part]['median']:.1f}" for part in (*PARTS, "step")),
            "-" if not row["timeline"] else f"{row['timeline']['hidden_ms']:.1f}",
        )
        for row in result["rows"]
    ]
    console.table("where a step's time goes, ms, mean over ranks", rows, ("ranks", *PARTS, "step", "hidden"), width=140)
    rows = [
        (
            f"{rank['rank']} of {row['ranks']}",
            rank["host"],
            shown(rank["own_ms"]),
            shown(rank["factor"], "{:.2f}"),
            f"{rank['mean_ms']['wait']:.1f}",
            shown(rank["cpu_ms"]),
        )
        for row in result["rows"]
        for rank in row["by_rank"]
    ]
    header = ("rank", "host", "own ms a step", "by the others' median", "wait ms", "CPU ms a step")
    console.table("each rank: what a step takes without the others", rows, header, width=140)
    for line in lines(result):
        console.say(line)


def lines(result: dict) -> list[str]:
    """What a reader must know before believing the tables. Pure."""
    told, what = [], result["settings"]
    shared = [row for row in result["rows"] if row["cores_shared"]]
    for row in shared:
        told.append(
            f"{count(row['ranks'], 'rank')} on {count(result['cores'] * row['hosts'], 'core')}: they take turns on the "
            "cores, so this efficiency is the machine's and not the exchange's; the CPU seconds still count"
        )
    if result["load"] > 0.5:
        told.append(
            f"other jobs ran meanwhile: the machine's load was {result['load']:.1f} before the first job; wall times "
            "and efficiency hold their share, CPU seconds much less"
        )
    for row in result["rows"]:
        for rank in row["by_rank"]:
            if rank["factor"] and rank["factor"]["median"] >= SLOW:
                who = f"rank {rank['rank']} of {row['ranks']} on {rank['host']}"
                times = f"{rank['factor']['median']:.2f} times the others' median"
                told.append(f"slow: {who} takes {times} for its own part of a step")
        if row["timeline"] and row["timeline"]["communication_ms"]:
            part = row["timeline"]["hidden_ms"] / row["timeline"]["communication_ms"]
            told.append(
                f"{count(row['ranks'], 'rank')}: by Horovod's timeline, {part:.0%} of communication is hidden behind "
                "gradients that are still being computed"
            )
    least = result["rows"][0]["ranks"]
    if least != 1:
        told.append(f"efficiency is against {count(least, 'rank')}, the fewest that were measured")
    if what["kind"] == "weak" and len(result["rows"]) > 1:
        told.append("efficiency: images/s a rank, by those of the fewest ranks in the same repeat")
    return told


def plot(result: dict, path: Path) -> None:
    """Images per second beside the ideal line, and the parts of a step; the suffix of ``path`` is the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    speed, split = figure.subplots(1, 2)
    rows = [row for row in result["rows"] if row["images_per_second"]]
    sizes = [row["ranks"] for row in rows]
    medians = [row["images_per_second"]["median"] for row in rows]
    reach = [
        [m - row["images_per_second"]["least"] for m, row in zip(medians, rows, strict=True)],
        [row["images_per_second"]["most"] - m for m, row in zip(medians, rows, strict=True)],
    ]
    speed.errorbar(sizes, medians, yerr=reach, marker="o", capsize=3, label="measured")
    speed.plot(sizes, [medians[0] * size / sizes[0] for size in sizes], "--", color="grey", label="ideal")
    speed.set(xlabel="ranks", ylabel="images/s", title=f"{result['settings']['kind']} scaling", xticks=sizes)
    speed.set_ylim(bottom=0)
    speed.legend(frameon=False)
    below = [0.0] * len(rows)
    for part in PARTS:
        heights = [row["parts_ms"][part]["median"] for row in rows]
        split.bar([str(size) for size in sizes], heights, bottom=below, label=part)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    split.set(xlabel="ranks", ylabel="ms", title="a step")
    split.legend(frameon=False, fontsize=8)
    for axes in (speed, split):
        axes.grid(alpha=0.3, axis="y")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot {path}: {error}", "a file that ends in png, svg or pdf") from None
