"""From a number, a message or a log to what is known about it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hvd_mnist import errors
from hvd_mnist.explain.entry import Entry
from hvd_mnist.explain.launching import LAUNCHING
from hvd_mnist.explain.running import RUNNING
from hvd_mnist.explain.software import SOFTWARE
from hvd_mnist.explain.statuses import STATUSES, of_status

MESSAGES = LAUNCHING + SOFTWARE + RUNNING
MOST_CHARACTERS = 4000  # of a line that is looked at
_STATUS_IN_A_LINE = re.compile(r"\b(?:[Ee]xit(?:ed with)?|[Ee]nded with)(?: non-zero)? (?:code|status):? *(\d{1,3})\b")
_SIGNAL_IN_A_LINE = re.compile(r"\b(?:ended by|exited on|killed by) signal:? *(\d{1,2})\b")


@dataclass(frozen=True)
class Found:
    """An entry that a log holds: the first line with it (numbered from 1), and how many lines have it."""

    entry: Entry
    line: int
    text: str
    times: int = 1


def lookup(text: str) -> list[Entry]:
    """What is known about a status ("201"), an error's name ("PeerLost", "SIGKILL"), a message or a few words.

    Words are looked for in all entries where no message is recognized. [] where nothing is known.
    """
    text = text.strip()
    if re.fullmatch(r"\d{1,3}", text):
        known = of_status(int(text))
        return [known] if known else []
    if text in (names := _names()):
        return [entry for entry in [of_status(names[text])] if entry]
    found = recognize(text)
    if found is not None:
        return [found]
    words = re.findall(r"\w+", text.lower())
    return [
        entry
        for entry in STATUSES + MESSAGES
        if words and all(re.search(rf"\b{re.escape(word)}", _all_of(entry)) for word in words)
    ]


def recognize(line: str) -> Entry | None:
    """The message that a line of a log holds, or the status that it tells; None where it says nothing known."""
    line = line[:MOST_CHARACTERS]
    message = next((entry for entry in MESSAGES if entry.is_in(line)), None)
    if message is not None:
        return message
    if told := _STATUS_IN_A_LINE.search(line):
        return of_status(int(told[1])) if int(told[1]) else None
    if told := _SIGNAL_IN_A_LINE.search(line):
        return of_status(128 + int(told[1]))
    return None


def in_log(lines: Iterable[str]) -> list[Found]:
    """Each known thing that a log says, once, in the order of its first line."""
    found: dict[Entry, Found] = {}
    for number, line in enumerate(lines, 1):
        entry = recognize(line)
        if entry is None:
            continue
        if entry in found:
            found[entry] = replace(found[entry], times=found[entry].times + 1)
        else:
            found[entry] = Found(entry, number, errors.printable(line))
    return list(found.values())


def _names() -> dict[str, int]:
    import signal

    kinds: list[type[errors.HvdMnistError]] = [errors.HvdMnistError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return {each.name: 128 + each for each in signal.Signals} | {kind.__name__: kind.exit_status for kind in kinds}


def _all_of(entry: Entry) -> str:
    return f"{entry.shown} {entry.said_by} {entry.means} {entry.do}".lower()
