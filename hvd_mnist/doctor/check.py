"""A check is a value: what was looked at, how it is, what was found, and what to type where it is not right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK, WARNING, FAIL = STATES = ("ok", "warning", "fail")
"""ok: nothing to do. warning: training works, worse than it could, or may fail later. fail: training cannot work."""


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report.

    Attributes:
        name: what was looked at; the same words in every run, so that scripts can find it.
        state: ok, warning or fail.
        found: what was found.
        do: what to type or change; None where nothing is to be done.
        host: whose it is; empty for a check of this machine alone or of all hosts together.
    """

    name: str
    state: str
    found: str
    do: str | None = None
    host: str = ""


def failed(checks: Iterable[Check]) -> list[Check]:
    """Those that mean that training cannot work."""
    return [check for check in checks if check.state == FAIL]
