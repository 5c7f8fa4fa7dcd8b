"""A timeline's figures in words, tables and a picture."""

from __future__ import annotations

from pathlib import Path

from hvd_mnist.bench.timeline import PHASES

OFTEN = 0.6  # of the steps in which a rank was last alone: from here on it is named
MUCH = 0.4  # of an exchange: a phase that is worth a word
SMALL_BYTES = 64 << 10


def advice(found: dict) -> list[str]:
    """What to change, each with the figure that says so. Pure; ``found`` is from ``timeline.summarize``."""
    if not found["steps"]:
        return ["no tensor was reduced more than once: there is no step to speak of"]
    told = []
    exchange = found["exchange_ms"]["median"] or 1e-9
    share = {phase: value["median"] / exchange for phase, value in found["phases_ms"].items()}
    ready, ranks = found["ready"], found["ranks"] or 1
    straggler = max(ready["last"], key=lambda rank: ready["last"][rank]["steps"], default=None)
    part = ready["last"][straggler]["steps"] / ready["steps_known"] if straggler is not None else 0.0
    if part >= OFTEN and ready["steps_known"] > 2:
        late = ready["last"][straggler]["late_ms"]["median"]
        told.append(
            f"rank {straggler} was ready last in {part:.0%} of {ready['steps_known']} steps, {late:.1f} ms after the "
            "first: look at its host and its share of the data; a slow link would not show here"
        )
    elif share["negotiation"] >= MUCH and ranks > 1:
        told.append(
            f"{share['negotiation']:.0%} of an exchange is negotiation (ranks waiting for one another, and for "
            "Horovod's cycle): compare with another HOROVOD_CYCLE_TIME"
            + ("" if ready["steps_known"] > 2 else "; HOROVOD_CACHE_CAPACITY=0 would show who is last")
        )
    if share["queue"] >= MUCH:
        told.append(
            f"{share['queue']:.0%} of an exchange is ready and waits for its turn: other exchanges are in front of it; "
            "fewer and larger ones would not be"
        )
    if share["wait for data"] >= MUCH:
        told.append(
            f"{share['wait for data']:.0%} of an exchange waits for the GPU to finish the gradients, not for the link"
        )
    copies = share["copy in"] + share["copy out"]
    if copies >= MUCH / 2:
        told.append(
            f"{copies:.0%} of an exchange is copying into and out of the fusion buffer: compare with "
            "HOROVOD_FUSION_THRESHOLD=0"
        )
    if share["communication"] >= MUCH:
        told.append(
            f"{share['communication']:.0%} of an exchange is communication: fewer bytes (--compression, --accumulate), "
            "larger batches, or a faster network"
        )
    hidden, all_of_it = found["hidden_ms"]["median"], found["phases_ms"]["communication"]["median"]
    if ranks > 1 and share["communication"] >= MUCH / 2 and hidden < 0.1 * all_of_it:
        told.append(
            "communication begins when the last gradient is ready, so none of it is hidden: train --gradient-groups 2 "
            "(groups= of DistributedOptimizer) lets gradients travel while others are computed"
        )
    step = found["step_ms"]["median"] if found["step_ms"] else None
    if step and found["exchange_ms"]["median"] < 0.05 * step:
        told.append("an exchange takes under 5% of a step: there is little to gain here")
    return told or ["no phase stands out"]


