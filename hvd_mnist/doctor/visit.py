"""Visits this machine, or all hosts at once, and puts what was found into one report."""

from __future__ import annotations

from hvd_mnist.doctor import exchange
from hvd_mnist.doctor.check import Check
from hvd_mnist.doctor.gather import gather
from hvd_mnist.doctor.local import checks_of
from hvd_mnist.doctor.report import HostEntry, Report


def visit_here(ranks: int, limit: float, run: bool) -> Report:
    """This machine alone, with ``ranks`` ranks on it."""
    facts = gather(limit=limit)
    checks = checks_of(facts, ranks)
    if run:
        checks.append(exchange_here(facts.horovodrun, limit))
    return Report(tuple(checks), (HostEntry(facts.hostname, ranks, ranks, facts),))


def exchange_here(horovodrun: str | None, limit: float) -> Check:
    if horovodrun is None:
        return Check("allreduce", "fail", "not run: no horovodrun here", "hvd-mnist build-horovod")
    return exchange.judged("allreduce", exchange.run(horovodrun, ["localhost"], 2, limit), limit)
