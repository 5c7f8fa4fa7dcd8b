"""Faults on purpose: ``hvd-mnist train --allow-faults --inject kill:rank=1,step=5``. The grammar is in docs/faults.md.

A fault is text, parsed and checked before anything starts (``parse``). In the job each rank keeps its own
(``Faults``) and asks at the places where one can happen. What needs a model or a data set is acted out in
``hvd_mnist/injection.py``; this module needs the standard library alone.
"""

from __future__ import annotations

import difflib
import errno
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_mnist.errors import DataError, UsageError

KINDS = {
    # kind: what it does
    "raise": "raises an error that nobody expects",
    "exit": "leaves by sys.exit(CODE)",
    "kill": "ends by SIGKILL",
    "segv": "ends by SIGSEGV",
    "hang": "waits for ever",
    "slow": "waits SECONDS, each time from then on",
    "nan": "has a batch with a value that is not a number",
    "diverge": "changes one weight of its replica",
    "disk-full": "finds no space left while it saves",
    "skip-collective": "leaves out one collective",
    "data-error": "cannot read its data",
}
MOMENTS = ("start", "step", "save", "evaluate")  # step=0, step=S, at=save, at=evaluate
WITHOUT_SENSE = {
    ("nan", "start"): "no batch is read before the first step",
    ("nan", "save"): "a save computes nothing",
    ("data-error", "save"): "a save reads no data",
    ("disk-full", "start"): "only a save needs the disk",
    ("disk-full", "step"): "only a save needs the disk",
    ("disk-full", "evaluate"): "only a save needs the disk",
}
_NEED_OTHERS = ("hang", "diverge", "skip-collective")
_FORM = "KIND:rank=R,step=S, as in kill:rank=1,step=5 or raise:rank=0,at=save"
_KEYS = ("rank", "step", "at", "code", "seconds")


@dataclass(frozen=True)
class Fault:
    """One fault of one rank.

    ``at`` is where: "step", "save" or "evaluate". ``step`` is when: at a step, that step (counted from 1 over the
    whole run; 0: before the first step of this job); in a save or an evaluation, the one after that step (None: the
    first of this job).
    """

    text: str
    kind: str
    rank: int
    at: str
    step: int | None
    code: int = 1
    seconds: float = 0.0


def parse(text: str) -> Fault:
    """Read one ``KIND:rank=R,step=S``.

    Raises:
        UsageError: it is not of that form; the near name or the right form is in the hint.
    """

    def wrong(what: str, hint: str = _FORM) -> UsageError:
        return UsageError(f"--inject {text}: {what}", hint)

    kind, colon, rest = text.strip().partition(":")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, 1)
        expected = f"no fault '{kind}'; expected {', '.join(KINDS)}"
        raise wrong(expected, f"--inject {near[0]}{colon}{rest}" if near else _FORM)
    found: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if key not in _KEYS or not equals or not value:
            near = difflib.get_close_matches(key, _KEYS, 1)
            hint = f"--inject {text.replace(item, f'{near[0]}={value or 1}', 1)}" if near else _FORM
            raise wrong(f"found '{item}'; expected {', '.join(f'{k}=' for k in _KEYS)}", hint)
        if key in found:
            raise wrong(f"{key}= is there twice", f"one {key}=")
        found[key] = value

    def number(key: str, convert=int, most: float | None = None):
        try:
            value = convert(found[key])
            if value >= 0 and (most is None or value <= most) and value < float("inf"):
                return value
        except ValueError:
            pass
        raise wrong(f"found {key}={found[key]}; expected a number {f'from 0 to {most}' if most else 'not below 0'}")

    if "rank" not in found:
        raise wrong("no rank=")
    for key, owner in (("code", "exit"), ("seconds", "slow")):
        if key in found and kind != owner:
            raise wrong(f"{key}= belongs to {owner}", f"leave {key}= out")
    if kind == "slow" and "seconds" not in found:
        raise wrong("no seconds=", f"--inject {text},seconds=0.2")
    at = found.get("at", "save" if kind == "disk-full" else "step")
    if at not in ("step", "save", "evaluate"):
        raise wrong(f"found at={at}; expected at=save or at=evaluate")
    if at == "step" and "step" not in found:
        raise wrong("no time; expected step=S, at=save or at=evaluate")
    step = number("step") if "step" in found else None
    if at != "step" and step == 0:
        raise wrong(f"no {'save' if at == 'save' else 'evaluation'} follows step 0", f"--inject {text} without step=0")
    reason = WITHOUT_SENSE.get((kind, "start" if at == "step" and step == 0 else at))
    if reason:
        raise wrong(f"{reason}, so {kind} cannot happen there", "see docs/faults.md")
    rank = number("rank")
    if kind == "disk-full" and rank:
        raise wrong("rank 0 alone writes checkpoints", f"--inject {text.replace(found['rank'], '0', 1)}")
    code = number("code", most=255) if "code" in found else 1
    seconds = number("seconds", float) if "seconds" in found else 0.0
    return Fault(text.strip(), kind, rank, at, step, code, seconds)


