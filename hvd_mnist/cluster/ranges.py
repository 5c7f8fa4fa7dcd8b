"""Slurm's short forms: ``gpu[01-04,7]`` for names and ``4(x2),2`` for tasks per node.

python-hostlist expands; this file checks first, so that an error has a column and a range such as
``n[1-9999999999]`` costs nothing. Order is kept: python-hostlist's own way back sorts hosts, which would give
their slots to the wrong ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hvd_mnist.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hvd_mnist.cluster.host import Line

MAX_HOSTS = 10_000
"""Most hosts in one list."""

_GROUP = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
_TASKS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,9})\))?")


def expand(text: str, line: Line, column: int) -> list[str]:
    """Names that ``text`` stands for, in order: ``rack[1-2]n[3-4]`` gives rack1n3, rack1n4, rack2n3, rack2n4.

    Args:
        text: one word without a comma outside brackets; it starts at ``column`` (from 0) of ``line``.

    Raises:
        HostFileError: brackets or ranges are wrong, or stand for more than MAX_HOSTS names.
        EnvironmentUnfit: python-hostlist is not installed.
    """
    bare = _GROUP.sub(lambda match: "." * len(match.group()), text)
    stray = re.search(r"[\[\]]", bare)
    if stray:
        raise line.error(
            column + stray.start(), f"{stray.group()!r} without its partner", "write a range as gpu[01-04]"
        )
    groups = list(_GROUP.finditer(text))
    if len(groups) > 8:
        raise line.error(column + groups[8].start(), "more than 8 ranges in one name", "write some of them out")
    count = 1
    for group in groups:
        count *= _size(group, line, column)
        if count > MAX_HOSTS:
            raise line.error(
                column + group.start(),
                f"this range makes more than {MAX_HOSTS} hosts, the most that a list may hold",
                "check the numbers of the range",
            )
    return list(_hostlist().expand_hostlist(text, allow_duplicates=True))


def _size(group: re.Match[str], line: Line, column: int) -> int:
    size, at = 0, group.start(1)
    for piece in group.group(1).split(","):
        match = _RANGE.fullmatch(piece)
        if not match:
            raise line.error(
                column + at,
                f"{piece[:40]!r} is not a range of numbers" if piece else "an empty range",
                "write [01-04] or [1,3,5-8]",
            )
        low, high = int(match.group(1)), int(match.group(2) or match.group(1))
        if high < low:
            raise line.error(column + at, f"the range {piece} runs backwards", f"write {match[2]}-{match[1]}")
        size += high - low + 1
        at += len(piece) + 1
    return size


def expand_tasks(text: str, line: Line, column: int) -> list[int]:
    """Tasks of each node: ``4(x2),2`` gives 4, 4, 2.

    Raises:
        HostFileError: another form, no task on a node, or more than MAX_HOSTS nodes.
    """
    hint = "write it as Slurm does in SLURM_TASKS_PER_NODE: 4(x2),2"
    nodes, at = 0, column
    for piece in text.split(","):
        match = _TASKS.fullmatch(piece)
        if not match or int(match.group(1)) == 0 or match.group(2) is not None and int(match.group(2)) == 0:
            raise line.error(at, f"tasks per node: {piece[:40]!r}", hint)
        nodes += int(match.group(2) or 1)
        if nodes > MAX_HOSTS:
            raise line.error(at, f"tasks for more than {MAX_HOSTS} nodes, the most that a list may hold", hint)
        at += len(piece) + 1
    return list(_hostlist().parse_slurm_tasks_per_node(text))


def compress(names: Iterable[str]) -> str:
    """The short form of names, in the order given: h1, h2, h5 become ``h[1-2],h5``."""
    runs: list[tuple[str, str, int, int, str]] = []  # prefix, first number, its value, last value, suffix
    for name in names:
        match = re.fullmatch(r"(.*?)([0-9]{1,9})([^0-9]*)", name)
        prefix, digits, suffix = match.groups() if match else (name, "", "")
        if runs and digits:
            before, first, low, high, after = runs[-1]
            if (before, after) == (prefix, suffix) and first and f"{high + 1:0{len(first)}d}" == digits:
                runs[-1] = (before, first, low, high + 1, after)
                continue
        value = int(digits) if digits else 0
        runs.append((prefix, digits, value, value, suffix))
    return ",".join(
        f"{prefix}[{first}-{high:0{len(first)}d}]{suffix}" if high > low else f"{prefix}{first}{suffix}"
        for prefix, first, low, high, suffix in runs
    )


def compress_tasks(tasks: Iterable[int]) -> str:
    """The short form of tasks per node: 4, 4, 2 become ``4(x2),2``."""
    runs: list[list[int]] = []
    for count in tasks:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)


def _hostlist() -> Any:
    try:
        import hostlist
    except ImportError:
        raise EnvironmentUnfit(
            "a range of hosts needs the package python-hostlist, which is not installed",
            "pip install python-hostlist",
        ) from None
    return hostlist
