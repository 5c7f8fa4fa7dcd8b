"""``hvd-mnist bench timeline``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hvd_mnist.errors import UsageError


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--json", "json_file", metavar="FILE", help="Write all figures; - is standard output, without tables.")
@click.option("--plot", metavar="FILE", help="Draw each step's exchange by phase (png, svg, pdf).")
@click.option("--repair", metavar="FILE", help="Write the events as valid JSON, for a viewer, if a kill cut them off.")
@click.option("--step-times", metavar="FILE", help="step-times.json of the same run (train --step-times).")
@click.option("--merge", metavar="FILE", help="Write the timeline with all ranks' steps in it, on one clock.")
def timeline(files, json_file, plot, repair, step_times, merge):
    """Read timelines of Horovod: where an exchange's time goes, who is ready last, what to change.

    \b
    hvd-mnist launch -np 2 -- train --timeline t.json    rank 0 writes t.json
    hvd-mnist bench timeline t.json                      each file on its own; docs/timeline.md
    hvd-mnist bench timeline t.json --step-times RUN/step-times.json --merge all.json
    """
    from hvd_mnist.bench import step_parts, timeline_report
    from hvd_mnist.bench.timeline import summarize
    from hvd_mnist.bench.timeline_merge import merged
    from hvd_mnist.console import Console
    from hvd_mnist.runtime import timeline as timeline_file

    if repair and len(files) > 1:
        raise UsageError(f"--repair with {len(files)} files: expected one", f"--repair {repair} {files[0]}")
    if (merge is None) != (step_times is None) or (merge and len(files) > 1):
        raise UsageError(
            "--merge puts the ranks' steps into one timeline",
            "hvd-mnist bench timeline FILE --step-times F --merge OUT",
        )
    console = Console()
    found = {}
    for name in files:
        events, cut = timeline_file.read(Path(name))
        if json_file != "-":
            unfinished = f", {cut} characters at its end are no whole event" if cut else ""
            console.say(f"{name}: {len(events)} events{unfinished}")
        if repair:
            timeline_file.write(events, Path(repair).absolute())
        if merge:
            both, clocks = merged(events, step_parts.read(Path(step_times)))
            timeline_file.write(both, Path(merge).absolute())
            for line in clocks if json_file != "-" else ():
                console.say(line)
        found[name] = summarize(events)
        if json_file != "-":
            timeline_report.tell(name, found[name], console)
    if json_file:
        text = json.dumps({"schema": 1, "files": found}, indent=1)
        click.echo(text) if json_file == "-" else _write(Path(json_file), text)
    if plot:
        timeline_report.plot(found, Path(plot))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json {path}: {error.strerror}", "a file that can be written") from None
