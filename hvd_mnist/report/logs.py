"""What the logs of a run say that a person should know; what several ranks say, once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from hvd_mnist.errors import printable
from hvd_mnist.explain.entry import Entry
from hvd_mnist.explain.lookup import recognize

TAIL_BYTES = 1 << 20  # of each log
MOST_LINES = 40
MOST_LOGS = 256
_WORTH = re.compile(
    r"\b(\w*error|\w*warning|warn|traceback|exception|failed)\b"
    r"|^Timeout \(|goes on after|straggler: |waited for other ranks|told to stop",
    re.IGNORECASE,
)
_TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")


@dataclass
class Notice:
    """A line, the logs in which it stands, and what is known about it. Of lines of one meaning it is the first."""

    text: str
    entry: Entry | None
    logs: list[str] = field(default_factory=list)
    times: int = 0


def notices(folder: Path) -> list[Notice]:
    """Of all ``logs/*.log``, in the order in which they are first met; at most MOST_LINES."""
    found: dict[Entry | str, Notice] = {}
    for path in sorted(folder.glob("*.log"), key=_by_rank)[:MOST_LOGS]:
        for line in _tail(path).splitlines():
            text = _TIME.sub("", line).strip()
            entry = recognize(text)
            if entry is None and not _WORTH.search(text):
                continue
            notice = found.setdefault(entry or text, Notice(printable(text, 400), entry))
            notice.times += 1
            if path.name not in notice.logs:
                notice.logs.append(path.name)
    return list(found.values())[:MOST_LINES]


def _by_rank(path: Path) -> tuple:
    number = re.search(r"\d+", path.name)
    return (int(number[0]) if number else -1, path.name)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
