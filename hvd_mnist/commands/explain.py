"""``hvd-mnist explain``."""

from __future__ import annotations

import sys

import click

from hvd_mnist.errors import HvdMnistError, UsageError


@click.command()
@click.argument("words", nargs=-1, metavar="CODE|TEXT|-")
@click.option("--list", "list_", is_flag=True, help="everything that is known, one line each")
@click.option("--markdown", is_flag=True, help="everything that is known, as docs/troubleshooting.md")
def explain(words, list_, markdown):
    """What does this exit status or message mean, and what is there to do?

    \b
    hvd-mnist explain 201
    hvd-mnist explain "orted: command not found"
    some-command 2>&1 | hvd-mnist explain -        whatever is known in a log
    """
    from hvd_mnist.explain import lookup, show

    if markdown:
        click.echo(show.as_markdown(), nl=False)
    elif list_:
        for entry in lookup.STATUSES + lookup.MESSAGES:
            click.echo(f"{entry.said_by:<12} {entry.shown}")
    elif words == ("-",):
        found = lookup.in_log(line.decode("utf-8", "replace") for line in sys.stdin.buffer)
        if not found:
            raise HvdMnistError("nothing in this log is known", "hvd-mnist explain --list; hvd-mnist doctor")
        click.echo("\n\n".join(show.as_text(each.entry, each) for each in found))
    elif not words:
        raise UsageError("explain what?", "hvd-mnist explain 201, or a message, or - for a log; --list shows all")
    else:
        entries = lookup.lookup(" ".join(words))
        if not entries:
            raise HvdMnistError(f"nothing is known about '{' '.join(words)[:200]}'", "hvd-mnist explain --list")
        click.echo("\n\n".join(show.as_text(entry) for entry in entries))
