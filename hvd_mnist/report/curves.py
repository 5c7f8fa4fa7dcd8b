"""A picture of a run, or of several side by side: loss, accuracy and speed against time."""

from __future__ import annotations

from pathlib import Path

from hvd_mnist.errors import DataError
from hvd_mnist.report.run import read

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def read_run(folder: str | Path) -> tuple[dict, list[dict]]:
    """(summary, lines of metrics.jsonl) of a run folder.

    Raises:
        DataError: the folder holds no finished run, or a file in it cannot be understood.
    """
    found = read(folder)
    if found.summary is None or not found.lines:
        raise DataError(
            f"{folder}: the run has not finished, and a picture needs its summary.json and metrics.jsonl",
            f"hvd-mnist report {folder} shows how far it got",
        )
    return found.summary, found.lines


def draw(folders: list[str | Path], out: str | Path) -> None:
    """Write a picture (format by the suffix of ``out``: .png, .svg, .pdf) of one or more runs.

    Raises:
        DataError: a folder holds no finished run, or the picture cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    runs = [(Path(folder).name, *read_run(folder)) for folder in folders]
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    loss, accuracy, speed = figure.subplots(1, 3)
    for (name, summary, lines), colour in zip(runs, COLOURS * len(runs), strict=False):
        steps = [line for line in lines if line["kind"] == "step"]
        tests = [line for line in lines if line["kind"] == "evaluation"]
        start = lines[0]["time"] if lines else 0.0
        ranks = f"{summary['world_size']} rank{'s' if summary['world_size'] > 1 else ''}, {summary['backend']}"
        label = f"{name}: {ranks}" if len(runs) > 1 else ranks
        loss.plot([s["step"] for s in steps], [s["loss"] for s in steps], color=colour, label=label)
        accuracy.plot([t["step"] for t in tests], [100 * t["accuracy"] for t in tests], "o-", color=colour)
        last = tests[-1]
        accuracy.annotate(f"{last['accuracy']:.2%}", (last["step"], 100 * last["accuracy"]), textcoords="offset points",
                          xytext=(-6, -14), ha="right", color=colour)  # fmt: skip
        speed.plot([s["time"] - start for s in steps], [s["images_per_second"] for s in steps], color=colour)
    loss.set(title="training loss (running mean of the epoch)", xlabel="step", yscale="log")
    accuracy.set(title="test accuracy, %", xlabel="step")
    speed.set(title="images per second, all ranks", xlabel="seconds", ylim=(0, None))
    for axes in (loss, accuracy, speed):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    loss.legend(frameon=False)
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot write {out}: {error}") from None
