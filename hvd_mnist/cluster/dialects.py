"""Host files line by line: what each tool reads, and how to write it.

openmpi      ``name slots=4 max_slots=8 port=2222``, ``#`` comments     (also ``user@name``)
mpich, intel ``name:4 user=alice``, comments on lines of their own
horovodrun   ``name slots=4``, nothing else: it stops with an IndexError at a comment or a blank line
deepspeed    ``name slots=4``, ``#`` comments, each name once
slurm        ``SLURM_JOB_NODELIST=gpu[01-02]`` and ``SLURM_TASKS_PER_NODE=4(x2)``
plain        one name a line, repeated for each slot (PBS, LSF)

Which tool accepts what was seen with Open MPI 4.1.8 and 5.0.11, MPICH 5.0.2, Intel MPI 2021.18, Horovod 0.28.1.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hvd_mnist.cluster import ranges
from hvd_mnist.cluster.host import (
    Host,
    Line,
    check_name,
    is_ipv6,
    parse_word,
    shorten,
    slot_number,
    split_words,
)
from hvd_mnist.errors import UsageError

READABLE = ("auto", "openmpi", "mpich", "intel", "horovodrun", "deepspeed", "slurm")
WRITABLE = READABLE[1:]

_KEYS = {
    **dict.fromkeys(("slots", "count", "cpu", "cpus"), "slots"),
    **dict.fromkeys(("max_slots", "max-slots", "slots_max", "slots-max"), "max_slots"),
    **dict.fromkeys(("user", "username", "user_name", "user-name"), "user"),
    "port": "port",
    **dict.fromkeys(("binding", "ifname"), "binding"),
}
_ALLOWED = {
    "auto": {"slots", "max_slots", "user", "port", "binding"},
    "openmpi": {"slots", "max_slots", "port"},
    "mpich": {"user", "binding"},
    "intel": {"user", "binding"},
    "horovodrun": {"slots"},
    "deepspeed": {"slots"},
}
_RIGHT_FORM = {
    "auto": "write h1 slots=4, or h1:4",
    "openmpi": "write h1 slots=4",
    "mpich": "write h1:4",
    "intel": "write h1:4",
    "horovodrun": "write h1 slots=4 and nothing else on the line",
    "deepspeed": "write h1 slots=4",
    "slurm": "write SLURM_JOB_NODELIST=gpu[01-02] and SLURM_TASKS_PER_NODE=4(x2)",
}
_PAIR_OR_WORD = re.compile(r"([A-Za-z_-]+)\s*=\s*([^\s=]*)|(\S+)")


def without_comment(line: Line, dialect: str) -> str:
    """The text before ``#``; an error where this dialect has no such comment."""
    before, mark, _ = line.text.partition("#")
    if mark and (dialect == "horovodrun" or dialect == "mpich" and before.strip()):
        stops = "horovodrun stops with an IndexError at" if dialect == "horovodrun" else "MPICH refuses"
        where = "a comment" if dialect == "horovodrun" else "a comment after a host"
        raise line.error(len(before), f"{stops} {where}", "remove it, or: hosts convert FILE --to " + dialect)
    if dialect == "horovodrun" and not before.strip():
        raise line.error(0, "horovodrun stops with an IndexError at a blank line", "remove it")
    return before


def parse_line(line: Line, dialect: str) -> tuple[list[Host], str, tuple[str, ...]]:
    """Hosts of one line of a host file.

    Returns:
        (hosts, form, notes): no host for a blank line; form is the dialect that the line itself shows (openmpi,
        mpich or plain).

    Raises:
        HostFileError: the dialect has no such line.
    """
    text = without_comment(line, dialect)
    tokens = list(_PAIR_OR_WORD.finditer(text))
    if not tokens:
        return [], "", ()
    if text.lstrip().startswith((";", "//")):
        raise line.error(tokens[0].start(), "no comment in host files", "a comment starts with '#'")
    words = split_words(Line(text, line.source, line.number)) if dialect == "auto" and "=" not in text else []
    if len(words) > 1 and "," in text:
        hosts = [host for column, word in words for host in parse_word(word, line, column)]
        return hosts, "mpich" if any(host.slots for host in hosts) else "plain", ()
    first, *others = tokens
    if first.group(1):
        raise line.error(
            first.start(), f"{shorten(first.group())!r} where a host name is expected", _RIGHT_FORM[dialect]
        )
    name = first.group(3)
    if name[0] in "^+":
        raise line.error(first.start(), f"Open MPI's {name[0]!r} hosts are not known here", "name the hosts themselves")
    found, notes = _attributes(line, others, name, dialect)
    if is_ipv6(name) and "slots" in found:  # no ':4' can follow, so brackets are not needed
        hosts = [Host(name, None, source=line.source, line=line.number)]
    else:
        hosts = parse_word(name, line, first.start())
    _check_form(line, first.start(), hosts, found, dialect)
    hosts = [replace(host, **found) for host in hosts]
    form = "openmpi" if "slots" in found else "mpich" if hosts[0].slots is not None else "plain"
    return hosts, form, notes


