"""``hvd-mnist bench allreduce|broadcast|allgather``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from hvd_mnist.errors import HvdMnistError, UsageError

BACKENDS = ("horovod-gloo", "horovod-mpi", "mpi", "parameter-server")


def command(op: str) -> click.Command:
    """The command of one collective; they differ in name alone."""
    article = "An" if op[0] == "a" else "A"

    @click.command(op, help=f"{article} {op} from small to large, each backend in turn, every element checked first.")
    @click.option("-np", "size", metavar="N", type=click.IntRange(1), help="Ranks. [default: every slot]")
    @click.option("-H", "--hosts", "hosts_text", metavar="h1:4,h2:4", help="Hosts and slots. [default: this machine]")
    @click.option("--hostfile", metavar="FILE", help="Hosts from a file of any dialect.")
    @click.option(
        "--backends",
        metavar="A,B",
        default=",".join(BACKENDS[:3]),
        show_default=True,
        help=f"Of {', '.join(BACKENDS)}.",
    )
    @click.option("--min-bytes", metavar="SIZE", default="4", show_default=True)
    @click.option("--max-bytes", metavar="SIZE", default="64M", show_default=True)
    @click.option("--factor", type=click.IntRange(2), default=4, show_default=True, help="From one size to the next.")
    @click.option(
        "--tensors",
        type=click.IntRange(1, 10_000),
        default=1,
        show_default=True,
        help="Share each size among so many tensors, exchanged as one group.",
    )
    @click.option("--gradients", type=click.Choice(("small", "cnn", "mlp")), help="One size: a model's own gradients.")
    @click.option(
        "--dtype", type=click.Choice(("float32", "float16", "bfloat16")), default="float32", show_default=True
    )
    @click.option(
        "--iterations", type=click.IntRange(1), default=20, show_default=True, help="Timed, per size and round."
    )
    @click.option("--warmup", type=click.IntRange(0), default=5, show_default=True)
    @click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Of all backends, in turn.")
    @click.option("--timeout", type=click.FloatRange(1), default=300, show_default=True, help="Seconds for each job.")
    @click.option("--network-interface", metavar="NAME", help="Interface or subnet between hosts.")
    @click.option(
        "--min-busbw",
        metavar="GB/s",
        type=click.FloatRange(0),
        help="Status 8 if the first backend's best bus bandwidth is lower.",
    )
    @click.option(
        "--json", "json_file", metavar="FILE", help="Write the rows; - is standard output, without the table."
    )
    @click.option("--plot", metavar="FILE", help="Draw bus bandwidth over size (png, svg, pdf).")
    @click.option("--dry-run", is_flag=True, help="Print what would run; start nothing.")
    def bench(hosts_text, hostfile, **options):
        if hosts_text and hostfile:
            raise UsageError("-H and --hostfile exclude one another", "give one of them")
        return _bench(op, hosts_text, hostfile, **options)

    return bench  # fmt: skip


def _bench(op, hosts_text, hostfile, *, size, backends, min_bytes, max_bytes, factor, tensors, gradients, dtype,
           iterations, warmup, rounds, timeout, network_interface, min_busbw, json_file, plot, dry_run):  # fmt: skip
    from hvd_mnist.bench import exchange
    from hvd_mnist.bench.bandwidth import bytes_of, sizes
    from hvd_mnist.cluster.hostfile import parse_hosts, read_hostfile
    from hvd_mnist.launch import show, site

    if hosts_text:
        hosts = parse_hosts(hosts_text)
    elif hostfile:
        hosts = read_hostfile(hostfile)
    elif size:
        hosts = parse_hosts(f"localhost:{size}")
    else:
        hosts, _ = site.hosts_here(os.environ)
    sweep = exchange.Sweep(
        op=op,
        backends=_backends(backends),
        sizes=tuple(sizes(bytes_of(min_bytes), bytes_of(max_bytes), factor)),
        shapes=_gradients(gradients) if gradients else None,
        tensors=tensors,
        dtype=dtype,
        iterations=iterations,
        warmup=warmup,
        rounds=rounds,
    )
    exchange.check(sweep)
    if dry_run:
        for command in exchange.commands(sweep, hosts, size, Path("ROWS"), network_interface).values():
            click.echo(show.as_text(command))
        return None
    rows, complete = exchange.run(
        sweep, hosts, size, timeout, lambda line: click.echo(line, err=True), network_interface
    )
    if json_file:
        text = json.dumps({"schema": 1, "complete": complete, "rows": [row.as_json() for row in rows]}, indent=1)
        click.echo(text) if json_file == "-" else Path(json_file).write_text(text + "\n", encoding="utf-8")
    if json_file != "-":
        _print(rows)
    if plot and rows:
        exchange.plot(rows, Path(plot))
    if not complete:
        click.echo("stopped: the table holds what was measured until then", err=True)
        return 130
    if not rows:
        raise HvdMnistError("the jobs ended well, but nothing was measured")
    if min_busbw is not None:
        exchange.hold_to(rows, min_busbw, sweep.backends[0])
    return None


def _backends(text: str) -> tuple[str, ...]:
    import difflib

    chosen = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in chosen or ("",):
        if word not in BACKENDS:
            near = difflib.get_close_matches(word, BACKENDS, 1)
            raise UsageError(f"--backends {word!r}: expected some of {', '.join(BACKENDS)}", near[0] if near else None)
    return chosen


def _gradients(model: str) -> tuple[tuple[int, ...], ...]:
    """The shapes of a model's trainable variables, asked of Keras in a process of its own."""
    import subprocess
    import sys

    code = (
        "import json, sys; from hvd_mnist import models\n"
        "print(json.dumps([list(v.shape) for v in models.build(sys.argv[1]).trainable_variables]))"
    )
    asked = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, timeout=120)
    if asked.returncode != 0:
        raise HvdMnistError(f"cannot build --gradients {model}: {asked.stderr.strip().splitlines()[-1:]}")
    return tuple(tuple(shape) for shape in json.loads(asked.stdout.splitlines()[-1]))


def _print(rows) -> None:
    from rich.console import Console
    from rich.table import Table

    from hvd_mnist.bench.bandwidth import COLUMNS, cells

    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if number in (0, 3) else "right", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row))
    console = Console(markup=False)
    (console if console.is_terminal else Console(markup=False, width=200)).print(table)


allreduce, broadcast, allgather = (command(op) for op in ("allreduce", "broadcast", "allgather"))
