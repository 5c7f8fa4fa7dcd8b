"""``hvd-mnist bench targets``."""

from __future__ import annotations

import click

ROWS = (
    "allreduce",
    "exposed",
    "scaling",
    "torch",
    "tf-distribute",
    "older-ways",
    "recipe",
    "start",
    "memory",
    "predictions",
)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(ROWS), help="some rows; may be given several times")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--torch", metavar="PYTHON", help="a Python with PyTorch, to measure its DDP too")
@click.option("--json", "as_json", metavar="FILE", help="also write everything as JSON")
def targets(only, repeats, torch, as_json):
    """The speed that this project wants, row by row, measured on this machine.

    \b
    hvd-mnist bench targets --only exposed
    hvd-mnist bench targets --torch .venv-torch/bin/python
    """
    from hvd_mnist.bench.targets import Setting, run

    run(only, Setting(repeats=repeats, torch=torch), as_json)
