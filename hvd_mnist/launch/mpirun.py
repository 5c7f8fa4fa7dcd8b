"""The words for mpirun of Open MPI 4, Open MPI 5, MPICH and Intel MPI, each with options that it accepts. Pure."""

from __future__ import annotations

from pathlib import PurePath

from hvd_mnist.errors import LaunchError
from hvd_mnist.launch import ssh
from hvd_mnist.launch.job import Job, Mpi, Site

TAGS = {
    "openmpi-4": r"\[\d+,(\d+)\]<std(?:out|err)>:",
    "openmpi-5": r"\[(?:[^\]\s]*@)?\d+,(\d+)\]<std(?:out|err)>: ",
    "mpich": r"^\[(\d+)\] ",
    "intel": r"^\[(\d+)\] ",
}


def words(job: Job, site: Site, mpi: Mpi, names: list[str]) -> tuple[list[str], list[str]]:
    """(mpirun and its options, reasons).

    Args:
        names: the variables that the ranks get.
    """
    reasons = [f"mpi: {mpi.path} is {mpi.family} {mpi.version}, from its --version"]
    write = _open_mpi if mpi.family.startswith("openmpi") else _hydra
    return [mpi.path, *write(job, site, mpi, names, reasons)], reasons


def _open_mpi(job: Job, site: Site, mpi: Mpi, names: list[str], reasons: list[str]) -> list[str]:
    ipv6 = next((host.name for host in job.placement.hosts if ":" in host.name), None)
    if ipv6:
        raise LaunchError(f"Open MPI cannot be given the IPv6 address {ipv6}", "give the host a name in /etc/hosts")
    argv = []
    if site.is_root:
        argv.append("--allow-run-as-root")
        reasons.append("root: --allow-run-as-root, because you are root and Open MPI refuses otherwise")
    hosts = ",".join(f"{host.name}:{count}" for host, count in job.host_counts)
    argv += ["-np", str(job.size), "-H", hosts, "--bind-to", "none", "--map-by", "slot"]
    reasons.append("binding: none, since Open MPI would give a rank one core, and TensorFlow has many threads")
    argv += ["--tag-output"] if mpi.family == "openmpi-4" else ["--output", "tag"]
    argv += prefix_words(job, site, mpi, reasons)
    argv += remote_words(job, site, mpi, reasons)
    for name in names:
        # Its own settings Open MPI carries by itself, and warns when they are named.
        if not name.startswith(("OMPI_", "PMIX_", "PRTE_")):
            argv += ["-x", name]
    return argv


def prefix_words(job: Job, site: Site, mpi: Mpi, reasons: list[str]) -> list[str]:
    """``--prefix DIR`` where it is asked for, or where another host has to find this MPI's daemon."""
    if job.prefix is None or job.prefix == "auto" and not site.remote(job):
        return []
    prefix = str(PurePath(mpi.path).parent.parent) if job.prefix == "auto" else job.prefix
    if any(character.isspace() for character in prefix):
        raise LaunchError(
            f"Open MPI cannot start its daemon from a path with a space: {prefix}",
            "--launcher horovodrun, or make the environment in a folder without a space",
        )
    reasons.append(
        f"prefix: {prefix}, so that the other hosts find Open MPI's daemon (an ssh session has a short PATH)"
    )
    return ["--prefix", prefix]


def remote_words(job: Job, site: Site, mpi: Mpi, reasons: list[str], tensors: bool = True) -> list[str]:
    """ssh and network for several hosts; nothing where every host is this machine.

    Args:
        tensors: name the network for the ranks too, and not for the daemons alone (horovodrun does the former).
    """
    if not site.remote(job):
        return []
    login = ssh.words(ssh.same_for_all(job.ssh, site.remote(job)))
    spaced = next((word for word in login if " " in word), None)
    if spaced:
        raise LaunchError(f"Open MPI cannot pass {spaced!r} to ssh: it has a space", "write it in ~/.ssh/config")
    reasons.append(f"ssh: no prompt, {ssh.CONNECT_SECONDS} s to connect; host keys as your ssh configuration says")
    network = site.route().subnet or site.route().interface
    five = mpi.family == "openmpi-5"
    daemons, agent, out_of_band = (
        ("--prtemca", "plm_ssh_agent", "prte_if_include") if five else ("--mca", "plm_rsh_agent", "oob_tcp_if_include")
    )
    argv = [daemons, agent, " ".join(login), daemons, out_of_band, network]
    if tensors:
        argv += ["--mca", "btl_tcp_if_include", network]
    if not five:
        # A daemon whose host has died is noticed after 20 s, not after Linux's two hours.
        for name, seconds in (("time", "10"), ("intvl", "5"), ("probes", "2")):
            argv += ["--mca", f"oob_tcp_keepalive_{name}", seconds]
    return argv


def _hydra(job: Job, site: Site, mpi: Mpi, names: list[str], reasons: list[str]) -> list[str]:
    if any(":" in host.name for host in job.placement.hosts):
        raise LaunchError("Hydra cannot be given an IPv6 address", "give the host a name in /etc/hosts")
    counts = set(job.placement.counts)
    argv = ["-np", str(job.size)]
    if mpi.family == "intel":
        if len(counts) > 1:
            each = ", ".join(f"{host.name}: {count}" for host, count in job.host_counts)
            raise LaunchError(
                f"Intel MPI takes one number of ranks for all hosts, and here are {each}",
                "--spread, another -np, or --launcher horovodrun",
            )
        argv += ["-hosts", ",".join(host.name for host in job.placement.hosts), "-ppn", str(counts.pop())]
    else:
        argv += ["-hosts", ",".join(f"{host.name}:{count}" for host, count in job.host_counts), "-bind-to", "none"]
    argv.append("-prepend-rank")
    if site.remote(job):
        argv += ["-launcher", "ssh", "-launcher-exec", str(ssh.WRAPPER), "-iface", site.route().interface]
        reasons.append(f"ssh: through {ssh.WRAPPER}: no prompt, {ssh.CONNECT_SECONDS} s to connect")
    return [*argv, "-genvlist", ",".join(names)]


def variables(mpi: Mpi) -> dict[str, str]:
    """Settings that Intel MPI takes from the environment alone."""
    return {"I_MPI_PIN": "0"} if mpi.family == "intel" else {}
