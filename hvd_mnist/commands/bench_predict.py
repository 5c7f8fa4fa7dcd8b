"""``hvd-mnist bench predict``."""

from __future__ import annotations

import json
import math
from pathlib import Path

import click

from hvd_mnist.errors import DataError, UsageError

MOST = 1_000_000  # ranks


class Finite(click.FloatRange):
    """A number in a range; float() would also take nan, inf and what rounds to them."""

    def convert(self, value, param, ctx):
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is no number to reckon with", param, ctx)


ZERO_UP, ABOVE_ZERO = Finite(min=0), Finite(min=0, min_open=True)


def _ranks(ctx, parameter, value) -> list[int]:
    """1,2,4 as numbers."""
    words = [word.strip() for word in value.split(",") if word.strip()]
    found = [int(word) if word.isascii() and word.isdigit() and len(word) < 9 else 0 for word in words]
    for word, number in zip(words or [value], found or [0], strict=True):
        if not 1 <= number <= MOST:
            raise click.BadParameter(f"{word!r:.40}: expected numbers of ranks such as 1,2,4 (up to {MOST})")
    return found


@click.command()
@click.option("--from", "file", metavar="FILE", help="Fit alpha and bandwidth to what bench allreduce --json wrote.")
@click.option("--backend", metavar="NAME", help="Which of the file's backends.")
@click.option(
    "--fit-min-bytes", metavar="SIZE", default="4", show_default=True, help="Leave smaller rows out of the fit."
)
@click.option("--alpha-us", type=ZERO_UP, help="Instead of a file: us that a message takes whatever its size.")
@click.option("--bandwidth", metavar="GB/s", type=ABOVE_ZERO, help="Of a host's link each way; 10 Gbit/s are 1.25.")
@click.option("--cycle-ms", type=ZERO_UP, help="Wait before each allreduce. [default: the file's, else 0]")
@click.option("--sum-bandwidth", metavar="GB/s", type=ABOVE_ZERO, help="How fast a rank adds up. [default: at once]")
@click.option("--ranks", default="1,2,4,8,16,32,64,128", show_default=True, callback=_ranks)
@click.option("--ranks-per-host", "per_host", type=click.IntRange(1, 1024), default=1, show_default=True)
@click.option("--local-alpha-us", type=ZERO_UP, help="As --alpha-us, between ranks of a host.  [default: 0]")
@click.option("--local-bandwidth", metavar="GB/s", type=ABOVE_ZERO, help="From a rank to another of its host.")
@click.option(
    "--model", metavar="NAME", help="small, cnn, mlp, resnet50 ...: its gradients are exchanged. [default: cnn]"
)
@click.option("--bytes", "size", metavar="SIZE", help="Instead of a model: 4K, 100M, ...")
@click.option("--compute-ms", type=ABOVE_ZERO, help="Of a step on one rank: adds the step and its efficiency.")
@click.option("--overlap", type=Finite(0, 1), default=0.0, show_default=True,
              help="Part of the computing behind which the exchange can hide; the backward pass is 0.67.")  # fmt: skip
@click.option("--algorithm", type=click.Choice(("best", "ring", "tree", "halving", "hierarchical", "ps")),
              default="best", show_default=True, help="Of the step.")  # fmt: skip
@click.option("--servers", type=click.IntRange(1), default=1, show_default=True, help="Parameter servers.")
@click.option("--servers-on", type=click.Choice(("own", "ranks")), default="own", show_default=True,
              help="Hosts of their own, or those of the ranks (then one a host at most).")  # fmt: skip
@click.option("--push-beside-pull", is_flag=True, help="Servers send and take at the same time.")
@click.option("--json", "json_file", metavar="FILE", help="Write it all; - is standard output, without the table.")
@click.option("--plot", metavar="FILE", help="Draw it to past 10 000 ranks (svg, png, pdf).")
@click.option("--published", is_flag=True, help="Only: published results beside what the model says of them.")
def predict(published, **options):
    """How long an exchange and a step take on N ranks, by algorithm, and which is fastest.

    \b
    hvd-mnist bench allreduce -H host1:1,host2:1 --backends horovod-gloo --json two.json
    hvd-mnist bench predict --from two.json --ranks 2,4,8,64 --model cnn --compute-ms 200
    hvd-mnist bench predict --alpha-us 20 --bandwidth 1.25 --model vgg16 --compute-ms 400 --plot ten-gbit.svg
    """
    if published:
        return _published()
    return _predict(**options)


