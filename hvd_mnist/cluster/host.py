"""One host, a list of hosts, and the grammar of one word ``[user@]name[:slots]``.

The word is the same in ``-H``, in MPICH and Intel host files and in DeepSpeed filters; a name may hold ranges
(``gpu[01-04]``), an IPv6 address stands in brackets (``[fd00::1]:4``).
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from hvd_mnist.cluster import ranges
from hvd_mnist.errors import HostFileError, HvdMnistError, printable

MAX_SLOTS = 1024
MAX_MESSAGE = 400  # characters
"""Most slots that one host may have: more is a port number or a slip of the finger."""

DEFAULT_SLOTS = 1
"""Slots of a host for which none are given. Open MPI host files count cores instead; one GPU is the safe reading."""


@dataclass(frozen=True)
class Host:
    """A machine that ranks can run on.

    Attributes:
        name: host name or address, IPv6 without brackets.
        slots: how many ranks it may hold; None where the text gave no number (see ``DEFAULT_SLOTS``).
        max_slots: Open MPI's bound for oversubscription, or None.
        user: ssh user, or None.
        port: ssh port, or None.
        source, line: where it was read.
        slot_ids: which slots (GPU indices) are kept after a filter, or None for all: 0 .. slots - 1.
    """

    name: str
    slots: int | None
    max_slots: int | None = None
    user: str | None = None
    port: int | None = None
    source: str = ""
    line: int = 0
    slot_ids: tuple[int, ...] | None = None

    @property
    def slot_count(self) -> int:
        """Slots with the default applied."""
        return DEFAULT_SLOTS if self.slots is None else self.slots

    @property
    def address(self) -> str:
        """``[user@]name``, with brackets around IPv6."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{self.user}@{name}" if self.user else name

    def __str__(self) -> str:
        return self.address if self.slots is None else f"{self.address}:{self.slots}"


@dataclass(frozen=True)
class HostList:
    """Hosts in order, each name once.

    Attributes:
        hosts: the hosts.
        dialect: the grammar that was read: openmpi, mpich, horovodrun, deepspeed, slurm, plain or mixed.
        notes: rules that were applied where dialects differ, for people to read.
    """

    hosts: tuple[Host, ...]
    dialect: str
    notes: tuple[str, ...] = ()

    @property
    def total_slots(self) -> int:
        return sum(host.slot_count for host in self.hosts)

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)

    def __str__(self) -> str:
        return ",".join(map(str, self.hosts))


@dataclass(frozen=True)
class Line:
    """One line of text with its place, so that errors can point into it. Columns here count from 0."""

    text: str
    source: str
    number: int = 1

    def error(self, column: int, message: str, hint: str | None = None) -> HostFileError:
        # What was found may be a line without end, or hold what moves a cursor.
        message, hint = printable(message, MAX_MESSAGE), hint and printable(hint, MAX_MESSAGE)
        return HostFileError(message, hint, source=self.source, line=self.number, column=column + 1, text=self.text)


def caret(error: HostFileError) -> str:
    """The line of an error and, under it, a ``^`` at its column; empty where the error has no text."""
    if not error.text:
        return ""
    start = max(0, error.column - 61)
    before, shown = error.text[start : error.column - 1], error.text[start : start + 110]
    pad = "".join(
        "\t" if char == "\t" else "  " if unicodedata.east_asian_width(char) in "WF" else " " for char in before
    )
    return "".join(char if char.isprintable() or char == "\t" else "?" for char in shown) + f"\n{pad}^"


_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_FOREIGN = re.compile(r"[^A-Za-z0-9_.\-@:\[\],%]")


def parse_word(word: str, line: Line, column: int) -> list[Host]:
    """Hosts that one word names: several where it holds a range.

    Args:
        word: ``[user@]name[:slots]``; its first character stands at ``column`` (from 0) of ``line``.

    Raises:
        HostFileError: the word is not of that form.
    """
    foreign = _FOREIGN.search(word)
    if foreign:
        raise _foreign_character(word, foreign.start(), line, column)
    user, at, rest = word.rpartition("@")
    start = column + len(user) + len(at)
    if at and not _USER.fullmatch(user):
        raise line.error(column, f"{user!r} is not a user name", "write user@host:slots, as in alice@h1:4")
    if not rest:
        raise line.error(start, "no host name", "write host:slots, as in h1:4")
    name, slots = _split_slots(rest, line, start)
    return [
        Host(each, slots, user=user or None, source=line.source, line=line.number) for each in _names(name, line, start)
    ]


def _split_slots(rest: str, line: Line, start: int) -> tuple[str, int | None]:
    if rest.startswith("[") and ":" in rest.partition("]")[0]:
        name, bracket, after = rest.partition("]")
        if not bracket:
            raise line.error(start, "'[' without ']'", "write [fd00::1]:4")
        if after and not after.startswith(":"):
            raise line.error(start + len(name) + 1, f"{after!r} after ']'", f"write {name}]:4")
        name, number = name + "]", after[1:] if after else None
    else:
        parts = [part for _, part in _split_outside_brackets(rest, ":")]
        if len(parts) > 2:
            hint = "write host:slots, as in h1:4"
            if is_ipv6(rest) or is_ipv6(rest.rpartition(":")[0]):
                hint = f"an IPv6 address stands in brackets: [{rest}] or [{rest.rpartition(':')[0]}]:4"
            raise line.error(start + len(parts[0]) + 1, f"more than one ':' in {rest!r}", hint)
        name, number = parts[0], parts[1] if len(parts) == 2 else None
    if not name:
        raise line.error(start, "no host name before ':'", "write host:slots, as in h1:4")
    if number is None:
        return name, None
    return name, slot_number(number, line, start + len(name) + 1, f"write {name}:4")


