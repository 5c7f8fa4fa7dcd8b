"""The tables and the picture of a comparison, from its JSON."""

from __future__ import annotations

from pathlib import Path

FAR = 0.2  # a prediction that is further off than this is marked


def tell(result: dict, console) -> None:
    """The tables of a result, as in compare.json."""
    what = result["settings"]

    def shown(value, form="{:.1f}"):
        if value is None:
            return "-"
        return f"{form.format(value['median'])} ({form.format(value['least'])} to {form.format(value['most'])})"

    rows = [
        (
            system,
            shown(found["images_per_second"], "{:.0f}"),
            shown(found["cpu_ms_per_image"], "{:.2f}"),
            shown(found["busiest_share"] and {k: 100 * v for k, v in found["busiest_share"].items()}, "{:.0f}"),
        )
        for system, found in result["systems"].items()
    ]
    header = ("system", "images/s", "CPU ms an image", "busiest task's share of bytes, %")
    console.table(f"median (least to most) of {what['repeats']}", rows, header)
    rows = []
    for system, found in result["systems"].items():
        for name, task in found["tasks"].items():
            if system in ("single", "towers"):
                rows.append((system, name, "-", "-", "-", "-", f"{task['memory_mib']['median']:.0f}"))
                continue
            cells = []
            for way in ("sent", "received"):
                cells += [f"{task[way]['median'] / 1e3:.0f}", beside_law(task[way]["median"], task[f"law_{way}"])]
            rows.append((system, name, *cells, f"{task['memory_mib']['median']:.0f}"))
    header = ("system", "task", "sent kB", "law", "received kB", "law", "MiB")
    console.table("a step's bytes by task, measured and by the law; memory at its peak", rows, header)
    times = result["step_times"]
    if times:
        rows = [
            (system, f"{time['compute']:.3f}", f"{time['link']:.3f}", f"{time['predicted']:.3f}",
             f"{time['measured']:.3f}", f"{time['measured'] / time['predicted'] - 1:+.0%}")
            for system, time in times.items()
        ]  # fmt: skip
        header = ("system", "computing, s", "link by law, s", "predicted, s", "measured, s", "off")
        links = f"links of {what['link']:g} Mbit/s" if what["link"] else "no limited link"
        console.table(f"a step: one device's CPU seconds on {result['cores']} cores, and {links}", rows, header)
        for system, time in times.items():
            if abs(time["measured"] / time["predicted"] - 1) > FAR:
                console.say(f"{system}: {why_off(time)}")
    if result["to_target"]:
        rows = [
            (system, found["target_reached"], f"{found['test_accuracy']:.2%}", found["epochs"],
             f"{found['train_seconds']:.0f}", f"{found['cpu_seconds']:.0f}")
            for system, found in result["to_target"].items()
        ]  # fmt: skip
        header = ("system", "reached", "test accuracy", "epochs", "s", "CPU s")
        console.table(f"to {what['target_accuracy']:.2%}, evaluated after each epoch", rows, header)
    for system, found in result["systems"].items():
        for name, old in (found["staleness"] or {}).items():
            console.say(f"{system}, {name}: gradients {old['mean']} updates old in the mean, at most {old['largest']}")


def step_times(result: dict) -> dict[str, dict]:
    """Seconds of a step of each system: predicted from one device's CPU seconds and the link's law, and measured.

    predicted = computing + link, one after the other:
        computing   one device's CPU seconds for the global batch, shared by all cores
        link        ``laws.link_seconds``; 0 where --link does not say how fast it is
    measured - predicted = extra + rest:
        extra       CPU seconds that the system needs above one device's, shared by all cores
        rest        neither: waiting for others and for latency; below 0 where computing hides the link

    Returns:
        {} where one device was not measured, or for too few steps to show above the noise.
    """
    alone, batch, cores = result["systems"].get("single"), result["settings"]["global_batch"], result["cores"]
    if not alone or alone["cpu_ms_per_image"]["median"] <= 0:
        return {}

    def cpu_seconds(found):
        return found["cpu_ms_per_image"]["median"] * batch / 1000

    times = {}
    for system, found in result["systems"].items():
        computing, link = cpu_seconds(alone) / cores, found["link_seconds_by_law"] or 0.0
        extra, measured = cpu_seconds(found) / cores - computing, found["step_seconds"]["median"]
        times[system] = {
            "compute": computing,
            "link": link,
            "predicted": computing + link,
            "measured": measured,
            "extra_cpu": extra,
            "rest": measured - computing - link - extra,
        }
    return times


def why_off(time: dict) -> str:
    """Where the difference between a predicted and a measured step lies, in words."""
    off, parts = time["measured"] - time["predicted"], []
    parts.append(f"{time['extra_cpu']:+.3f} s are CPU time above one device's")
    if time["rest"] >= 0:
        parts.append(f"{time['rest']:.3f} s are neither CPU time nor the link's bytes: waiting, latency, idle cores")
    else:
        parts.append(f"{-time['rest']:.3f} s of the link or of the work went on at the same time as the rest")
    return f"{off:+.3f} s off: {'; '.join(parts)}"


def beside_law(measured: float, law: float | None) -> str:
    """The law's number in kB and how far the measurement is from it; marked where that is more than FAR."""
    if not law:
        return "-"
    off = measured / law - 1
    return f"{law / 1e3:.0f} ({off:+.0%}{' !' if abs(off) > FAR else ''})"


def draw(result: dict, folder: Path) -> None:
    """FOLDER/compare.png: speed, loss against time, bytes by task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from hvd_mnist.report.curves import COLOURS, read_run

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    speed, loss, traffic = figure.subplots(1, 3)
    colours = dict(zip(result["systems"], COLOURS * 2, strict=False))
    for place, (system, found) in enumerate(result["systems"].items()):
        rate = found["images_per_second"]
        if rate:
            reach = [[rate["median"] - rate["least"]], [rate["most"] - rate["median"]]]
            speed.bar(place, rate["median"], yerr=reach, color=colours[system], capsize=3)
        lines = [line for line in read_run(found["runs"][0])[1] if line["kind"] == "step"]
        if lines:
            start = lines[0]["time"]
            loss.plot([line["time"] - start for line in lines], [line["loss"] for line in lines], ".-",
                      color=colours[system], label=system)  # fmt: skip
    speed.set(title="images per second", xticks=range(len(result["systems"])))
    speed.set_xticklabels(result["systems"], rotation=30)
    loss.set(title="running mean of the loss", xlabel="seconds after the first record")
    loss.legend(frameon=False, fontsize=8)
    bars = [
        (f"{system} {name}", task, colours[system])
        for system, found in result["systems"].items()
        for name, task in found["tasks"].items()
        if system not in ("single", "towers")
    ]
    for place, (_, task, colour) in enumerate(bars):
        traffic.barh(place, (task["sent"]["median"] + task["received"]["median"]) / 1e6, color=colour)
    traffic.set(title="MB a step, sent and received", yticks=range(len(bars)))
    traffic.set_yticklabels([name for name, *_ in bars], fontsize=7)
    traffic.invert_yaxis()
    for axes in (speed, loss, traffic):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "compare.png", dpi=120)
