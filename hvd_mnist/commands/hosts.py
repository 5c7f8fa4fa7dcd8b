"""``hvd-mnist hosts check|convert|expand`` and ``hvd-mnist whoami``."""

from __future__ import annotations

import sys

import click

from hvd_mnist.cluster.hostfile import READABLE, WRITABLE

_DIALECT = click.option(
    "--dialect",
    type=click.Choice(READABLE),
    default="auto",
    show_default=True,
    help="Read the file as this tool does; auto reads every dialect.",
)


@click.group()
def hosts():
    """Check, convert and expand lists of hosts.

    \b
    hvd-mnist hosts check hostfiles/openmpi
    hvd-mnist hosts convert hostfiles/openmpi --to mpich
    hvd-mnist hosts expand 'rack[1-2]n[3-4]:8'
    """


@hosts.command()
@click.argument("file")
@_DIALECT
def check(file: str, dialect: str):
    """Read FILE (- is standard input), show every bad line, or the hosts and slots. Status 0, or 6 for bad lines."""
    from hvd_mnist.cluster.hostfile import caret, read_text, scan_hostfile

    found, errors = scan_hostfile(read_text(file), "<stdin>" if file == "-" else file, dialect)
    if errors:
        for error in errors[:-1]:
            click.echo(f"{error}\n{_indented(caret(error))}", err=True)
        last = errors[-1]
        click.echo(_indented(caret(last)), err=True)
        last.hint = f"{last.hint} ({len(errors)} bad line{'s' if len(errors) > 1 else ''} in all)"
        raise last
    _show(found)


@hosts.command()
@click.argument("file")
@click.option("--to", "target", type=click.Choice(WRITABLE), required=True, help="Write for this tool.")
@_DIALECT
def convert(file: str, target: str, dialect: str):
    """Write FILE (- is standard input) in another dialect to standard output; what it cannot say goes to stderr."""
    from hvd_mnist.cluster.hostfile import not_expressible, parse_hostfile, read_text, render

    found = parse_hostfile(read_text(file), "<stdin>" if file == "-" else file, dialect)
    for note in (*found.notes, *not_expressible(found, target)):
        click.echo(f"note: {note}", err=True)
    click.echo(render(found, target), nl=False)


@hosts.command()
@click.argument("text")
def expand(text: str):
    """One host a line for TEXT, as after -H: 'gpu[01-04]:4,alice@h5:2'."""
    from hvd_mnist.cluster.hostfile import caret, parse_hosts
    from hvd_mnist.errors import HostFileError

    try:
        found = parse_hosts(text, "TEXT")
    except HostFileError as error:
        click.echo(_indented(caret(error)), err=True)
        raise
    for note in found.notes if any(host.slots for host in found) else ():  # names alone: slots do not matter
        click.echo(f"note: {note}", err=True)
    click.echo("".join(f"{host}\n" for host in found), nl=False)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on one line.")
def whoami(as_json: bool):
    """Rank, size, local rank, host and launcher of this process, and the variable that says so.

    \b
    mpirun -np 2 hvd-mnist whoami
    srun -n 4 hvd-mnist whoami --json
    """
    import os

    from hvd_mnist.cluster.identity import identity_from

    me = identity_from(os.environ)
    if as_json:
        import json

        text = json.dumps(me.as_dict(), ensure_ascii=False)
    else:
        text = "\n".join([str(me), *(f"note: {note}" for note in me.notes)])
    # One write, so that lines of several ranks on one terminal stay whole.
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _show(found) -> None:
    rows = [("host", "slots", "max", "user", "port")]
    for host in found:
        cells = (host.name, host.slot_count, host.max_slots, host.user, host.port)
        rows.append(tuple("-" if cell is None else str(cell) for cell in cells))
    kept = [index for index in range(5) if index < 2 or any(row[index] != "-" for row in rows[1:])]
    widths = {index: max(len(row[index]) for row in rows) for index in kept}
    for row in rows:
        click.echo("  ".join(row[index].ljust(widths[index]) for index in kept).rstrip())
    hosts_word = "host" if len(found) == 1 else "hosts"
    click.echo(f"{len(found)} {hosts_word}, {found.total_slots} slots, dialect {found.dialect}")
    for note in found.notes:
        click.echo(f"note: {note}")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n")) if text else "    (empty line)"
