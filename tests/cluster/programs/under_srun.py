"""Run a Horovod program as a task of ``srun``, without MPI: ``srun -N2 -n4 python under_srun.py PROGRAM``.

Proves the way that the product's own srun path goes: rank 0 serves Horovod's rendezvous on a port that follows
from the job's number, the others wait until it answers for *this* step, and everybody's place comes from SLURM_*.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import threading
import time
import urllib.request

import hostlist
import psutil
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

LIMIT = 60  # seconds that ranks wait for rank 0's server


def tasks_per_node(text: str) -> list[int]:
    """``"2(x3),1"`` -> [2, 2, 2, 1]."""
    counts = []
    for part in text.split(","):
        count, _, repeat = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(repeat or 1)
    return counts


def places(nodes: list[str], counts: list[int]) -> list[SlotInfo]:
    """Who is where, by rank, in Slurm's block distribution (its default)."""
    found: list[SlotInfo] = []
    for node, count in zip(nodes, counts, strict=True):
        for local_rank in range(count):
            sharing = [name for name, other in zip(nodes, counts, strict=True) if other > local_rank]
            rank, cross_rank = len(found), sharing.index(node)
            found.append(SlotInfo(node, rank, local_rank, cross_rank, sum(counts), count, len(sharing)))
    return found


def interface_towards(address: str, port: int) -> str:
    """The interface whose address this host would use to talk to ``address``; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))
        own = probe.getsockname()[0]
    return next(name for name, all_of in psutil.net_if_addrs().items() if any(a.address == own for a in all_of))


environ = os.environ
step = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
nodes = hostlist.expand_hostlist(environ["SLURM_STEP_NODELIST"])
plan = places(nodes, tasks_per_node(environ["SLURM_STEP_TASKS_PER_NODE"]))
me = plan[int(environ["SLURM_PROCID"])]
assert (me.hostname, me.local_rank) == (environ["SLURMD_NODENAME"], int(environ["SLURM_LOCALID"])), "not by blocks"

address = socket.gethostbyname(nodes[0])
port = 20000 + (int(environ["SLURM_JOB_ID"]) * 16 + int(environ["SLURM_STEP_ID"])) % 10000
if me.rank == 0:
    server = RendezvousHTTPServer(("", port), RendezvousHandler, 0)
    server.init(plan)
    server.cache["step"] = {"id": step.encode()}
    threading.Thread(target=server.serve_forever, daemon=True).start()

until = time.monotonic() + LIMIT
while True:
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/step/id", timeout=5) as answer:
            answered = answer.read().decode()
        break
    except OSError as error:
        if time.monotonic() > until:
            sys.exit(f"rank {me.rank} on {me.hostname}: no rendezvous at {address}:{port} after {LIMIT} s: {error}")
        time.sleep(0.1)
if answered != step:
    sys.exit(f"rank {me.rank} on {me.hostname}: {address}:{port} serves step {answered}, not {step}")

environ |= {
    "HOROVOD_RANK": str(me.rank),
    "HOROVOD_SIZE": str(me.size),
    "HOROVOD_LOCAL_RANK": str(me.local_rank),
    "HOROVOD_LOCAL_SIZE": str(me.local_size),
    "HOROVOD_CROSS_RANK": str(me.cross_rank),
    "HOROVOD_CROSS_SIZE": str(me.cross_size),
    "HOROVOD_HOSTNAME": me.hostname,
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
    "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    "HOROVOD_GLOO_IFACE": interface_towards(address, port),
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",  # TensorFlow's import takes longer on one rank than on another
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
}
runpy.run_path(sys.argv[1], run_name="__main__")