def slot_number(text: str, line: Line, column: int, hint: str, what: str = "slots") -> int:
    """A count of slots from 1 to MAX_SLOTS, or an error at its column."""
    found = f"{what}: {text!r}" if text else f"{what}: nothing"
    if not text.isascii() or not text.isdigit():
        raise line.error(column, f"{found}, where a whole number from 1 to {MAX_SLOTS} is expected", hint)
    digits = text.lstrip("0")
    if not digits:
        raise line.error(column, f"{found}: a host with no slot runs nothing", "leave the host out, or give it 1")
    if len(digits) > 4 or int(digits) > MAX_SLOTS:
        raise line.error(
            column,
            f"{what}: {shorten(text)} is more than {MAX_SLOTS}, the most that one host may have",
            f"{hint} (a port is not given here: launch --ssh-port)",
        )
    return int(digits)


def _names(name: str, line: Line, start: int) -> list[str]:
    if name.startswith("[") and ":" in name:
        return [_ipv6(name[1:-1], line, start + 1)]
    if "[" in name or "]" in name:
        return [check_name(each, line, start) for each in ranges.expand(name, line, start)]
    return [check_name(name, line, start)]


def check_name(name: str, line: Line, column: int) -> str:
    """The name itself, or an error: it could not be a host, or ssh would take it for an option."""
    if not _NAME.fullmatch(name) or ".." in name or len(name) > 253:
        raise line.error(
            column,
            f"{shorten(name)!r} is not a host name",
            "a name holds letters, digits, '-', '_' and '.', and starts and ends with a letter or digit",
        )
    if name.isdigit():
        raise line.error(column, f"a host name is expected, found the number {shorten(name)}", "write host:slots")
    if re.fullmatch(r"[0-9.]+", name):
        try:
            ipaddress.IPv4Address(name)
        except ValueError:
            raise line.error(
                column, f"{name!r} is not an IPv4 address", "write four numbers from 0 to 255, as in 10.0.0.1"
            ) from None
    return name


def _ipv6(text: str, line: Line, column: int) -> str:
    if not is_ipv6(text):
        raise line.error(column, f"{text!r} is not an IPv6 address", "write [fd00::1]:4")
    return text


def is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _foreign_character(word: str, at: int, line: Line, column: int) -> HostFileError:
    char = word[at]
    plain = unicodedata.normalize("NFKC", char)
    twin = {"、": ",", "。": ".", "–": "-", "—": "-"}.get(char, plain)
    shown = repr(char) if char.isascii() else f"{char!r} (U+{ord(char):04X}, {unicodedata.name(char, 'no name')})"
    if char in "=*/(;|":
        hint = "write host:slots, and commas between hosts: h1:4,h2:4"
    elif not char.isascii() and twin.isascii() and twin.isprintable() and twin:
        hint = f"type the plain {twin!r}"
    else:
        hint = "write host:slots, as in h1:4"
    return line.error(column + at, f"{shown} cannot stand in a host name", hint)


def shorten(text: str) -> str:
    """At most 40 characters of a text, for a message."""
    return text if len(text) <= 40 else text[:37] + "..."


def looks_like_hosts(word: str) -> bool:
    """True for a word such as ``b:4``, ``,b:4,c:4`` or ``u@gpu[1-2]:4``: hosts that a space cut off from ``-H``."""
    word = word.strip(",")
    line = Line(word, "")
    try:
        hosts = [host for column, text in split_words(line) for host in parse_word(text, line, column)]
    except HvdMnistError:
        return False
    return bool(hosts) and all(host.slots is not None for host in hosts)


def _split_outside_brackets(text: str, separator: str, start: int = 0) -> list[tuple[int, str]]:
    """(column, piece) of a text cut at a separator that stands outside ``[...]``. One pass over the text."""
    pieces, inside, begin = [], False, start
    for at in range(start, len(text)):
        char = text[at]
        if char == separator and not inside:
            pieces.append((begin, text[begin:at]))
            begin = at + 1
        inside = char == "[" or inside and char != "]"
    return [*pieces, (begin, text[begin:])]


def split_words(line: Line, start: int = 0) -> list[tuple[int, str]]:
    """(column, word) for words joined by commas or spaces; commas inside brackets belong to a range.

    Raises:
        HostFileError: nothing stands between two commas. One comma at the end is allowed: schedulers write it.
    """
    words: list[tuple[int, str]] = []
    pieces = _split_outside_brackets(line.text, ",", start)
    for index, (at, piece) in enumerate(pieces):
        found = [(at + match.start(), match.group()) for match in re.finditer(r"\S+", piece)]
        if not found and index < len(pieces) - 1:
            raise line.error(at, "nothing between two commas", "was a variable empty? write h1:4,h2:4")
        words += found
    return words
