"""``hvd-mnist bench compare``."""

from __future__ import annotations

import click

from hvd_mnist.console import library_defaults

SYSTEMS = ("single", "towers", "in-graph", "ps-sync", "ps-async", "ring")


def _systems(ctx, parameter, value):
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if name not in SYSTEMS:
            raise click.BadParameter(f"{name!r}: expected some of {','.join(SYSTEMS)}")
    return names


@click.command()
@click.option("--systems", default=",".join(SYSTEMS), show_default=True, callback=_systems, help="which, in this order")
@click.option(
    "-np", "--replicas", type=click.IntRange(min=1), default=2, show_default=True, help="ranks, workers, towers"
)
@click.option("--ps", type=click.IntRange(min=1), default=1, show_default=True, help="ps tasks, besides")
@click.option("-H", "--hosts", metavar="HOST,...", help="hosts; the last N compute, ps tasks and the client come first")
@click.option(
    "--link", metavar="MBIT/S", type=float, help="speed of each host's link, for the prediction of a step's time"
)
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    help="cores of all hosts together, for the same prediction; default this machine's, which is right for one machine",
)
@click.option("--data", default="mnist", show_default=True)
@click.option("--model", type=click.Choice(["small", "cnn", "mlp"]), default="cnn", show_default=True)
@click.option("--global-batch", type=click.IntRange(min=1), default=128, show_default=True, help="images in a step")
@click.option("--warm-up", type=click.IntRange(min=1), default=4, show_default=True, help="steps that are not counted")
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="steps that are")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--target-accuracy", type=click.FloatRange(0, 1, min_open=True), help="also train until this is reached")
@click.option("--epochs", type=click.IntRange(min=1), default=3, show_default=True, help="at most, for the target")
@click.option("--folder", help="a new folder for runs and plots; default runs/compare-<time>")
@click.option("--json", "as_json", metavar="FILE", help="also write everything as JSON")
def compare(systems, hosts, as_json, **settings):
    """Train with each system on the same work; prove the same weights, then measure.

    \b
    hvd-mnist bench compare                                          two replicas on this machine
    hvd-mnist bench compare -np 3 -H h1,h2,h3,h4 --link 200          four hosts: one ps or client, three that compute
    """
    import os

    os.environ.update({**library_defaults(), **os.environ})
    from hvd_mnist.bench.compare import Comparison, run

    names = [name.strip() for name in (hosts or "").split(",") if name.strip()]
    run(Comparison(systems=systems, hosts=names, **settings), as_json)
