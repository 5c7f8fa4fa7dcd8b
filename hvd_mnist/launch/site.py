"""What is on this machine, for one job: asked once, before planning. Nothing is imported that could be missing."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from hvd_mnist.cluster.host import Host, HostList
from hvd_mnist.errors import LaunchError
from hvd_mnist.launch import network
from hvd_mnist.launch.job import Route, Site
from hvd_mnist.launch.mpi import find_mpi


def look(
    hosts: Iterable[Host], environ: Mapping[str, str], network_interface: str | None = None, only_shown: bool = False
) -> Site:
    """This machine, as far as a job on these hosts is concerned.

    Args:
        network_interface: name or subnet that was asked for.
        only_shown: the job will not start here; a network that cannot be told from here is left open.
    """
    beside = os.path.dirname(sys.executable)
    folders = os.pathsep.join([beside, environ.get("PATH", os.defpath)])
    names = [host.name for host in hosts]
    here = network.interfaces()
    addresses = network.resolve(names)
    local = network.local_names(addresses, here, socket.gethostname())
    others = {name: addresses[name] for name in names if name not in local}

    @functools.cache
    def route() -> Route:
        own = network.own_address_towards(next(iter(others.values())))
        try:
            return network.choose_route(others, here, own, network_interface)
        except LaunchError as error:
            if not only_shown or network_interface:
                raise
            # Shown on a laptop, for hosts that only the cluster knows.
            return Route("INTERFACE", None, f"the place where it is started; from here, {error.message}")

    return Site(
        python=sys.executable,
        cwd=os.getcwd(),
        environ=environ,
        local=local,
        is_root=os.geteuid() == 0,
        horovodrun=shutil.which("horovodrun", path=folders),
        srun=shutil.which("srun", path=folders),
        mpi=lambda: find_mpi(folders),
        in_slurm="SLURM_JOB_ID" in environ,
        route=route if others else None,
    )


def hosts_here(environ: Mapping[str, str]) -> tuple[HostList, str]:
    """(hosts, where they come from) when none are given: the Slurm allocation, else this machine.

    This machine has one slot for each GPU that can be seen, or for each core where there is none.
    """
    from hvd_mnist.cluster.hostfile import parse_slurm

    nodes = environ.get("SLURM_JOB_NODELIST")
    if nodes and "SLURM_JOB_ID" in environ:
        return parse_slurm(nodes, environ.get("SLURM_TASKS_PER_NODE")), "slurm"
    gpus = visible_gpus(environ)
    slots = gpus or len(os.sched_getaffinity(0))
    note = f"this machine, {slots} {'GPUs' if gpus else 'cores'}, since neither -H nor --hostfile is given"
    return HostList((Host("localhost", slots, source="this machine"),), "plain", (note,)), "here"


def visible_gpus(environ: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """NVIDIA GPUs that a process here would see: those of the driver, or of CUDA_VISIBLE_DEVICES."""
    there = len(list(driver.iterdir())) if driver.is_dir() else 0
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if there and mask is not None:
        return min(there, len([entry for entry in mask.split(",") if entry.strip() not in ("", "-1")]))
    return there
