"""Tasks of srun meet without MPI: rank 0 hosts Horovod's rendezvous, all others find it, and Gloo does the rest.

The address is that of the step's first node. The port follows from the numbers of job and step, so nobody has to
tell it; where it is taken, rank 0 goes on to the next of PORTS_TRIED, and the others ask each of them which step
it serves. All of it happens before hvd.init(), which reads the HOROVOD_* variables that are set here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from hvd_mnist.cluster.hostfile import parse_slurm
from hvd_mnist.cluster.identity import Identity
from hvd_mnist.errors import WorldError

FIRST_PORT, PORTS, PORTS_TRIED = 20000, 10000, 8
LIMIT_SECONDS = 120  # for rank 0's Python to start on a busy node


@dataclass(frozen=True)
class Meeting:
    """Where the tasks of one step meet, and this task's place among the nodes."""

    step: str
    nodes: tuple[str, ...]
    tasks: tuple[int, ...]  # of each node
    node: int  # index of this task's node
    ports: tuple[int, ...]

    def cross(self, local_rank: int) -> tuple[int, int]:
        """Horovod's cross rank and size: this node among the nodes that have this local rank."""
        having = [index for index, count in enumerate(self.tasks) if count > local_rank]
        return having.index(self.node), len(having)


def needed(environ: Mapping[str, str], identity: Identity) -> bool:
    """True for a task of a step of several, unless it has met already or the user wants MPI."""
    return (
        identity.launcher == "slurm"
        and identity.size > 1
        and "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in environ
        and environ.get("HOROVOD_CONTROLLER", "gloo") == "gloo"
    )


def meeting_of(environ: Mapping[str, str]) -> Meeting:
    """From the variables of a task.

    Raises:
        WorldError: one of them is missing.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID")
    missing = [name for name in names if name not in environ]
    if missing:
        raise WorldError(f"a task of srun without {', '.join(missing)}", "let srun's variables through (--export=ALL)")
    job, step, nodes, tasks, node = (environ[name] for name in names)
    hosts = parse_slurm(nodes, tasks)
    start = (int(job) * 16 + int(step)) % PORTS
    return Meeting(
        step=f"{job}.{step}",
        nodes=tuple(host.name for host in hosts),
        tasks=tuple(host.slot_count for host in hosts),
        node=int(node),
        ports=tuple(FIRST_PORT + (start + attempt) % PORTS for attempt in range(PORTS_TRIED)),
    )


def meet(environ: Mapping[str, str], identity: Identity, limit: float = LIMIT_SECONDS) -> dict[str, str]:
    """Host the rendezvous (rank 0) or find it: the HOROVOD_* variables for hvd.init().

    Raises:
        WorldError: every port is taken, or nothing answers for this step within ``limit`` seconds.
    """
    here = meeting_of(environ)
    me = f"rank {identity.rank} on {identity.host}"
    try:
        address = socket.gethostbyname(here.nodes[0])
    except OSError as error:
        raise WorldError(
            f"{me}: the step's first node {here.nodes[0]} has no address: {error}",
            "the nodes' names must be in DNS or /etc/hosts on all of them",
        ) from None
    port = _host(here, address, me) if identity.rank == 0 else _find(here, address, me, limit)
    cross_rank, cross_size = here.cross(identity.local_rank)
    return {
        "HOROVOD_RANK": str(identity.rank),
        "HOROVOD_SIZE": str(identity.size),
        "HOROVOD_LOCAL_RANK": str(identity.local_rank),
        "HOROVOD_LOCAL_SIZE": str(identity.local_size),
        "HOROVOD_CROSS_RANK": str(cross_rank),
        "HOROVOD_CROSS_SIZE": str(cross_size),
        "HOROVOD_HOSTNAME": here.nodes[here.node],
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": environ.get("HOROVOD_GLOO_IFACE") or interface_towards(address),
        # TensorFlow's import takes longer on one rank than on another.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", str(LIMIT_SECONDS)),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def _host(here: Meeting, address: str, me: str) -> int:
    """Serve Horovod's rendezvous on the first free port until this process ends; the port.

    It asks nobody who he is, so it listens on the address that the others are told alone. Where this node's own name
    means loopback (127.0.1.1 in Debian's /etc/hosts), other nodes know it by another address: then on all.
    """
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    everywhere = len(here.nodes) > 1 and ipaddress.ip_address(address).is_loopback
    for port in here.ports:
        with contextlib.suppress(OSError):
            server = RendezvousHTTPServer(("" if everywhere else address, port), RendezvousHandler, 0)
            break
    else:
        raise WorldError(
            f"{me}: ports {here.ports[0]} to {here.ports[-1]} are all taken, and the tasks of step {here.step} meet"
            " on one of them",
            "submit the job again: another number gives other ports",
        )
    # The server counts how many ranks have finished each scope; it looks at sizes alone.
    plan = [
        SlotInfo(node, 0, local_rank, 0, sum(here.tasks), count, sum(other > local_rank for other in here.tasks))
        for node, count in zip(here.nodes, here.tasks, strict=True)
        for local_rank in range(count)
    ]
    server.init(plan)
    server.cache["step"] = {"id": here.step.encode()}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return port


def _find(here: Meeting, address: str, me: str, limit: float) -> int:
    """The port on which rank 0 serves this step, waited for."""
    until = time.monotonic() + limit
    # Nodes are asked directly, never through a proxy of the environment.
    ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    while True:
        said = []
        for port in here.ports:
            try:
                with ask(f"http://{address}:{port}/step/id", timeout=5) as answer:
                    serves = answer.read(64).decode(errors="replace")
                if serves == here.step:
                    return port
                said.append(f"{port} serves step {serves}")
            except urllib.error.HTTPError as error:
                said.append(f"{port} is another program's ({error.code})")
            except ConnectionRefusedError:
                pass
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", error)
                if not isinstance(reason, ConnectionRefusedError):
                    said.append(f"{port}: {reason}")
            if time.monotonic() > until:
                found = "; ".join(dict.fromkeys(said)) or "nothing listens there"
                raise WorldError(
                    f"{me}: no rendezvous of step {here.step} at {here.nodes[0]} ({address}), ports {here.ports[0]} to"
                    f" {here.ports[-1]}, in {limit:g} s: {found}",
                    "did rank 0 fail first? else: may nodes reach each other on these ports?",
                )
        time.sleep(0.1)


def interface_towards(address: str) -> str:
    """The interface over which this host would talk to an IPv4 address; no packet is sent."""
    import psutil

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        own = ipaddress.IPv4Address(probe.getsockname()[0])
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and ipaddress.IPv4Address(each.address) == own for each in addresses):
            return name
    raise WorldError(f"no interface of {os.uname().nodename} has the address {own}", "set HOROVOD_GLOO_IFACE")