def _attributes(
    line: Line, tokens: list[re.Match[str]], name: str, dialect: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    found: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    for token in tokens:
        key, value, word = token.groups()
        at, value_at = token.start(), token.start(2)
        if word:
            rest = line.text[at:] if word == "slots" else word
            raise line.error(at, f"{shorten(word)!r} after the host", _hint_for_word(rest, name, dialect))
        meaning = _KEYS.get(key)
        if meaning not in _ALLOWED[dialect]:
            near = difflib.get_close_matches(key.lower(), [k for k, m in _KEYS.items() if m in _ALLOWED[dialect]], 1)
            hint = f"did you mean {near[0]}={value}?" if near else _RIGHT_FORM[dialect]
            raise line.error(at, f"{key}= is not read in {dialect if dialect != 'auto' else 'host'} files", hint)
        if meaning in found:
            raise line.error(at, f"{meaning} given twice for {shorten(name)}", "keep one")
        if meaning in ("slots", "max_slots"):
            found[meaning] = slot_number(value, line, value_at, f"write {key}=4", key)
        elif meaning == "port":
            if not re.fullmatch(r"[0-9]{1,5}", value) or not 0 < int(value) < 65536:
                raise line.error(value_at, f"port={shorten(value)!r}, not from 1 to 65535", "write port=22")
            found["port"] = int(value)
        elif meaning == "user":
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*\$?", value):
                raise line.error(value_at, f"{shorten(value)!r} is not a user name", "write user=alice")
            found["user"] = value
        else:
            notes = (f"{line.source}:{line.number}: {key}= is left out: launch chooses binding and interface itself",)
    if "max_slots" in found and found["max_slots"] < found.get("slots", 1):
        raise line.error(0, f"max_slots={found['max_slots']} is below slots={found.get('slots', 1)}", "raise max_slots")
    return found, notes


def _hint_for_word(word: str, name: str, dialect: str) -> str:
    word = unicodedata.normalize("NFKC", word)  # a full-width ':' or '=' becomes the plain one
    number = re.fullmatch(r"(?:(?:slots|x|:|\*)[:=]?)?\s*([0-9]+)\s*", word)
    if number:
        return f"write {name} slots={number[1]}" if dialect not in ("mpich", "intel") else f"write {name}:{number[1]}"
    if word.startswith((";", "//")):
        return "a comment starts with '#'"
    if re.match(r"[A-Za-z0-9\[]", word) and not word.startswith("slots"):
        return f"one host a line; {_RIGHT_FORM[dialect]}"
    return _RIGHT_FORM[dialect]


def _check_form(line: Line, column: int, hosts: list[Host], found: dict[str, Any], dialect: str) -> None:
    colon = hosts[0].slots is not None
    if colon and "slots" in found:
        raise line.error(column, "slots given twice: after ':' and after slots=", "keep one of the two")
    if colon and dialect in ("openmpi", "horovodrun", "deepspeed"):
        tool = {"openmpi": "Open MPI"}.get(dialect, dialect)
        raise line.error(
            column, f"{tool} does not read name:slots in a file", f"write {hosts[0].address} slots={hosts[0].slots}"
        )
    if dialect in ("horovodrun", "deepspeed") and "slots" not in found:
        raise line.error(column, f"{dialect} needs slots= on each line", f"write {hosts[0].address} slots=4")
    if dialect == "horovodrun" and (hosts[0].user or ":" in hosts[0].name or len(hosts) > 1):
        raise line.error(column, "horovodrun reads only plain names in a file", "use hvd-mnist launch --hostfile")
    if hosts[0].user and "user" in found:
        raise line.error(column, "user given twice", "keep one of the two")


def parse_slurm_lines(lines: Iterable[Line]) -> tuple[list[Host], tuple[str, ...]]:
    """Hosts of ``SLURM_*=`` lines (as ``env`` prints them) or of lines ``NODELIST [TASKS]``."""
    variables: dict[str, tuple[Line, int, str]] = {}
    hosts: list[Host] = []
    for line in lines:
        text = line.text.partition("#")[0]
        match = re.match(r"\s*(?:export\s+)?(SLURM_\w+)=(['\"]?)([^'\"]*)\2\s*$", text)
        if match:
            variables[match[1]] = (line, match.start(3), match[3])
        elif text.strip():
            words = [(m.start(), m.group()) for m in re.finditer(r"\S+", text)]
            if len(words) > 2 or "=" in text:
                raise line.error(words[-1][0], f"{shorten(words[-1][1])!r} is not Slurm's", _RIGHT_FORM["slurm"])
            hosts += slurm_hosts((line, *words[0]), (line, *words[1]) if len(words) == 2 else None)
    nodes = next((variables[name] for name in _NODELISTS if name in variables), None)
    if nodes:
        hosts += slurm_hosts(nodes, variables.get("SLURM_TASKS_PER_NODE"))
    elif variables:
        line, column, _ = next(iter(variables.values()))
        raise line.error(0, "SLURM_* variables without SLURM_JOB_NODELIST", _RIGHT_FORM["slurm"])
    return hosts, ()


_NODELISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST")


def slurm_hosts(nodes: tuple[Line, int, str], tasks: tuple[Line, int, str] | None) -> list[Host]:
    """Hosts of a node list and, if given, tasks per node; each is (line, column, text)."""
    line, column, text = nodes
    names: list[str] = []
    for at, word in split_words(Line(line.text[: column + len(text)], line.source, line.number), column):
        expanded = ranges.expand(word, line, at)
        names += [check_name(name, line, at) for name in expanded]
        if len(names) > ranges.MAX_HOSTS:
            raise line.error(at, f"more than {ranges.MAX_HOSTS} hosts", "check the ranges")
    if tasks is None:
        return [Host(name, None, source=line.source, line=line.number) for name in names]
    task_line, at, counts_text = tasks
    counts = ranges.expand_tasks(counts_text, task_line, at)
    if len(counts) != len(names):
        raise task_line.error(
            at,
            f"tasks for {len(counts)} nodes ({shorten(counts_text)}), but the list has {len(names)} ({shorten(text)})",
            "take both from the same job: SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE",
        )
    for count in counts:
        slot_number(str(count), task_line, at, "check it", "tasks per node")
    return [Host(name, count, source=line.source, line=line.number) for name, count in zip(names, counts, strict=True)]


def render(hosts: Iterable[Host], dialect: str) -> str:
    """A host file in one dialect, slots always written out. What it cannot say: ``not_expressible``.

    Raises:
        UsageError: no such dialect.
    """
    hosts = list(hosts)
    if dialect not in WRITABLE:
        raise UsageError(f"no dialect {dialect!r}", f"one of {', '.join(WRITABLE)}")
    if dialect == "slurm":
        names, tasks = (host.name for host in hosts), (host.slot_count for host in hosts)
        return f"SLURM_JOB_NODELIST={ranges.compress(names)}\nSLURM_TASKS_PER_NODE={ranges.compress_tasks(tasks)}\n"
    return "".join(_render_line(host, dialect) + "\n" for host in hosts)


def _render_line(host: Host, dialect: str) -> str:
    if dialect in ("mpich", "intel"):
        return f"{replace(host, user=None, slots=host.slot_count)}" + (f" user={host.user}" if host.user else "")
    # Open MPI reads IPv6 without brackets only (5 does; 4 reads none).
    name = host.name if dialect == "openmpi" and not host.user else host.address
    line = f"{name if dialect != 'horovodrun' else host.name} slots={host.slot_count}"
    if dialect == "openmpi":
        line += f" max_slots={host.max_slots}" if host.max_slots else ""
        line += f" port={host.port}" if host.port else ""
    return line


def not_expressible(hosts: Iterable[Host], dialect: str) -> tuple[str, ...]:
    """One line for each thing that a dialect cannot say; empty when nothing is lost by ``render``."""
    can = {
        "openmpi": {"user", "port", "max_slots"},
        "mpich": {"user"},
        "intel": {"user"},
        "deepspeed": {"user"},
    }.get(dialect, set())
    hosts = list(hosts)
    lost = []
    for what in ("user", "port", "max_slots", "slot_ids"):
        names = [host.name for host in hosts if getattr(host, what) is not None]
        if names and what not in can:
            lost.append(f"{dialect} files cannot say {what} (lost for {shorten(', '.join(names))})")
    ipv6 = [host.name for host in hosts if ":" in host.name]
    if ipv6:
        why = "Open MPI 4 cannot use" if dialect == "openmpi" else f"{dialect} cannot read"
        lost.append(f"{why} an IPv6 address ({shorten(', '.join(ipv6))}): give the host a name in /etc/hosts")
    return tuple(lost)
