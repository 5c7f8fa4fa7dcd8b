"""One thing that people see and want explained."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A message or an exit status.

    Attributes:
        shown: the text itself, as it is printed ("orted: command not found"), or "exit status 201".
        said_by: whose text it is: hvd_mnist, Horovod, Open MPI, NCCL, ssh, TensorFlow, ...
        means: what has happened, in a sentence or two.
        check: how to see whether that is so.
        do: what to type, or to change.
        pattern: regular expression that finds the message in a line; "" for an exit status.
        status: the exit status, or None for a message.
    """

    shown: str
    said_by: str
    means: str
    check: str
    do: str
    pattern: str = ""
    status: int | None = None

    def is_in(self, text: str) -> bool:
        """Does ``text`` hold this message?"""
        return bool(self.pattern) and re.search(self.pattern, text) is not None