class Faults:
    """The faults of one rank, each of which happens once (``slow`` goes on).

    Args:
        texts: all that were asked for, of all ranks.
        rank, size, host: this rank, its job, its host.

    Raises:
        UsageError: a fault of a rank that the job does not have, or that one rank alone could not notice.
    """

    def __init__(self, texts: Sequence[str], rank: int, size: int, host: str):
        faults = [parse(text) for text in texts]
        for fault in faults:
            if fault.rank >= size:
                raise UsageError(f"--inject {fault.text}: the job has ranks 0 to {size - 1}", "another rank=")
            if size == 1 and fault.kind in _NEED_OTHERS:
                raise UsageError(f"--inject {fault.text}: other ranks notice {fault.kind}, and there are none", "-np 2")
        self._mine = [fault for fault in faults if fault.rank == rank]
        self._who = f"rank {rank} on {host}"
        self._happened: set[Fault] = set()

    def __bool__(self) -> bool:
        return bool(self._mine)

    def has(self, kind: str, at: str) -> bool:
        """Is there such a fault, at whatever step?"""
        return any(fault.kind == kind and fault.at == at for fault in self._mine)

    def due(self, kind: str, at: str, step: int) -> bool:
        """Does ``kind`` happen here and now? Then it is said, and the caller acts it out."""
        return any(self._begin(fault, at, step) for fault in self._mine if fault.kind == kind)

    def reach(self, at: str, step: int) -> None:
        """This rank stands at ``at`` of ``step``: what ends it or holds it up here, does."""
        for fault in self._mine:
            if fault.kind in _ACTS and self._begin(fault, at, step):
                _ACTS[fault.kind](fault)

    def read_data(self, at: str, step: int) -> None:
        """This rank reads data. Raises DataError where it is to fail."""
        for fault in self._mine:
            if fault.kind == "data-error" and self._begin(fault, at, step):
                raise DataError(f"injected by --inject {fault.text}")

    def never_happened(self) -> list[str]:
        """The texts of those for which the job had no such step, save or evaluation."""
        return [fault.text for fault in self._mine if fault not in self._happened]

    def _begin(self, fault: Fault, at: str, step: int) -> bool:
        again = fault in self._happened
        if fault.at != at or (again and fault.kind != "slow"):
            return False
        if fault.kind == "slow":
            due = step >= (fault.step or 0)
        else:
            due = fault.step is None or step == fault.step
        if due and not again:
            self._happened.add(fault)
            where = {"step": f"in step {step}" if step else "before the first step"}.get(
                at, f"in {at} after step {step}"
            )
            print(f"hvd-mnist: injecting {fault.kind} into {self._who}, {where}", file=sys.stderr, flush=True)
        return due


def _raise(fault: Fault):
    raise RuntimeError(f"injected by --inject {fault.text}")


def _exit(fault: Fault):
    sys.exit(fault.code)


def _signal(fault: Fault):
    os.kill(os.getpid(), signal.SIGKILL if fault.kind == "kill" else signal.SIGSEGV)
    time.sleep(10)  # the signal is delivered to some thread; this one must not go on


def _hang(fault: Fault):
    while True:
        time.sleep(3600)


def _slow(fault: Fault):
    time.sleep(fault.seconds)


def _disk_full(fault: Fault):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_ACTS = {
    "raise": _raise,
    "exit": _exit,
    "kill": _signal,
    "segv": _signal,
    "hang": _hang,
    "slow": _slow,
    "disk-full": _disk_full,
}
