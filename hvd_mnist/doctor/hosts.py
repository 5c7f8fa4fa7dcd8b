"""Visits all hosts at once over ssh and puts what was found into one report."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping

from hvd_mnist.cluster.host import Host, HostList
from hvd_mnist.cluster.placement import place
from hvd_mnist.doctor import compare, exchange
from hvd_mnist.doctor.check import FAIL, OK, WARNING, Check
from hvd_mnist.doctor.facts import HostFacts, facts_from
from hvd_mnist.doctor.gather import gather
from hvd_mnist.doctor.local import checks_of, launching_checks
from hvd_mnist.doctor.report import HostEntry, Report
from hvd_mnist.doctor.session import NoAnswer, Session, at_once, is_here, open_all
from hvd_mnist.errors import LaunchError
from hvd_mnist.launch.job import Ssh

ALL_PAIRS = 16  # up to so many hosts each connects to each; of more, each to the next one
SHORT = 30.0  # seconds for an answer that needs no work


def visit_hosts(
    hosts: HostList, np: int | None, ssh: Ssh, limit: float, run: bool = False, interface: str | None = None
) -> Report:
    """Every host, at most ``limit`` seconds each, all at once; with ``run`` real sums too.

    Args:
        np: ranks of the job; None is every slot.
        interface: network interface or subnet between hosts, where the user chose one.
    """
    checks: list[Check] = []
    ranks = {host.name: host.slot_count for host in hosts}
    try:
        placement = place(hosts, np)
        ranks = dict.fromkeys(ranks, 0) | {h.name: n for h, n in zip(placement.hosts, placement.counts, strict=True)}
        checks.append(Check("ranks", OK, f"{placement.size} on {len(placement.hosts)} of {len(hosts)} hosts"))
    except LaunchError as wrong:
        checks.append(Check("ranks", FAIL, wrong.message, wrong.hint))
    here = gather(imports=False)
    if not any(is_here(host.name) for host in hosts):
        checks += launching_checks(here)
    with contextlib.ExitStack() as stack:
        deadline = time.monotonic() + limit
        sessions: dict[str, Session] = {}
        for name, found in open_all(hosts.hosts, ssh, limit).items():
            if isinstance(found, NoAnswer):
                checks.append(Check("reachable", FAIL, found.found, found.do, name))
            else:
                stack.callback(found.close)
                sessions[name] = found
        facts, silent = facts_of(sessions, deadline)
        for name, wrong in silent.items():
            checks.append(Check("reachable", FAIL, wrong.found, wrong.do, name))
            sessions.pop(name)
        for host in hosts:
            if host.name in facts:
                checks += host_checks(host, ranks[host.name], sessions[host.name], facts[host.name])
        checks += compare.same_everywhere(facts)
        networks = compare.common_networks(facts)
        if len(facts) > 1:
            checks.append(compare.subnet_check(networks, facts))
            checks += compare.port_checks(reach_each_other(sessions, networks))
        if run:
            checks += exchanges(hosts, sessions, ssh, interface, limit)
    entries = [HostEntry(h.name, h.slot_count, ranks[h.name], facts.get(h.name)) for h in hosts]
    return Report(tuple(checks), tuple(entries), tuple(compare.differences(facts)))


def facts_of(sessions: Mapping[str, Session], deadline: float) -> tuple[dict[str, HostFacts], dict[str, NoAnswer]]:
    """(facts, why there are none) of each host; what is left until the deadline is theirs."""

    def one(session: Session) -> HostFacts | NoAnswer:
        left = max(1.0, deadline - time.monotonic())
        try:
            # The child that imports TensorFlow is ended a little earlier, so that the rest is told even then.
            answer = session.ask("facts", left, folder=os.getcwd(), limit=max(1.0, left - min(10.0, left / 4)))
        except NoAnswer as wrong:
            return wrong
        return facts_from(answer)

    found = dict(zip(sessions, at_once(one, list(sessions.values())), strict=True))
    facts = {name: its for name, its in found.items() if isinstance(its, HostFacts)}
    return facts, {name: its for name, its in found.items() if isinstance(its, NoAnswer)}


def host_checks(host: Host, ranks: int, session: Session, facts: HostFacts) -> list[Check]:
    """The checks of one host that answered."""
    way = "this machine" if is_here(host.name) else "over ssh"
    checks = [Check("reachable", OK, f"{way}, as {facts.hostname}", None, host.name)]
    checks += checks_of(facts, max(1, ranks), host.name)
    checks.append(compare.slots_check(host.name, host.slot_count, ranks, facts))
    with contextlib.suppress(NoAnswer):
        checks.append(compare.clock_check(host.name, *session.clock_offset()))
    return checks


def reach_each_other(
    sessions: Mapping[str, Session], networks: list[compare.CommonNetwork]
) -> dict[str, dict[str, dict[str, str | None]]]:
    """Connect hosts to one another as Horovod would: network -> from -> to -> None, or why not."""
    names = list(sessions)
    try:
        doors = dict(zip(names, at_once(lambda name: sessions[name].ask("listen", SHORT), names), strict=True))
    except NoAnswer as wrong:
        return {"any network": {name: {"others": wrong.found} for name in names}}
    ways = {str(net): {name: address for name, (_, address) in net.places.items()} for net in networks}
    ways = ways or {"the hosts' names": {name: name for name in names}}
    asked = dict(zip(names, partners(names), strict=True))
    found: dict[str, dict[str, dict[str, str | None]]] = {}
    for network, addresses in ways.items():

        def one(name: str, addresses=addresses) -> dict[str, str | None]:
            targets = [{"address": addresses[other], **doors[other]} for other in asked[name]]
            try:
                return dict(zip(asked[name], sessions[name].ask("reach", SHORT, targets=targets), strict=True))
            except NoAnswer as wrong:
                return dict.fromkeys(asked[name], wrong.found)

        found[network] = dict(zip(names, at_once(one, names), strict=True))
    return found


def partners(names: list[str]) -> list[list[str]]:
    """For each host those that it connects to: all others, or the next one in a ring of many."""
    if len(names) <= ALL_PAIRS:
        return [[other for other in names if other != name] for name in names]
    return [[names[(index + 1) % len(names)]] for index in range(len(names))]


def exchanges(
    hosts: HostList,
    sessions: Mapping[str, Session],
    ssh: Ssh,
    interface: str | None,
    limit: float,
) -> list[Check]:
    """A real sum over two ranks of each host, then over one rank on each of them."""

    def one(name: str) -> Check:
        try:
            return exchange.judged("allreduce", sessions[name].ask("exchange", limit + 15, limit=limit), limit, name)
        except NoAnswer as wrong:
            return Check("allreduce", FAIL, wrong.found, wrong.do, name)

    checks = at_once(one, list(sessions))
    if len(hosts) < 2:
        return checks
    name = "allreduce across hosts"
    away = [host.name for host in hosts if host.name not in sessions]
    if away:
        return [*checks, Check(name, WARNING, f"not run: {', '.join(away)} cannot be reached", "mend that first")]
    result = exchange.run(hosts.hosts, 1, ssh, limit, interface)
    return [*checks, exchange.judged(name, result, limit)]
