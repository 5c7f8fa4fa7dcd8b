"""``hvd-mnist bench scaling``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from hvd_mnist.errors import UsageError


def _sizes(ctx, parameter, value):
    try:
        sizes = sorted({int(word) for word in value.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise click.BadParameter(f"{value!r}: expected numbers of ranks, as in 1,2,4")
    return tuple(sizes)


@click.command()
@click.option("-np", "sizes", default="1,2", show_default=True, callback=_sizes, help="Numbers of ranks, as in 1,2,4.")
@click.option("-H", "--hosts", "hosts_text", metavar="h1:4,h2:4", help="Hosts and slots. [default: this machine]")
@click.option("--hostfile", metavar="FILE", help="Hosts from a file of any dialect.")
@click.option("--weak/--strong", default=True, show_default=True, help="--batch is a rank's, or that of all ranks.")
@click.option("--batch", type=click.IntRange(1), default=128, show_default=True, help="Images in a step.")
@click.option("--model", type=click.Choice(["small", "cnn", "mlp"]), default="cnn", show_default=True)
@click.option("--data", default="mnist", show_default=True)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Of a rank, in every job. [default: a host's cores by its most ranks]",
)
@click.option("--warm-up", type=click.IntRange(1), default=5, show_default=True, help="Steps of a job not counted.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Steps of a job that are.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Of all jobs, in turn.")
@click.option("--launcher", type=click.Choice(["auto", "horovodrun", "mpirun", "srun"]), default="auto",
              show_default=True, help="For more than one rank.")  # fmt: skip
@click.option("--backend", type=click.Choice(["gloo", "mpi"]), default="gloo", show_default=True,
              help="What horovodrun meets over.")  # fmt: skip
@click.option("--timeline", is_flag=True, help="One more job each with Horovod's timeline: how much is hidden.")
@click.option("--timeout", type=click.FloatRange(1), default=900, show_default=True, help="Seconds for each job.")
@click.option("--network-interface", metavar="NAME", help="Interface or subnet between hosts.")
@click.option("--json", "json_file", metavar="FILE", help="Write everything; - is standard output, without tables.")
@click.option("--plot", metavar="FILE", help="Draw images/s and the parts of a step (png, svg, pdf).")
@click.option("--dry-run", is_flag=True, help="Print what would run; start nothing.")
def scaling(
    sizes, hosts_text, hostfile, weak, batch, threads, timeout, network_interface, json_file, plot, dry_run, **rest
):
    """The trainer on more and more ranks: images/s, efficiency, where a step's time goes, which rank is slow.

    \b
    hvd-mnist bench scaling -np 1,2                                     weak scaling on this machine
    hvd-mnist bench scaling -np 2,4,8 -H h1:4,h2:4 --strong --batch 512
    """
    from hvd_mnist.bench import scaling as bench
    from hvd_mnist.bench import scaling_report
    from hvd_mnist.cluster.hostfile import parse_hosts, read_hostfile
    from hvd_mnist.cluster.placement import place
    from hvd_mnist.console import Console
    from hvd_mnist.launch import show

    if hosts_text and hostfile:
        raise UsageError("-H and --hostfile exclude one another", "give one of them")
    hosts = read_hostfile(hostfile) if hostfile else parse_hosts(hosts_text or f"localhost:{max(sizes)}")
    cores = len(os.sched_getaffinity(0))
    threads = threads or max(1, cores // max(place(hosts, max(sizes)).counts))
    what = bench.Scaling(sizes=sizes, kind="weak" if weak else "strong", batch=batch, threads=threads, **rest)
    if dry_run:
        for size in sizes:
            click.echo(show.as_text(bench.command(what, size, hosts, Path("RUN"), network_interface)))
        return None
    load = os.getloadavg()[0]
    samples, timelines, complete = bench.run(
        what, hosts, timeout, lambda line: click.echo(line, err=True), network_interface
    )
    if not samples:
        click.echo("stopped: nothing was measured until then", err=True)
        return 130
    result = {"schema": 1, "complete": complete, "load": load, **bench.summarize(what, samples, timelines, cores)}
    if json_file:
        text = json.dumps(result, indent=1)
        click.echo(text) if json_file == "-" else Path(json_file).write_text(text + "\n", encoding="utf-8")
    if json_file != "-":
        scaling_report.tell(result, Console())
    if plot:
        scaling_report.plot(result, Path(plot))
    if not complete:
        click.echo("stopped: the tables hold what was measured until then", err=True)
        return 130
    return None
