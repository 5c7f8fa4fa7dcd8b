"""Read a list of hosts in any dialect: ``-H h1:4,h2:4``, host files, Slurm's variables; filter it; write it.

    parse_hosts("gpu[01-02]:4,alice@h3:2")   ->  gpu01:4  gpu02:4  alice@h3:2
    read_hostfile("hostfiles/openmpi")
    parse_slurm("gpu[01-04]", "4(x3),2")

Where dialects differ, these rules hold, and ``HostList.notes`` says when one was applied:
    no slots given     1 slot (``host.DEFAULT_SLOTS``). Open MPI host files count cores; ``-H`` there means 1.
    a host twice       slots add, as in Open MPI. horovodrun would start two local ranks 0 on one GPU; DeepSpeed
                       files: an error.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import replace

from hvd_mnist.cluster import ranges
from hvd_mnist.cluster.dialects import (
    READABLE,
    WRITABLE,
    not_expressible,
    parse_line,
    parse_slurm_lines,
    render,
    slurm_hosts,
)
from hvd_mnist.cluster.host import (
    DEFAULT_SLOTS,
    MAX_SLOTS,
    Host,
    HostList,
    Line,
    caret,
    looks_like_hosts,
    parse_word,
    shorten,
    split_words,
)
from hvd_mnist.errors import HostFileError, UsageError

__all__ = [
    "DEFAULT_SLOTS",
    "MAX_SLOTS",
    "READABLE",
    "WRITABLE",
    "Host",
    "HostList",
    "caret",
    "looks_like_hosts",
    "not_expressible",
    "parse_hostfile",
    "parse_hosts",
    "parse_slurm",
    "read_hostfile",
    "read_text",
    "render",
    "scan_hostfile",
]

MAX_TEXT = 1 << 20
"""Longest host list in characters (bytes of a file)."""


def parse_hosts(text: str, source: str = "-H") -> HostList:
    """Hosts of a ``-H`` text: ``[user@]name[:slots]`` joined by commas (or spaces), ranges in brackets.

    Raises:
        HostFileError: with the column of what is wrong.
    """
    line = Line(_bounded(text, source), source)
    hosts: list[Host] = []
    for column, word in split_words(line):
        hosts += parse_word(word, line, column)
        if len(hosts) > ranges.MAX_HOSTS:
            raise line.error(column, f"more than {ranges.MAX_HOSTS} hosts", "check the ranges")
    if not hosts:
        raise line.error(0, "no host", "write -H h1:4,h2:4")
    return _merged(hosts, "horovodrun", [line])


def parse_hostfile(text: str, source: str, dialect: str = "auto") -> HostList:
    """Hosts of a host file's text. ``dialect="auto"`` reads every dialect; a name reads what that tool reads.

    Raises:
        HostFileError: the first bad line; its message counts the others.
        UsageError: no such dialect.
    """
    hosts, errors = scan_hostfile(text, source, dialect)
    if errors:
        if len(errors) > 1:
            errors[0].hint = f"{errors[0].hint} ({len(errors) - 1} more bad lines: hvd-mnist hosts check {source})"
        raise errors[0]
    return hosts


def scan_hostfile(text: str, source: str, dialect: str = "auto") -> tuple[HostList, tuple[HostFileError, ...]]:
    """As ``parse_hostfile``, but returns every bad line's error beside the hosts of the good lines."""
    if dialect not in READABLE:
        raise UsageError(f"no dialect {dialect!r}", f"one of {', '.join(READABLE)}")
    text = _bounded(text, source).removeprefix("\ufeff")
    lines = [Line(each.rstrip("\r"), source, number) for number, each in enumerate(text.split("\n"), 1)]
    if not lines[-1].text:
        lines.pop()
    notes = []
    if "\r\n" in text:
        notes.append(
            f"{source}: line ends are Windows' (CRLF), which Open MPI refuses: hosts convert writes plain ones"
        )
    if dialect == "auto" and any(line.text.lstrip().removeprefix("export ").startswith("SLURM_") for line in lines):
        dialect = "slurm"
    hosts: list[Host] = []
    errors: list[HostFileError] = []
    forms: set[str] = set()
    if dialect == "slurm":
        try:
            hosts, _ = parse_slurm_lines(lines)
        except HostFileError as error:
            errors.append(error)
    else:
        for line in lines:
            try:
                found, form, said = parse_line(line, dialect)
            except HostFileError as error:
                errors.append(error)
                continue
            hosts += found
            notes += said
            forms.add(form)
            if len(hosts) > ranges.MAX_HOSTS:
                errors.append(line.error(0, f"more than {ranges.MAX_HOSTS} hosts", "check the ranges"))
                break
    if not hosts and not errors:
        hint = f"write one host a line, as in: h1 slots=4 (read {len(lines)} blank or comment lines)"
        errors.append(Line("", source, max(1, len(lines))).error(0, "no host in this file", hint))
    forms -= {"", "plain"}
    if len(forms) > 1:
        notes.append(f"{source}: lines of two dialects (slots=4 and name:4): no MPI reads this file as it is")
    shown = dialect if dialect != "auto" else "mixed" if len(forms) > 1 else (forms or {"plain"}).pop()
    try:
        merged = _merged(hosts, shown, lines)
    except HostFileError as error:
        return HostList(tuple(hosts), shown, tuple(notes)), tuple(sorted([*errors, error], key=lambda e: e.line))
    return replace(merged, notes=(*notes, *merged.notes)), tuple(errors)


