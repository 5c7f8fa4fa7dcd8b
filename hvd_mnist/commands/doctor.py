"""``hvd-mnist doctor``."""

from __future__ import annotations

import click


@click.command()
@click.option("-np", "np", type=click.IntRange(1), help="Ranks to run. Default: 1 here, or every slot of the hosts.")
@click.option("-H", "--hosts", "hosts", metavar="LIST", help="Hosts and slots, as in h1:4,h2:4. Default: this machine.")
@click.option("--hostfile", metavar="FILE", help="Hosts and slots from a file of any dialect.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output (docs/doctor.md).")
@click.option("--run", "exchange", is_flag=True, help="Also run a real allreduce, on each host and across them.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds that each host has to answer.")
@click.option("--network-interface", metavar="NAME", help="Interface or subnet between hosts. [default: by the route]")
@click.option("--ssh-port", metavar="P", type=click.IntRange(1, 65535), help="[default: what ssh's configuration says]")
@click.option("--ssh-identity", metavar="FILE", type=click.Path(exists=True, dir_okay=False, resolve_path=True))
def doctor(np, hosts, hostfile, as_json, exchange, timeout, network_interface, ssh_port, ssh_identity):
    """Can this machine, or can these hosts, train? A table of checks, and what to type where one is not right.

    Status 0 where training can work (warnings allowed), 3 where something fails.

    \b
    hvd-mnist doctor -np 2 --run
    hvd-mnist doctor -H gpu1:4,gpu2:4 --run
    """
    from hvd_mnist.doctor.report import as_json as json_of
    from hvd_mnist.doctor.report import as_text, verdict
    from hvd_mnist.doctor.visit import visit_here
    from hvd_mnist.errors import EnvironmentUnfit, UsageError

    if hosts is not None and hostfile is not None:
        raise UsageError("-H and --hostfile exclude one another", "give one of them")
    several = hosts is not None or hostfile is not None
    for option, given in (("--network-interface", network_interface), ("--ssh-port", ssh_port),
                          ("--ssh-identity", ssh_identity)):  # fmt: skip
        if given and not several:
            raise UsageError(f"{option} without hosts: this machine alone is looked at", "add -H h1:4,h2:4")
    if timeout <= 0:
        raise UsageError(f"--timeout {timeout:g}: a time limit is more than 0 s", "leave it out, or write --timeout 60")
    if several:
        from hvd_mnist.cluster.hostfile import parse_hosts, read_hostfile
        from hvd_mnist.doctor.hosts import visit_hosts
        from hvd_mnist.launch.job import Ssh

        named = parse_hosts(hosts) if hosts is not None else read_hostfile(hostfile)
        for note in named.notes:
            click.echo(f"note: {note}", err=True)
        click.echo(f"Looking at {len(named)} host{'s' * (len(named) > 1)}, at most {timeout:g} s each ...", err=True)
        report = visit_hosts(named, np, Ssh(None, ssh_port, ssh_identity), timeout, exchange, network_interface)
    else:
        report = visit_here(np or 1, timeout, exchange)
    if as_json:
        click.echo(json_of(report))
    else:
        import shutil
        import sys

        colour = sys.stdout.isatty()
        width = shutil.get_terminal_size((120, 24)).columns
        click.echo(as_text(report, width, colour))
    if not report.fit:
        raise EnvironmentUnfit(verdict(report), None if as_json else "see 'What to do' above")
    if not as_json:
        click.echo(verdict(report))
