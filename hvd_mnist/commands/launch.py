"""``hvd-mnist launch``: the words, and the one call."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace

import click

from hvd_mnist.errors import UsageError


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-np", "size", metavar="N", type=int, help="Number of ranks. [default: every slot]")
@click.option("-H", "--hosts", "hosts_text", metavar="h1:4,h2:4", help="Hosts and their slots.")
@click.option("--hostfile", metavar="FILE", help="Hosts from a file of any dialect; - is standard input.")
@click.option("--include", metavar="h1@h2:0,2", help="Use these hosts and slots only.")
@click.option("--exclude", metavar="h1@h2:0,2", help="Leave these hosts and slots out.")
@click.option("--spread", is_flag=True, help="Share ranks evenly over hosts, instead of filling hosts in order.")
@click.option(
    "--launcher",
    type=click.Choice(("auto", "horovodrun", "mpirun", "srun", "local")),
    default="auto",
    show_default=True,
    help="What starts the ranks; local is this machine, without ssh.",
)
@click.option(
    "--backend",
    type=click.Choice(("gloo", "mpi")),
    default="gloo",
    show_default=True,
    help="What ranks meet over, under horovodrun.",
)
@click.option("--network-interface", metavar="NAME", help="Interface or subnet between hosts. [default: by the route]")
@click.option("-x", "exports", metavar="NAME[=VALUE]", multiple=True, help="Hand on one more variable.")
@click.option("--ssh-port", metavar="P", type=click.IntRange(1, 65535), help="[default: what ssh's configuration says]")
@click.option("--ssh-identity", metavar="FILE", type=click.Path(exists=True, dir_okay=False, resolve_path=True))
@click.option(
    "--prefix",
    metavar="DIR",
    default="auto",
    show_default=True,
    help="Where Open MPI lies on the hosts; none: do not say.",
)
@click.option("--host-discovery-script", metavar="FILE", help="Elastic: a program that prints one host:slots a line.")
@click.option("--min-np", metavar="N", type=click.IntRange(1), help="Elastic: ranks to go on with. [default: -np]")
@click.option("--max-np", metavar="N", type=click.IntRange(1), help="Elastic: ranks at most. [default: every slot]")
@click.option(
    "--reset-limit",
    metavar="N",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Elastic: changes of ranks before the job fails.",
)
@click.option(
    "--cooldown",
    metavar="LOW HIGH",
    nargs=2,
    type=int,
    default=(10, 300),
    show_default=True,
    help="Elastic: seconds without a host where a rank failed.",
)
@click.option(
    "--max-restarts",
    metavar="K",
    type=click.IntRange(0),
    default=0,
    help="Start a failed job again up to K times, if it saved a new checkpoint.",
)
@click.option(
    "--restart-delay",
    metavar="S",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Seconds before the first restart; doubled each time, up to 300.",
)
@click.option("--timeout", metavar="S", type=click.FloatRange(min=1), help="End the job after S seconds.")
@click.option("--prefix-output", is_flag=True, help="Put the rank before every line.")
@click.option(
    "--log-dir", metavar="DIR", help="Output of each rank. [default: logs/ in the run folder, or under runs/]"
)
@click.option("--to", "target", type=click.Choice(("k8s", "slurm", "pbs")), help="Print a job file instead of running.")
@click.option("--dry-run", is_flag=True, help="Print what would run, and why; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: as one JSON object.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def launch(
    size, hosts_text, hostfile, include, exclude, spread, launcher, backend, network_interface, exports,
    ssh_port, ssh_identity, prefix, host_discovery_script, min_np, max_np, reset_limit, cooldown, max_restarts,
    restart_delay, timeout, prefix_output, log_dir, target, dry_run, as_json, words,
):  # fmt: skip
    """Start a job on hosts: horovodrun, mpirun, srun or here.

    \b
    hvd-mnist launch -np 2 -- train                              this machine
    hvd-mnist launch -np 8 -H host1:4,host2:4 -- train           two machines
    hvd-mnist launch --hostfile hosts --dry-run -- train         what would run, and why
    hvd-mnist launch -np 4 -- python my_program.py               any program
    hvd-mnist launch --max-restarts 3 -- train --run-dir runs/1  again, from its last checkpoint, if it fails
    hvd-mnist launch -np 2 --min-np 1 --host-discovery-script ./hosts.sh -- train --elastic

    `-- train ...` is `hvd-mnist train ...` with this Python. Without -H: the Slurm allocation, or this machine.
    """
    if as_json and not dry_run:
        raise UsageError("--json without --dry-run", "add --dry-run")
    from hvd_mnist.cluster.hostfile import filter_hosts, parse_hosts, read_hostfile
    from hvd_mnist.cluster.placement import place
    from hvd_mnist.launch import show, site
    from hvd_mnist.launch.elastic import discover, elastic_of
    from hvd_mnist.launch.job import Job, Ssh
    from hvd_mnist.launch.plan import plan

    if (hosts_text is not None) + (hostfile is not None) + (host_discovery_script is not None) > 1:
        raise UsageError("-H, --hostfile and --host-discovery-script exclude one another", "give one of them")
    elastic = elastic_of(host_discovery_script, size, min_np, max_np, reset_limit, cooldown)
    if elastic:
        _check_elastic_words(words, target)
        hosts, source = discover(elastic.script), host_discovery_script
    elif hosts_text is not None:
        hosts, source = parse_hosts(hosts_text), "-H"
    elif hostfile is not None:
        hosts, source = read_hostfile(hostfile), hostfile
    else:
        hosts, source = site.hosts_here(os.environ)
    hosts = filter_hosts(hosts, include, exclude)
    if elastic:  # what horovodrun will do: every slot, up to --max-np
        slots = sum(host.slot_count for host in hosts)
        size, elastic = min(slots, elastic.most or slots), replace(elastic, interface=network_interface or "lo")
    job = Job(
        words=words if target else _program(words),
        placement=place(hosts, size, spread),
        launcher=launcher,
        backend=backend,
        exports=exports,
        ssh=Ssh(None, ssh_port, ssh_identity),
        prefix=None if prefix == "none" else prefix,
        hosts_from=source,
        notes=hosts.notes,
        elastic=elastic,
    )
    if target:
        from hvd_mnist.launch.render import render

        click.echo(render(job, target), nl=False)
        return None
    command = plan(job, site.look(job.placement.hosts, os.environ, network_interface, only_shown=dry_run))
    if dry_run:
        click.echo(show.as_json(command) if as_json else show.as_text(command), nl=as_json)
        return None
    from hvd_mnist.launch import restart
    from hvd_mnist.launch.run import run

    run_dir = restart.run_dir_of(job.words) if max_restarts else None
    until = time.monotonic() + timeout if timeout else None

    def start(again: bool) -> int:
        left = max(1.0, until - time.monotonic()) if until else None
        this = restart.going_on(command) if again else command
        return run(this, log_dir=log_dir, timeout=left, prefix_output=prefix_output)

    def newest() -> int:
        return restart.newest_step(run_dir) if run_dir else -1

    return restart.run_with_restarts(start, newest, restart.Restarts(max_restarts, restart_delay), until)


def _check_elastic_words(words: tuple[str, ...], target: str | None) -> None:
    if target:
        raise UsageError(f"--to {target} with --host-discovery-script: no file is written for an elastic job")
    if words[:1] == ("train",) and "--elastic" not in words:
        raise UsageError("an elastic job of a train that is not elastic", "-- train --elastic ...")


def _program(words: tuple[str, ...]) -> tuple[str, ...]:
    return (sys.executable, "-m", "hvd_mnist", *words) if words[:1] == ("train",) else words
