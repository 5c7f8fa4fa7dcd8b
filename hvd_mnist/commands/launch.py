"""``hvd-mnist launch``: the words, and the one call."""

from __future__ import annotations

import os
import sys

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
    ssh_port, ssh_identity, prefix, timeout, prefix_output, log_dir, target, dry_run, as_json, words,
):  # fmt: skip
    """Start a job on hosts: horovodrun, mpirun, srun or here.

    \b
    hvd-mnist launch -np 2 -- train                              this machine
    hvd-mnist launch -np 8 -H host1:4,host2:4 -- train           two machines
    hvd-mnist launch --hostfile hosts --dry-run -- train         what would run, and why
    hvd-mnist launch -np 4 -- python my_program.py               any program

    `-- train ...` is `hvd-mnist train ...` with this Python. Without -H: the Slurm allocation, or this machine.
    """
    if as_json and not dry_run:
        raise UsageError("--json without --dry-run", "add --dry-run")
    from hvd_mnist.cluster.hostfile import filter_hosts, parse_hosts, read_hostfile
    from hvd_mnist.cluster.placement import place
    from hvd_mnist.launch import show, site
    from hvd_mnist.launch.job import Job, Ssh
    from hvd_mnist.launch.plan import plan

    if hosts_text is not None and hostfile is not None:
        raise UsageError("-H and --hostfile exclude one another", "give one of them")
    if hosts_text is not None:
        hosts, source = parse_hosts(hosts_text), "-H"
    elif hostfile is not None:
        hosts, source = read_hostfile(hostfile), hostfile
    else:
        hosts, source = site.hosts_here(os.environ)
    hosts = filter_hosts(hosts, include, exclude)
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
    )
    if target:
        from hvd_mnist.launch.render import render

        click.echo(render(job, target), nl=False)
        return None
    command = plan(job, site.look(job.placement.hosts, os.environ, network_interface, only_shown=dry_run))
    if dry_run:
        click.echo(show.as_json(command) if as_json else show.as_text(command), nl=as_json)
        return None
    from hvd_mnist.launch.run import run

    return run(command, log_dir=log_dir, timeout=timeout, prefix_output=prefix_output)


def _program(words: tuple[str, ...]) -> tuple[str, ...]:
    return (sys.executable, "-m", "hvd_mnist", *words) if words[:1] == ("train",) else words
