"""DeepSpeed's ``--include`` and ``--exclude`` words: ``host1@host2:0,2``."""

from __future__ import annotations

import difflib
import re

from hvd_mnist.cluster import ranges
from hvd_mnist.cluster.host import HostList, Line, shorten
from hvd_mnist.errors import UsageError


def chosen_slots(text: str, option: str, hosts: HostList) -> dict[str, tuple[int, ...]]:
    """Slots that a filter names, in order of number, by host name.

    Raises:
        UsageError: the text is empty.
        HostFileError: another form, or a host or slot that the list does not hold.
    """
    if not text.strip():
        raise UsageError(f"{option} is empty", f"write {option} h1@h2:0,2")
    line = Line(text, option)
    known = {host.name: host.slot_ids or tuple(range(host.slot_count)) for host in hosts}
    chosen: dict[str, set[int]] = {}
    at = 0
    for word in text.split("@"):
        match = re.fullmatch(r"\s*(\[[0-9A-Fa-f:.%]*:[^\]]*\]|[^:\s]+)(?::([0-9,]+))?\s*", word)
        if not match:
            raise line.error(at, f"{shorten(word)!r} is not a filter", "write h1@h2:0,2 (hosts by @, slots by commas)")
        name, slots = match.groups()
        if name.startswith("[") and ":" in name:
            names = [name[1:-1]]
        else:
            names = ranges.expand(name, line, at) if "[" in name or "]" in name else [name]
        for each in names:
            if each not in known:
                near = difflib.get_close_matches(each, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"the list has {shorten(', '.join(known))}"
                raise line.error(at, f"host {shorten(each)} is not in the list", hint)
            wanted = known[each] if slots is None else _numbers(slots, line, at + match.start(2))
            missing = [slot for slot in wanted if slot not in known[each]]
            if missing:
                raise line.error(
                    at + match.start(2),
                    f"{each} has no slot {missing[0]}: its slots are {_shown(known[each])}",
                    "slots count from 0",
                )
            chosen.setdefault(each, set()).update(wanted)
        at += len(word) + 1
    return {name: tuple(sorted(slots)) for name, slots in chosen.items()}


def _numbers(text: str, line: Line, column: int) -> tuple[int, ...]:
    pieces = text.split(",")
    if not all(re.fullmatch("[0-9]{1,6}", piece) for piece in pieces):
        raise line.error(column, f"slots {shorten(text)!r}", "write numbers and commas, as in h2:0,2")
    return tuple(map(int, pieces))


def _shown(slots: tuple[int, ...]) -> str:
    return f"0-{slots[-1]}" if slots == tuple(range(len(slots))) and len(slots) > 1 else ", ".join(map(str, slots))
