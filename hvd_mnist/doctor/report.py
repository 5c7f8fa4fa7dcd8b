"""The doctor's report: a table for people, and a JSON object whose shape changes only with its version number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hvd_mnist.doctor.check import FAIL, OK, WARNING, Check, failed
from hvd_mnist.doctor.facts import HostFacts

SCHEMA_VERSION = 1
SIDE_BY_SIDE = 4  # more columns of hosts than this cannot be read: hosts that agree are shown on one line
STYLES = {OK: "green", WARNING: "yellow", FAIL: "bold red"}
MARKS = {OK: "ok", WARNING: "warning", FAIL: "FAIL"}


@dataclass(frozen=True)
class Difference:
    """One fact that is not the same on all hosts: its name, and host -> value."""

    fact: str
    values: dict[str, str]


@dataclass(frozen=True)
class HostEntry:
    """One host of the report. ``facts`` is None where it could not be reached; ``ranks`` is what is to run there."""

    name: str
    slots: int
    ranks: int
    facts: HostFacts | None


@dataclass(frozen=True)
class Report:
    """All that the doctor found.

    Attributes:
        checks: of this machine, of each host, and of all together.
        hosts: this machine alone, or the hosts that were named.
        differences: facts that are not the same everywhere.
    """

    checks: tuple[Check, ...]
    hosts: tuple[HostEntry, ...]
    differences: tuple[Difference, ...] = ()

    @property
    def fit(self) -> bool:
        """Whether training can work."""
        return not failed(self.checks)


def as_dict(report: Report) -> dict:
    """The object of ``--json``; docs/doctor.md describes it."""
    from hvd_mnist import __version__
    from hvd_mnist.errors import EnvironmentUnfit

    return {
        "schema_version": SCHEMA_VERSION,
        "hvd_mnist": __version__,
        "fit": report.fit,
        "exit_status": 0 if report.fit else EnvironmentUnfit.exit_status,
        "counts": {state: sum(check.state == state for check in report.checks) for state in (OK, WARNING, FAIL)},
        "checks": [asdict(check) for check in report.checks],
        "hosts": [
            {
                "name": host.name,
                "slots": host.slots,
                "ranks": host.ranks,
                "facts": host.facts.as_dict() if host.facts else None,
            }
            for host in report.hosts
        ],
        "differences": [asdict(difference) for difference in report.differences],
    }


def as_json(report: Report) -> str:
    return json.dumps(as_dict(report), ensure_ascii=False, indent=1)


def verdict(report: Report) -> str:
    """One sentence: can it train?"""
    count = {state: sum(check.state == state for check in report.checks) for state in (OK, WARNING, FAIL)}
    if count[FAIL]:
        names = ", ".join(dict.fromkeys(named(check) for check in failed(report.checks)))
        return f"training cannot work here: {names}"
    if count[WARNING]:
        return f"training can work here; {count[WARNING]} warning{'s' * (count[WARNING] > 1)} above"
    return "training can work here"


def named(check: Check) -> str:
    return f"{check.name} on {check.host}" if check.host else check.name


def as_text(report: Report, width: int, colour: bool) -> str:
    """Tables for people, ``width`` columns wide; plain lines where rich is not installed."""
    import io

    try:
        from rich.console import Console
    except ImportError:
        return "\n".join(plain_line(check) for check in report.checks)

    console = Console(file=io.StringIO(), width=width, force_terminal=colour, no_color=not colour, highlight=False)
    own = [check for check in report.checks if not check.host]
    theirs = [check for check in report.checks if check.host]
    if theirs:
        console.print(_hosts_table(theirs, [host.name for host in report.hosts]))
    if own:
        console.print(_one_table(own))
    if report.differences:
        console.print(_difference_table(report.differences))
    _print_remedies(console, report.checks)
    return "\n".join(line.rstrip() for line in console.file.getvalue().strip("\n").splitlines())


def plain_line(check: Check) -> str:
    """``warning  data on h1: what was found -> what to type``."""
    return f"{check.state:8} {named(check)}: {check.found}" + (f" -> {check.do}" if check.do else "")


def _table(*headings: str):
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _text(text: str, style: str = ""):
    from rich.text import Text

    return Text(text, style=style)


def _cell(check: Check):
    if check.state == OK:
        return _text(check.found)
    return _text(f"{MARKS[check.state]}: {check.found}", STYLES[check.state])


def _one_table(checks: Sequence[Check]):
    table = _table("check", "state", "found")
    for check in checks:
        table.add_row(_text(check.name), _text(MARKS[check.state], STYLES[check.state]), _text(check.found))
    return table


def _hosts_table(checks: Sequence[Check], hosts: Sequence[str]):
    """Hosts side by side; of many hosts, one row for all that have the same answer."""
    names = list(dict.fromkeys(check.name for check in checks))
    if len(hosts) <= SIDE_BY_SIDE:
        table = _table("check", *hosts)
        for name in names:
            by_host = {check.host: check for check in checks if check.name == name}
            table.add_row(_text(name), *(_cell(by_host[host]) if host in by_host else _text("-") for host in hosts))
        return table
    table = _table("check", "state", "found", "hosts")
    for name in names:
        same: dict[tuple[str, str], list[str]] = {}
        for check in checks:
            if check.name == name:
                same.setdefault((check.state, check.found), []).append(check.host)
        for (state, found), who in same.items():
            shown = "all" if len(who) == len(hosts) else ", ".join(who)
            table.add_row(_text(name), _text(MARKS[state], STYLES[state]), _text(found), _text(shown))
    return table


def _difference_table(differences: Sequence[Difference]):
    hosts = list(dict.fromkeys(host for difference in differences for host in difference.values))
    table = _table("differs", *hosts) if len(hosts) <= SIDE_BY_SIDE else _table("differs", "value", "hosts")
    for difference in differences:
        if len(hosts) <= SIDE_BY_SIDE:
            table.add_row(_text(difference.fact), *(_text(difference.values.get(host, "-")) for host in hosts))
            continue
        same: dict[str, list[str]] = {}
        for host, value in difference.values.items():
            same.setdefault(value, []).append(host)
        for value, who in same.items():
            table.add_row(_text(difference.fact), _text(value), _text(", ".join(who)))
    return table


def _print_remedies(console, checks: Sequence[Check]) -> None:
    """What to type, failures first; hosts that need the same share a line."""
    needed: dict[tuple[str, str, str], list[str]] = {}
    for check in sorted((c for c in checks if c.do), key=lambda c: c.state != FAIL):
        needed.setdefault((check.state, check.name, check.do), []).append(check.host)
    if needed:
        console.print(_text("What to do", "bold"))
    for (state, name, remedy), hosts in needed.items():
        where = f" on {', '.join(hosts)}" if any(hosts) else ""
        console.print(_text(f"  {name}{where}: ", STYLES[state]) + _text(remedy), soft_wrap=True)