def _published() -> None:
    from hvd_mnist.bench.published import HEADER, NOT_PREDICTED, table

    _print(HEADER, table(), numbers=(2, 3, 4))
    click.echo(NOT_PREDICTED)


def _predict(*, file, backend, fit_min_bytes, ranks, json_file, plot, **options) -> None:
    from hvd_mnist.bench import cost_fit, predictions
    from hvd_mnist.bench.bandwidth import bytes_of

    if file and (options["alpha_us"] is not None or options["bandwidth"] is not None):
        raise UsageError("--from gives alpha and bandwidth: leave out --alpha-us and --bandwidth, or --from")
    if not file and options["bandwidth"] is None:
        raise UsageError(
            "no network is given", "--from FILE (of bench allreduce --json), or --alpha-us 20 --bandwidth 1.25"
        )
    found = None
    if file:
        measured, points = cost_fit.read_sweep(file, backend, bytes_of(fit_min_bytes))
        found = cost_fit.fit(points, cost_fit.LAW_OF[measured])
    asked = _asked(found, **options)
    rows = [predictions.predict(asked, number) for number in ranks]
    if json_file:
        text = json.dumps(predictions.as_json(asked, rows, found), indent=1, allow_nan=False)
        click.echo(text) if json_file == "-" else _written(json_file, lambda path: path.write_text(text + "\n"))
    if json_file != "-":
        if found:
            click.echo(predictions.fit_in_words(found))
        header = predictions.columns(asked.compute is not None)
        _print(header, [predictions.cells(row, asked.per_host) for row in rows], numbers=range(len(header)))
    if plot:
        _written(plot, lambda path: predictions.draw(asked, path))


def _asked(found, *, alpha_us, bandwidth, cycle_ms, sum_bandwidth, per_host, local_alpha_us, local_bandwidth, model,
           size, compute_ms, overlap, algorithm, servers, servers_on, push_beside_pull):  # fmt: skip
    """The Question that the options put."""
    from hvd_mnist.bench.cost_model import Links, Servers
    from hvd_mnist.bench.predictions import Question

    if per_host > 1 and local_bandwidth is None:
        raise UsageError(
            f"--ranks-per-host {per_host}: what do ranks of a host send each other?", "--local-bandwidth GB/s"
        )
    if per_host == 1 and (local_bandwidth or local_alpha_us):
        raise UsageError(
            "--local-alpha-us and --local-bandwidth say nothing with one rank a host", "--ranks-per-host 2"
        )
    links = Links(
        alpha=found.links.alpha if found else (alpha_us or 0.0) / 1e6,
        bandwidth=found.links.bandwidth if found else bandwidth * 1e9,
        local_alpha=(local_alpha_us or 0.0) / 1e6,
        local_bandwidth=local_bandwidth * 1e9 if local_bandwidth else math.inf,
        gamma=1 / (sum_bandwidth * 1e9) if sum_bandwidth else 0.0,
        wait=cycle_ms / 1e3 if cycle_ms is not None else found.links.wait if found else 0.0,
    )
    return Question(
        size=_size(model, size),
        links=links,
        per_host=per_host,
        servers=Servers(servers, servers_on == "ranks", push_beside_pull),
        compute=compute_ms / 1e3 if compute_ms else None,
        overlap=overlap,
        algorithm=algorithm,
    )


def _size(model: str | None, size: str | None) -> int:
    import difflib

    from hvd_mnist.bench.bandwidth import bytes_of
    from hvd_mnist.bench.predictions import PARAMETERS

    if size:
        if model:
            raise UsageError("--model and --bytes exclude one another", "give one of them")
        return bytes_of(size)
    if (model or "cnn") not in PARAMETERS:
        near = difflib.get_close_matches(model, PARAMETERS, 1)
        raise UsageError(
            f"--model {model!r:.40}: expected one of {', '.join(PARAMETERS)}", near[0] if near else "--bytes"
        )
    return 4 * PARAMETERS[model or "cnn"]


def _written(name: str, write) -> None:
    """Call ``write`` with the path; what the file system or matplotlib has against it becomes one line."""
    try:
        write(Path(name))
    except OSError as error:
        raise DataError(f"{name}: {error.strerror}") from None
    except ValueError as error:  # a suffix that matplotlib does not know
        raise UsageError(f"--plot {name}: {str(error).splitlines()[0]:.120}", "name it .svg, .png or .pdf") from None


def _print(header, rows, numbers) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(header):
        table.add_column(column, justify="right" if place in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False)
    (console if console.is_terminal else Console(markup=False, width=200)).print(table)