def lines(found: dict) -> list[str]:
    """The figures that are no table."""
    if not found["steps"]:
        return [f"{found['exchanges']} exchanges, none of them in a step"]
    told = []
    size = f", {found['bytes_a_step'] / 1e6:.2f} MB" if found["bytes_a_step"] else ""
    skipped = f" (the first {found['steps_not_counted']} not counted)" if found["steps_not_counted"] else ""
    told.append(f"{found['steps']} steps{skipped}, each with {found['tensors_a_step']} tensors{size}")
    exchange, step = found["exchange_ms"], found["step_ms"]
    part = f", {exchange['median'] / step['median']:.0%} of a step" if step else ""
    told.append(f"an exchange takes {shown(exchange)} ms{part}; medians, least to most in brackets")
    communication, hidden = found["phases_ms"]["communication"]["median"], found["hidden_ms"]["median"]
    told.append(
        f"communication {communication:.2f} ms, of it {hidden:.2f} ms while a tensor of the step was not yet ready "
        f"everywhere (hidden), {communication - hidden:.2f} ms after"
    )
    if found["cycle_ms"]:
        told.append(f"Horovod's cycle took {shown(found['cycle_ms'])} ms")
    ready = found["ready"]
    if (found["ranks"] or 1) > 1:
        if not ready["steps_known"]:
            told.append(
                "who was ready last is not in the file: the ranks' answers came from Horovod's cache; "
                "HOROVOD_CACHE_CAPACITY=0 in the job's environment writes them"
            )
        else:
            told.append(
                f"ready last, in {ready['steps_known']} steps: "
                + "".join(
                    f"rank {rank} {of['steps']} times, by {shown(of['late_ms'])} ms; "
                    for rank, of in sorted(ready["last"].items())
                )
                + f"together {ready['together']} times"
            )
    return told


def shown(value: dict | None) -> str:
    return "-" if value is None else f"{value['median']:.2f} ({value['least']:.2f} to {value['most']:.2f})"


def tell(name: str, found: dict, console, most: int = 12) -> None:
    """Tables, lines and advice of one file."""
    for line in lines(found):
        console.say(line)
    if found["steps"]:
        exchange = found["exchange_ms"]["median"]
        rows = [
            (phase, shown(value), f"{value['median'] / exchange:.0%}")
            for phase, value in found["phases_ms"].items()
            if value["most"] > 0
        ]
        console.table("a step's exchange, by phase; tensors that travel together count once", rows,
                      ("phase", "ms", "of an exchange"))  # fmt: skip
    rows = []
    for row in found["tensors"][:most]:
        median = {phase: f"{row['phases_ms'][phase]['median']:.2f}" for phase in PHASES}
        size = "-" if row["bytes"] is None else f"{row['bytes']}"
        name = row["tensor"] if len(row["tensor"]) <= 40 else "..." + row["tensor"][-37:]
        rows.append((name, row["op"], row["times"], size, *(median[phase] for phase in _COLUMNS)))
    if rows:
        more = len(found["tensors"]) - most
        title = "by tensor, median ms" + (f"; {more} more in --json" if more > 0 else "")
        console.table(title, rows, ("tensor", "op", "times", "bytes", *_COLUMNS), width=140)
    for line in advice(found):
        console.say(f"-> {line}")


_COLUMNS = ("negotiation", "queue", "copy in", "communication", "copy out")


def plot(files: dict[str, dict], path: Path) -> None:
    """Each step's exchange as a bar of its phases, a panel for each file; the suffix of ``path`` is the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1 + 3 * len(files)), layout="constrained")
    for axes, (name, found) in zip(figure.subplots(len(files), squeeze=False)[:, 0], files.items(), strict=True):
        counted = found["each_step_ms"][found["steps_not_counted"] :]
        places = range(1 + found["steps_not_counted"], 1 + len(found["each_step_ms"]))
        below = [0.0] * len(counted)
        for phase in PHASES:
            heights = [step[phase] for step in counted]
            if any(heights):
                axes.bar(places, heights, bottom=below, width=1.0, label=phase)
                below = [low + height for low, height in zip(below, heights, strict=True)]
        axes.set(title=name, xlabel="step", ylabel="ms in each phase")
        axes.grid(alpha=0.3, axis="y")
        if counted:
            axes.legend(fontsize=8, frameon=False)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        from hvd_mnist.errors import UsageError

        raise UsageError(f"--plot {path}: {error}", "a file that ends in png, svg or pdf") from None
