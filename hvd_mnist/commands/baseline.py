"""``hvd-mnist baseline``: the older ways of training, one word each."""

from __future__ import annotations

import functools

import click

from hvd_mnist.baselines import KNOBS
from hvd_mnist.commands.options import GroupedHelp, config_from, config_options
from hvd_mnist.console import library_defaults
from hvd_mnist.errors import HvdMnistError

knobs = functools.partial(config_options, only=KNOBS)


def _quiet() -> None:
    import os

    os.environ.update({**library_defaults(), **os.environ})


def _tower_and_seconds(ctx, parameter, value):
    if value is None:
        return None
    tower, colon, seconds = value.partition(":")
    try:
        return int(tower), max(0.0, float(seconds if colon else "x"))
    except ValueError:
        raise click.BadParameter(f"{value!r}: expected TOWER:SECONDS, as in 1:0.2") from None


@click.group()
def baseline():
    """The older ways of training, with the data, networks and records of train."""


@baseline.command(cls=GroupedHelp)
@knobs
@click.option("--explain", is_flag=True, help="the step's graph in the order in which it runs: table, RUN/graph.png")
@click.pass_context
def single(ctx, explain, **_):
    """One device.

    \b
    hvd-mnist baseline single --epochs 1                past 98 % of the test set
    hvd-mnist baseline single --steps 20 --explain      the step's graph, by dependency counts
    """
    config, sources = config_from(ctx)
    _quiet()
    from hvd_mnist.baselines.single import train

    train(config, sources, explain=explain)


@baseline.command(cls=GroupedHelp)
@knobs
@click.option("--towers", type=click.IntRange(min=1), default=2, show_default=True, help="devices that compute")
@click.option(
    "--slow-tower", metavar="TOWER:SECONDS", callback=_tower_and_seconds, help="let one tower wait in every step"
)
@click.option("--explain", is_flag=True, help="which operation runs where, and which tensors cross: RUN/placement.json")
@click.pass_context
def towers(ctx, towers, slow_tower, explain, **_):
    """One process, several devices; variables on the CPU.

    \b
    hvd-mnist baseline towers --towers 2 --epochs 1
    hvd-mnist baseline towers --towers 3 --slow-tower 1:0.2 --steps 50
    """
    config, sources = config_from(ctx)
    _quiet()
    from hvd_mnist.baselines.towers import train

    train(config, sources, towers=towers, slow=slow_tower, explain=explain)


def _addresses(option):
    def read(ctx, parameter, value):
        from hvd_mnist.baselines.tasks import read_addresses

        return read_addresses(option, value)

    return click.option(option, callback=read, metavar="HOST:PORT,...", help="addresses of the tasks of this job")


@baseline.command("in-graph", cls=GroupedHelp)
@knobs
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="tasks to start")
@click.option("-H", "--hosts", metavar="HOST,...", help="start the tasks over ssh on these hosts, in turn")
@click.option("--job-name", type=click.Choice(["chief", "worker"]), help="be one task, of a cluster started by hand")
@click.option("--task-index", type=click.IntRange(min=0), default=0, show_default=True, help="which of its job")
@_addresses("--chief-hosts")
@_addresses("--worker-hosts")
@click.option("--report", type=click.Path(), hidden=True)
@click.pass_context
def in_graph(ctx, workers, hosts, job_name, task_index, chief_hosts, worker_hosts, report, **_):
    """One client drives towers on the devices of other tasks and hands out the data.

    \b
    hvd-mnist baseline in-graph --workers 2 --epochs 1            all tasks on this machine
    hvd-mnist baseline in-graph --job-name worker --task-index 0 --worker-hosts host1:2222,host2:2222
    hvd-mnist baseline in-graph --job-name chief --chief-hosts host0:2222 --worker-hosts host1:2222,host2:2222
    """
    config, sources = config_from(ctx)
    _quiet()
    from pathlib import Path

    from hvd_mnist.baselines import in_graph, tasks

    tasks.end_with_starter()
    if job_name is None:
        names = _names(hosts)
        chief = tasks.own_name(names) if names else None
        in_graph.train_with_workers(config, sources, workers, names, chief)
        return
    cluster = {"chief": chief_hosts, "worker": worker_hosts}
    tasks.check_task(cluster, job_name, task_index)
    if job_name == "chief":
        tasks.check_task(cluster, "worker", 0)
        in_graph.train(config, cluster, sources)
    else:
        where = Path(report) if report else None
        in_graph.serve({"worker": worker_hosts}, task_index, config.threads, config.stall_timeout, where)


