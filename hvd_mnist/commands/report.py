"""``hvd-mnist report``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hvd_mnist.console import library_defaults


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(file_okay=False))
@click.option("--output", metavar="FILE", help="the file to write; default report.html in the first RUN")
@click.option("--open", "open_", is_flag=True, help="show it in the browser")
@click.option(
    "--digits",
    is_flag=True,
    help="first let each run's best checkpoint read the test set: which digits does it confuse? (loads TensorFlow)",
)
@click.option(
    "--data", help="with --digits: the data set; default the run's own (a function of yours: only if named here)"
)
@click.option("--offline", is_flag=True, help="with --digits: use the data in the cache only; never download")
def report(runs, output, open_, digits, data, offline):
    """One HTML file about one or more run folders: result, curves, ranks, settings, warnings.

    The file is complete in itself: no server, no network, no script. Several runs stand side by side, and what
    differs is marked. A run that has not finished is shown as far as it got.
    """
    from hvd_mnist.errors import UsageError
    from hvd_mnist.report import page

    if not digits and (data or offline):
        raise UsageError("--data and --offline belong to --digits", "--digits")
    if digits:
        os.environ.update({**library_defaults(), **os.environ})
        from hvd_mnist import mistakes

        for run in runs:
            mistakes.write(run, data=data, offline=offline, notify=lambda text: click.echo(text, err=True))
    path = page.write(runs, output, _parts)
    click.echo(path)
    if open_:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            click.echo(f"no browser was found; open {path.resolve()} yourself", err=True)


def _parts(run: Path) -> list[dict] | None:
    """Where the time of a run's steps went, by rank; None where ``train --step-times`` did not record it."""
    from hvd_mnist.bench import step_parts

    file = run / "step-times.json"
    if not file.exists():
        return None
    told = step_parts.read(file)["ranks"]
    steps = step_parts.parts([each["steps"] for each in told], warm_up=1)
    return step_parts.by_rank(steps, [each["host"] for each in told]) if steps[0] else None
