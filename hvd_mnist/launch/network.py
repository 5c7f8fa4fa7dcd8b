"""Which network the ranks of several hosts talk over: the one on the route to the other hosts, by subnet."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hvd_mnist.errors import LaunchError
from hvd_mnist.launch.job import Route

INSIDE = re.compile(
    r"lo\d*|docker\d*|br-[0-9a-f]{12}|virbr\d+(-nic)?|cni\d*|flannel\S*|cali\S+|podman\d*|lxcbr\d+|tunl\d+"
)
"""Names of interfaces that lead to no other host: loopback, bridges of containers and virtual machines."""


@dataclass(frozen=True)
class Interface:
    """A network interface with one IPv4 address, as 10.0.0.7/24."""

    name: str
    address: str

    @property
    def subnet(self) -> str:
        return str(ipaddress.IPv4Interface(self.address).network)

    def holds(self, address: str) -> bool:
        return ipaddress.IPv4Address(address) in ipaddress.IPv4Network(self.subnet)


def interfaces() -> tuple[Interface, ...]:
    """IPv4 interfaces of this machine that are up."""
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family == socket.AF_INET and each.netmask and name in up:
                found.append(Interface(name, str(ipaddress.IPv4Interface(f"{each.address}/{each.netmask}"))))
    return tuple(found)


def resolve(names: Iterable[str], limit: float = 1.0) -> dict[str, str | None]:
    """IPv4 addresses of host names, asked all at once; None for a name without one, or no answer in ``limit`` s."""
    import threading

    found: dict[str, str | None] = dict.fromkeys(names)

    def ask(name: str) -> None:
        try:
            found[name] = socket.gethostbyname(name)
        except OSError:
            pass  # ssh may know the name from its own configuration

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
    return dict(found)


def local_names(addresses: Mapping[str, str | None], here: Iterable[Interface], hostname: str) -> frozenset[str]:
    """Which of these host names are this machine."""
    own = {str(ipaddress.IPv4Interface(each.address).ip) for each in here}
    names = set()
    for name, address in addresses.items():
        loopback = address is not None and ipaddress.IPv4Address(address).is_loopback
        if loopback or address in own or name in ("::1", hostname, hostname.partition(".")[0]):
            names.add(name)
    return frozenset(names)


def choose_route(
    others: Mapping[str, str | None], here: tuple[Interface, ...], own_address: str | None, asked: str | None
) -> Route:
    """The network to use. Pure: addresses have been asked for before.

    Args:
        others: the other hosts' names and addresses.
        here: this machine's interfaces.
        own_address: the address that this machine would send from, to the first of the others; None if unknown.
        asked: name or subnet after --network-interface.

    Raises:
        LaunchError: no such interface here, or the route leads into a container bridge.
    """
    shown = ", ".join(f"{each.name} {each.address}" for each in here)
    if asked:
        wanted = [each for each in here if asked in (each.name, each.subnet)]
        if not wanted:
            raise LaunchError(
                f"--network-interface {asked}: this machine has {shown}", "name one of these, or its subnet"
            )
        return Route(wanted[0].name, _shared(wanted[0], others), "--network-interface")
    first = next(iter(others))
    found = next((each for each in here if own_address == str(ipaddress.IPv4Interface(each.address).ip)), None)
    if found is None or INSIDE.fullmatch(found.name):
        address = others[first]
        if found:
            why = f"{first} ({address}) is reached over {found.name}, which leads to no other host"
        else:
            why = f"no route to {first} ({address})" if address else f"{first} has no IPv4 address that is known"
        raise LaunchError(f"{why}; this machine has {shown}", "check the name, or choose with --network-interface NAME")
    return Route(found.name, _shared(found, others), f"the route to {first} ({others[first]})")


def _shared(interface: Interface, others: Mapping[str, str | None]) -> str | None:
    known = [address for address in others.values() if address]
    same = known and all(interface.holds(address) for address in known)
    return interface.subnet if same else None


def own_address_towards(address: str | None) -> str | None:
    """The address that this machine would send from; no packet is sent. None where there is no route."""
    if address is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        return probe.getsockname()[0]
