"""``hvd-mnist plot``."""

from __future__ import annotations

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", default="run.png", show_default=True, help="picture to write: .png, .svg or .pdf")
def plot(runs, out):
    """Draw loss, test accuracy and speed of one or more run folders."""
    from hvd_mnist.report.curves import draw

    draw(list(runs), out)
    click.echo(out)
