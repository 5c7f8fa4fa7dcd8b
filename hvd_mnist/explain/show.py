"""Entries for a terminal, and all of them as docs/troubleshooting.md."""

from __future__ import annotations

import textwrap

from hvd_mnist.explain.entry import Entry
from hvd_mnist.explain.launching import LAUNCHING
from hvd_mnist.explain.lookup import Found
from hvd_mnist.explain.running import RUNNING
from hvd_mnist.explain.software import SOFTWARE
from hvd_mnist.explain.statuses import STATUSES

WIDTH = 100
_PARTS = ("means", "check", "do")

_HEAD = """# Troubleshooting: what a message means, how to check, what to type

```
hvd-mnist explain 201                              an exit status
hvd-mnist explain "orted: command not found"       a message, or a few words of it
hvd-mnist launch ... 2>&1 | hvd-mnist explain -    a log: whatever is known in it
hvd-mnist explain - < RUN/logs/rank-1.log
```

All of it stands below: look for the text on your screen. Only the words that do not change count; numbers, hosts and
paths are examples. Among many lines the *first* rank that failed tells the cause; what other ranks say after it is a
consequence. Where nothing here fits: `hvd-mnist doctor`, and the log of the rank that failed first (`RUN/logs`).

This page is made by `hvd-mnist explain --markdown`; a test holds it to the table in `hvd_mnist/explain/`.
"""

_CHAPTERS = (
    ("The job does not start", LAUNCHING),
    ("The job waits, fails or is wrong", RUNNING),
    ("Packages and builds", SOFTWARE),
)


def as_text(entry: Entry, found: Found | None = None) -> str:
    """An entry as people read it on a terminal; with the place in their log where it was found."""
    lines = [_wrapped(f"{entry.shown}  ({entry.said_by})", "")]
    if found is not None:
        times = f", {found.times} times" if found.times > 1 else ""
        lines.append(_wrapped(found.text, f"  line {found.line}{times}: "))
    lines += [_wrapped(getattr(entry, part), f"  {part:<6} ") for part in _PARTS]
    return "\n".join(lines)


def _wrapped(text: str, lead: str) -> str:
    indent = " " * min(len(lead) or 2, 9)
    return textwrap.fill(
        text, WIDTH, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def as_markdown() -> str:
    """docs/troubleshooting.md."""
    parts = [_HEAD, "## Exit statuses\n", "Which of our errors has which status: [exit-codes.md](exit-codes.md).\n"]
    parts += ["| status | by | what it means | check | do |\n| --- | --- | --- | --- | --- |"]
    parts += ["| " + " | ".join(map(_cell, _row(entry))) + " |" for entry in STATUSES]
    parts.append("")
    for title, entries in _CHAPTERS:
        parts.append(f"## {title}\n")
        for entry in entries:
            parts.append(f"### `{entry.shown}`\n")
            parts.append(f"{entry.said_by}. {entry.means}\n")
            parts.append(f"- check: {entry.check}\n- do: {entry.do}\n")
    return "\n".join(parts).rstrip() + "\n"


def _row(entry: Entry) -> tuple[str, ...]:
    return f"`{entry.status}`", entry.said_by, entry.means, entry.check, entry.do


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