@baseline.command(cls=GroupedHelp)
@knobs
@click.option("-np", "--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="number of ranks")
@click.option("-H", "--hosts", metavar="HOST,...", help="deal the ranks out over these hosts")
@click.pass_context
def ring(ctx, ranks, hosts, **_):
    """This toolkit's trainer, unchanged: launch -np N -- train, with the same options as the others.

    \b
    hvd-mnist baseline ring -np 2 --epochs 1
    """
    config, _ = config_from(ctx)
    import os
    import sys

    from hvd_mnist.baselines.ring import launch_words

    words = launch_words(config, ranks, _names(hosts))
    os.execv(sys.executable, [sys.executable, "-m", "hvd_mnist", *words])


def _names(hosts: str | None) -> list[str]:
    return [name.strip() for name in (hosts or "").split(",") if name.strip()]


@baseline.command("parameter-server", cls=GroupedHelp)
@knobs
@click.option(
    "--sync/--async", "synchronous", default=True, show_default=True, help="wait for all gradients, or for none"
)
@click.option("--ps", type=click.IntRange(min=1), default=1, show_default=True, help="ps tasks to start")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="workers to start")
@click.option("-H", "--hosts", metavar="HOST,...", help="start the tasks over ssh on these hosts, in turn, ps first")
@click.option("--backup-workers", type=click.IntRange(min=0), default=0, help="workers that --sync does not wait for")
@click.option(
    "--placement", type=click.Choice(["round-robin", "by-size"]), default="round-robin", show_default=True,
    help="how the parts of variables are dealt out to the ps tasks",
)  # fmt: skip
@click.option(
    "--largest-shard", type=click.IntRange(min=4), default=1 << 20, show_default=True,
    help="bytes; larger variables are cut into parts",
)  # fmt: skip
@click.option("--slow-worker", metavar="WORKER:SECONDS", callback=_tower_and_seconds, help="let one wait in every step")
@click.option("--job-name", type=click.Choice(["ps", "worker"]), help="be one task, of a cluster started by hand")
@click.option("--task-index", type=click.IntRange(min=0), default=0, show_default=True, help="which of its job")
@_addresses("--ps-hosts")
@_addresses("--worker-hosts")
@click.pass_context
def parameter_server(ctx, ps, workers, hosts, job_name, task_index, ps_hosts, worker_hosts, **_):
    """Variables in ps tasks; every worker pulls weights and pushes gradients. Synchronous or not.

    \b
    hvd-mnist baseline parameter-server --sync --workers 2 --epochs 1
    hvd-mnist baseline parameter-server --async --ps 2 --workers 3 --epochs 1
    hvd-mnist baseline parameter-server --job-name ps --task-index 0 --ps-hosts a:2222 --worker-hosts b:2222,c:2222
    """
    config, sources = config_from(ctx)
    _quiet()
    from hvd_mnist.baselines import ps_start, tasks
    from hvd_mnist.baselines.ps_mode import Mode

    told = ctx.params
    mode = Mode(
        told["synchronous"], told["backup_workers"], told["placement"], told["largest_shard"], told["slow_worker"]
    )
    tasks.end_with_starter()
    if job_name is None:
        mode.check(workers)
        return ps_start.train(config, mode, ps, workers, _names(hosts))
    cluster = {"ps": ps_hosts, "worker": worker_hosts}
    for job in ("ps", "worker"):
        tasks.check_task(cluster, job, task_index if job == job_name else 0)
    mode.check(len(worker_hosts))
    from hvd_mnist.baselines import parameter_server as server

    try:
        if job_name == "ps":
            server.serve(cluster, task_index, config.threads, config.stall_timeout)
        else:
            server.work_on(config, cluster, task_index, mode, sources)
    except HvdMnistError as error:
        tasks.end_at_once(error)
