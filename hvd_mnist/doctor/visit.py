"""Visits this machine, or all hosts at once, and puts what was found into one report."""

from __future__ import annotations

from hvd_mnist.cluster.host import Host
from hvd_mnist.doctor import exchange
from hvd_mnist.doctor.gather import gather
from hvd_mnist.doctor.local import checks_of
from hvd_mnist.doctor.report import HostEntry, Report
from hvd_mnist.launch.job import Ssh


def visit_here(ranks: int, limit: float, run: bool) -> Report:
    """This machine alone, with ``ranks`` ranks on it."""
    facts = gather(limit=limit)
    checks = checks_of(facts, ranks)
    if run:
        checks.append(exchange.judged("allreduce", exchange.run([Host("localhost", 2)], 2, Ssh(), limit), limit))
    return Report(tuple(checks), (HostEntry(facts.hostname, ranks, ranks, facts),))
