"""``hvd-mnist evaluate`` and ``hvd-mnist predict``: a checkpoint, one process, no launcher."""

from __future__ import annotations

import json
import os

import click

from hvd_mnist.console import library_defaults


@click.command()
@click.argument("checkpoint")
@click.option("--data", default="mnist", show_default=True, help="data set whose test part is used")
@click.option("--offline", is_flag=True, help="use the cache only; never download")
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=500, show_default=True, help="images per forward pass"
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of a sentence")
def evaluate(checkpoint, data, offline, batch_size, as_json):
    """Test accuracy of CHECKPOINT: a run folder (its best checkpoint), a checkpoint folder or a .keras file."""
    os.environ.update({**library_defaults(), **os.environ})
    from hvd_mnist.checkpoint import load_model
    from hvd_mnist.data.stream import load
    from hvd_mnist.evaluate import Evaluator
    from hvd_mnist.runtime import world

    model = load_model(checkpoint)
    here = world.join()
    arrays = load(data, rank=here.rank, size=here.size, seed=1, offline=offline, notify=click.echo)
    arrays = arrays.with_all_ranks(("test",))
    found = Evaluator(model, arrays, rank=here.rank, size=here.size, batch_size=batch_size)()
    world.leave()
    if not here.is_root:
        return
    if as_json:
        click.echo(json.dumps({"checkpoint": checkpoint, "data": arrays.name, **found.numbers()}))
    else:
        sample = " (a sample)" if arrays.is_sample else ""
        click.echo(
            f"{arrays.name}{sample}: test accuracy {found.accuracy:.2%} ({found.correct} of {found.examples}), "
            f"loss {found.loss:.4f}"
        )


@click.command()
@click.argument("checkpoint")
@click.argument("images", nargs=-1, required=True)
@click.option(
    "--invert",
    type=click.Choice(["auto", "yes", "no"]),
    default="auto",
    show_default=True,
    help="are the strokes dark on a light ground? auto looks",
)
@click.option("--json", "as_json", is_flag=True, help="one JSON list with all probabilities")
def predict(checkpoint, images, invert, as_json):
    """Which digit is on each picture? CHECKPOINT as in evaluate; IMAGES are PNG or JPEG files."""
    os.environ.update({**library_defaults(), **os.environ})
    from hvd_mnist import predict as job
    from hvd_mnist.checkpoint import load_model

    found = job.predict(load_model(checkpoint), images, invert=invert)
    if as_json:
        told = [
            {"image": p.path, "label": p.label, "probabilities": [float(f"{x:.6g}") for x in p.probabilities]}
            for p in found
        ]
        click.echo(json.dumps(told))
        return
    for one in found:
        click.echo(f"{one.label}  {one.probability:7.2%}  {one.path}")
