"""The words for horovodrun. Pure.

What it is kept from (Horovod 0.28.1): it starts one rank for each slot however small -np is, so it gets hosts with
exactly the ranks they hold; it puts two local ranks 0 on a host that is named twice, and stops with an IndexError
at a comment, so it gets a list that is merged and clean; it turns ssh's check of host keys off.
"""

from __future__ import annotations

import shlex

from hvd_mnist.errors import EnvironmentUnfit, LaunchError
from hvd_mnist.launch.job import Elastic, Job, Mpi, Site

TAG = r"^\[(\d+)\]<std(?:out|err)>:"


def words(job: Job, site: Site, mpi: Mpi | None) -> tuple[list[str], list[str]]:
    """(horovodrun and its options, reasons). ``mpi`` is None for Gloo.

    Raises:
        EnvironmentUnfit: no horovodrun.
        LaunchError: hosts that it cannot be told, or an MPI that it cannot drive.
    """
    if site.horovodrun is None:
        raise EnvironmentUnfit(
            f"no horovodrun beside {site.python} or on PATH", "hvd-mnist build-horovod, or --launcher mpirun"
        )
    ipv6 = next((host.name for host in job.placement.hosts if ":" in host.name), None)
    if ipv6:
        raise LaunchError(f"horovodrun cannot be given the IPv6 address {ipv6}", "give the host a name in /etc/hosts")
    if job.elastic:
        return _elastic_words(job, job.elastic, site)
    hosts = ",".join(f"{host.name}:{count}" for host, count in job.host_counts)
    argv = [site.horovodrun, "--mpi" if mpi else "--gloo", "-np", str(job.size), "-H", hosts]
    reasons = [f"hosts: {hosts}, each with the ranks that it holds (horovodrun starts one rank for each slot)"]
    if site.remote(job):
        limit = str(start_seconds(len(job.placement.hosts)))
        argv += ["--network-interfaces", site.route().interface, "--start-timeout", limit]
    if mpi:
        argv += _mpi_words(job, site, mpi, reasons)
    return argv, reasons


def _elastic_words(job: Job, elastic: Elastic, site: Site) -> tuple[list[str], list[str]]:
    interface = site.route().interface if site.route and site.remote(job) else elastic.interface
    argv = [site.horovodrun, "--gloo", "-np", str(elastic.start), "--min-np", str(elastic.least)]
    if elastic.most:
        argv += ["--max-np", str(elastic.most)]
    argv += ["--host-discovery-script", shlex.quote(elastic.script), "--slots-per-host", "1"]  # it goes to a shell
    argv += ["--reset-limit", str(elastic.reset_limit)]
    argv += ["--blacklist-cooldown-range", *map(str, elastic.cooldown)]
    argv += ["--network-interfaces", interface, "--start-timeout", str(start_seconds(len(job.placement.hosts)))]
    most = f"{elastic.most} at most" if elastic.most else "every slot that there is"
    return argv, [
        f"elastic: starts when {elastic.start} slots are there, goes on with {elastic.least} or more, uses {most}",
        f"elastic: a host where a rank failed is left out for {elastic.cooldown[0]} to {elastic.cooldown[1]} s, longer"
        f" each time; after {elastic.reset_limit} changes of ranks the job fails",
        f"network: {interface} (given, since Horovod would else wait for a second host)",
    ]


def _mpi_words(job: Job, site: Site, mpi: Mpi, reasons: list[str]) -> list[str]:
    from hvd_mnist.launch import mpirun

    if mpi.family != "openmpi-4":
        raise LaunchError(
            f"horovodrun --mpi writes options of Open MPI 4, and {mpi.path} is {mpi.family} {mpi.version}",
            "--launcher mpirun, or --backend gloo",
        )
    if not site.remote(job):
        return []
    # horovodrun writes -x for every variable, the allow-root flag and binding itself.
    more = [*mpirun.prefix_words(job, site, mpi, reasons), *mpirun.remote_words(job, site, mpi, reasons, False)]
    return [f"--mpi-args={' '.join(map(shlex.quote, more))}"]


def start_seconds(hosts: int) -> int:
    """Limit of horovodrun's start: half a minute is too short for many hosts."""
    return 60 + hosts
