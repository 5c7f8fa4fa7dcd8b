"""Facts of several hosts become checks of them together. Arithmetic and words only."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from hvd_mnist.doctor.check import FAIL, OK, WARNING, Check
from hvd_mnist.doctor.facts import HostFacts
from hvd_mnist.doctor.machine import visible_gpus
from hvd_mnist.doctor.report import Difference
from hvd_mnist.doctor.software import mpirun_name
from hvd_mnist.launch.network import INSIDE

CLOCK_LIMIT = 2.0
"""Seconds of difference from which logs of two hosts cannot be read together any more."""

# What must be the same everywhere: name, from facts, and whether a difference makes training impossible or wrong.
COMPARED = {
    "python": (lambda facts: ".".join(facts.python.split(".")[:2]), FAIL),
    "tensorflow": (lambda facts: facts.tensorflow, FAIL),
    "keras": (lambda facts: facts.keras, FAIL),
    "horovod": (lambda facts: facts.horovod, FAIL),
    "horovod built for": (lambda facts: facts.horovod_built_for, FAIL),
    "hvd_mnist": (lambda facts: facts.hvd_mnist, FAIL),
    "hvd_mnist code": (lambda facts: facts.code, FAIL),
    "python patch": (lambda facts: facts.python, WARNING),
    "mpirun": (mpirun_name, WARNING),
    "nccl": (lambda facts: facts.nccl, WARNING),
    "driver": (lambda facts: facts.driver, WARNING),
    "gpus": (lambda facts: ", ".join(sorted({gpu["name"] for gpu in facts.gpus})) or "none", WARNING),
}


def differences(facts: Mapping[str, HostFacts]) -> list[Difference]:
    """What is compared and not the same on all hosts."""
    found = []
    for name, (look, _) in COMPARED.items():
        values = {host: str(look(its) or "none") for host, its in facts.items()}
        if len(set(values.values())) > 1:
            found.append(Difference(name, values))
    return found


def same_everywhere(facts: Mapping[str, HostFacts]) -> list[Check]:
    """Checks "versions" and "code" of all hosts together."""
    if len(facts) < 2:
        return []
    apart = {difference.fact for difference in differences(facts)}
    code = sorted(apart & {"hvd_mnist", "hvd_mnist code"})
    versions = [name for name in COMPARED if name in apart and name not in code]
    fatal = [name for name in versions if COMPARED[name][1] == FAIL]
    checks = []
    if versions:
        found = f"differ between hosts: {', '.join(versions)}"
        remedy = "install from the same requirements/*.txt on all hosts, then hvd-mnist build-horovod on each"
        checks.append(Check("same versions", FAIL if fatal else WARNING, found, remedy))
    else:
        checks.append(Check("same versions", OK, f"on {len(facts)} hosts"))
    if code:
        checks.append(
            Check("same code", FAIL, f"differ between hosts: {', '.join(code)}", "copy the same hvd_mnist to all hosts")
        )
    else:
        checks.append(Check("same code", OK, f"{next(iter(facts.values())).code} on {len(facts)} hosts"))
    return checks


def slots_check(host: str, slots: int, ranks: int, facts: HostFacts) -> Check:
    """Slots of a host against its GPUs."""
    gpus = visible_gpus(facts)
    shown = f"{slots} slot{'s' * (slots != 1)}, {ranks} rank{'s' * (ranks != 1)}, {gpus} GPU{'s' * (gpus != 1)}"
    if gpus and slots > gpus and facts.tensorflow_cuda is not False:
        state = FAIL if ranks > gpus else WARNING
        return Check("slots", state, f"{shown}: more slots than GPUs", f"write {host}:{gpus}", host)
    if gpus and ranks < gpus and facts.tensorflow_cuda:
        return Check("slots", WARNING, f"{shown}: {gpus - ranks} GPUs stay idle", f"write {host}:{gpus}", host)
    return Check("slots", OK, shown, None, host)


def clock_check(host: str, offset: float, uncertainty: float) -> Check:
    """A host's clock against this machine's; both in seconds."""
    if abs(offset) < max(uncertainty, 0.001):
        shown = f"within {max(uncertainty, 0.001):.3f} s of this machine's"
    else:
        side = "ahead of" if offset > 0 else "behind"
        shown = f"{abs(offset):.3f} s {side} this machine's, give or take {uncertainty:.3f}"
    if abs(offset) - uncertainty > CLOCK_LIMIT:
        return Check("clock", WARNING, shown, "set the clocks by NTP: timedatectl set-ntp true", host)
    return Check("clock", OK, shown, None, host)


@dataclass(frozen=True)
class CommonNetwork:
    """A network in which every host has an address of its own: host -> (interface, address)."""

    network: str
    places: dict[str, tuple[str, str]]

    def __str__(self) -> str:
        names = sorted({interface for interface, _ in self.places.values()})
        return f"{self.network} ({', '.join(names)})"


def common_networks(facts: Mapping[str, HostFacts]) -> list[CommonNetwork]:
    """Networks that all hosts share, without loopback and those of container bridges."""
    by_network: dict[str, dict[str, tuple[str, str]]] = {}
    for host, its in facts.items():
        for each in its.interfaces:
            if INSIDE.fullmatch(each["name"]) or ipaddress.IPv4Address(each["address"]).is_loopback:
                continue
            by_network.setdefault(each["network"], {}).setdefault(host, (each["name"], each["address"]))
    return [
        CommonNetwork(network, places)
        for network, places in by_network.items()
        # The same address on two hosts: a bridge inside each of them under an unusual name.
        if len(places) == len(facts) and len({address for _, address in places.values()}) == len(facts)
    ]


def subnet_check(networks: list[CommonNetwork], facts: Mapping[str, HostFacts]) -> Check:
    if networks:
        return Check("common network", OK, "; ".join(map(str, networks)))
    if not all(its.interfaces for its in facts.values()):
        return Check(
            "common network", WARNING, "not known: interfaces of a host could not be listed", "pip install psutil"
        )
    shown = "; ".join(
        f"{host}: "
        + (", ".join(f"{each['name']} {each['network']}" for each in its.interfaces if each["name"] != "lo") or "none")
        for host, its in facts.items()
    )
    remedy = "if they are routed, name the interface: --network-interface NAME"
    return Check("common network", WARNING, f"no IPv4 network that all hosts share ({shown})", remedy)


def port_checks(reached: Mapping[str, Mapping[str, Mapping[str, str | None]]]) -> list[Check]:
    """One check for each host that looked at others.

    Args:
        reached: network -> host that connected -> host that it connected to -> None, or why it did not get there.
    """
    whole = [network for network, pairs in reached.items() if not any(any(to.values()) for to in pairs.values())]
    checks = []
    for host in dict.fromkeys(host for pairs in reached.values() for host in pairs):
        bad = []
        for network, pairs in reached.items():
            bad += [f"{other} over {network}: {why}" for other, why in pairs.get(host, {}).items() if why]
        others = list(dict.fromkeys(other for pairs in reached.values() for other in pairs.get(host, {})))
        if not bad:
            checks.append(Check("ports", OK, f"reaches {', '.join(others)}", None, host))
        elif whole:
            checks.append(
                Check("ports", WARNING, "; ".join(bad), f"use the interface of {whole[0]}: --network-interface", host)
            )
        else:
            remedy = "let hosts reach each other on all TCP ports from 1024 (Horovod's are chosen by the system)"
            checks.append(Check("ports", FAIL, "; ".join(bad), remedy, host))
    return checks