def read_hostfile(path: str | os.PathLike[str], dialect: str = "auto") -> HostList:
    """``parse_hostfile`` of a file; ``-`` is standard input.

    Raises:
        HostFileError: also for a file that is missing, is no regular file, or is no UTF-8 text.
    """
    return parse_hostfile(read_text(path), os.fspath(path), dialect)


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a host file, at most MAX_TEXT bytes of it; ``-`` is standard input."""
    source = os.fspath(path)
    try:
        if source == "-":
            raw = sys.stdin.buffer.read(MAX_TEXT + 1)
        else:
            mode = os.stat(source).st_mode
            # A named pipe without a writer would wait for ever; /dev/fd/63, a shell's <(...), has one.
            if not stat.S_ISREG(mode) and not source.startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/")):
                kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
                raise HostFileError(f"{source} is {kind}", "name a host file", source="")
            with open(source, "rb") as file:
                raw = file.read(MAX_TEXT + 1)
    except OSError as error:
        where = "" if os.path.isabs(source) else f" (in {os.getcwd()})"
        raise HostFileError(
            f"host file {source}: {error.strerror}{where}", "check the path; no job is started without it"
        ) from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise HostFileError("the file is UTF-16 text", "save it as UTF-8", source=source)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(raw) <= MAX_TEXT:
            line = raw.count(b"\n", 0, error.start) + 1
            raise HostFileError("not UTF-8 text", "save it as UTF-8", source=source, line=line) from None
        text = raw.decode("utf-8", "replace")
    return text


def parse_slurm(nodelist: str, tasks_per_node: str | None = None, source: str = "Slurm") -> HostList:
    """Hosts of Slurm's variables: ``gpu[01-04]`` and ``4(x3),2``.

    Raises:
        HostFileError: a bad list, or another number of nodes than of tasks.
    """
    nodes = Line(_bounded(nodelist.strip(), source), f"{source} nodelist")
    tasks = (
        None if tasks_per_node is None else Line(_bounded(tasks_per_node.strip(), source), f"{source} tasks per node")
    )
    if not nodes.text:
        raise nodes.error(0, "an empty node list", "run inside salloc or sbatch, or give -H")
    hosts = slurm_hosts((nodes, 0, nodes.text), (tasks, 0, tasks.text) if tasks else None)
    return _merged(hosts, "slurm", [nodes])


def filter_hosts(hosts: HostList, include: str | None = None, exclude: str | None = None) -> HostList:
    """The hosts and slots that a DeepSpeed filter keeps: ``host1@host2:0,2``.

    ``host1`` means all its slots, ``host2:0,2`` two of them. A host of which some slots are kept has
    ``slot_ids`` (here (0, 2)) and ``slots`` = their number: local rank 1 is on slot 2.

    Raises:
        UsageError: both are given, or one is empty text.
        HostFileError: a host or slot is not in the list, or none is left.
    """
    if include is not None and exclude is not None:
        raise UsageError("--include and --exclude exclude one another", "give one of them")
    text, option = (include, "--include") if include is not None else (exclude, "--exclude")
    if text is None:
        return hosts
    from hvd_mnist.cluster.host_filter import chosen_slots

    chosen = chosen_slots(text, option, hosts)
    kept = []
    for host in hosts:
        own = host.slot_ids or tuple(range(host.slot_count))
        named = chosen.get(host.name, ())
        ids = named if include is not None else tuple(slot for slot in own if slot not in named)
        if ids:
            whole = ids == tuple(range(host.slot_count)) and host.slot_ids is None
            kept.append(host if whole else replace(host, slots=len(ids), slot_ids=ids))
    if not kept:
        raise HostFileError("no slot is left", f"{option} takes away all of {hosts}", source=option, text=text)
    return replace(hosts, hosts=tuple(kept))


def _bounded(text: str, source: str) -> str:
    if len(text) > MAX_TEXT:
        raise HostFileError(
            f"longer than {MAX_TEXT} characters, the most that is read", "is it a host list?", source=source
        )
    return text


def _merged(hosts: Iterable[Host], dialect: str, lines: list[Line]) -> HostList:
    """Each name once (names differ by more than case), and the notes on rules applied."""
    first: dict[str, Host] = {}
    repeated: dict[str, None] = {}
    for host in hosts:
        key = host.name.lower().rstrip(".")
        seen = first.get(key)
        if seen is None:
            first[key] = host
            continue
        where = lines[min(host.line, len(lines)) - 1]
        column = max(0, where.text.lower().rfind(key))
        if dialect == "deepspeed":
            raise where.error(
                column, f"{host.name} stands on line {seen.line} already", "DeepSpeed wants each host once"
            )
        if (seen.user, seen.port) != (host.user, host.port):
            raise where.error(
                column, f"{host.name} is given with two users or ports", "give it once, with all its slots"
            )
        if seen.slot_count + host.slot_count > MAX_SLOTS:
            raise where.error(column, f"{host.name} has more than {MAX_SLOTS} slots in all", "give it once")
        most = (seen.max_slots or seen.slot_count) + (host.max_slots or host.slot_count)
        first[key] = replace(
            seen,
            slots=seen.slot_count + host.slot_count,
            max_slots=most if seen.max_slots or host.max_slots else None,
        )
        repeated[key] = None
    merged = tuple(first.values())
    return HostList(merged, dialect, tuple(_notes(merged, [first[key] for key in repeated])))


def _notes(hosts: tuple[Host, ...], repeated: list[Host]) -> Iterable[str]:
    if repeated:
        yield (
            f"named more than once, slots added as Open MPI does: {shorten(', '.join(map(str, repeated)))}"
            " (horovodrun itself would put two ranks on one GPU)"
        )
    bare = [host.name for host in hosts if host.slots is None]
    if bare:
        yield (
            f"no slots given, {DEFAULT_SLOTS} each: {shorten(', '.join(bare))} (Open MPI would count cores in a"
            f" file); for more write {bare[0]}:4"
        )
    local = [host.name for host in hosts if host.name.lower() in ("localhost", "::1") or host.name.startswith("127.")]
    if local and len(hosts) > 1:
        yield f"{local[0]} beside other hosts: they cannot reach it by that name; write this machine's own name"
    names = {host.name.lower() for host in hosts}
    for host in hosts:
        short = host.name.lower().partition(".")[0]
        if short in names and short != host.name.lower():
            yield f"{short} and {host.name} look like one machine named twice: two ranks would share a GPU"
