"""Job + Site -> Command: which launcher, which words, which environment, and why. Pure."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace

from hvd_mnist.errors import LaunchError, UsageError
from hvd_mnist.launch import horovodrun, mpirun, srun, ssh
from hvd_mnist.launch.environment import Forwarded, forwarded
from hvd_mnist.launch.job import Command, Job, Site, Ssh


def plan(job: Job, site: Site) -> Command:
    """What to run for this job on this site.

    Raises:
        LaunchError, EnvironmentUnfit, UsageError: it cannot be run here; the message says what would.
    """
    _check_words(job)
    launcher, because = choose_launcher(job, site)
    remote = site.remote(job)
    reasons = [f"launcher: {launcher}, because {because}", *(f"hosts: {note}" for note in job.notes)]
    environment = forwarded(site.environ, job.exports, several_hosts=bool(remote))
    ranks = {**environment.ranks, **_defaults(job, site, environment, reasons)}
    login = ssh.same_for_all(job.ssh, remote)
    if remote and launcher != "srun":
        shared = f", whose network {site.route().subnet} all hosts share" if site.route().subnet else ""
        reasons.append(f"network: {site.route().interface}{shared}, by {site.route().because}")
    command = _COMMANDS[launcher](job, site, ranks, login)
    return replace(
        command,
        env=dict(sorted({**command.env, **environment.launcher}.items())),
        by_name=environment.by_name,
        reasons=(*reasons, *command.reasons, *environment.notes),
        reach=remote if launcher not in ("alone", "srun") else (),
        ssh=login,
        python=site.python,
        folder=site.cwd,
        elastic=job.elastic is not None,
    )


def _alone(job: Job, site: Site, ranks: dict[str, str], login: Ssh) -> Command:
    return Command("local", job.words, ranks, site.cwd, job.placement, ())


def _by_srun(job: Job, site: Site, ranks: dict[str, str], login: Ssh) -> Command:
    argv, why = srun.words(job, site, sorted(ranks))
    argv += _rank_words(job, site, remote=False)  # Slurm goes to the folder by itself, and ranks find the network
    return Command("srun", tuple(argv), {**_slurm(site), **ranks}, site.cwd, job.placement, tuple(why), srun.TAG)


def _by_mpirun(job: Job, site: Site, ranks: dict[str, str], login: Ssh) -> Command:
    mpi, remote = site.mpi(), bool(site.remote(job))
    argv, why = mpirun.words(job, site, mpi, sorted(ranks))
    argv += _rank_words(job, site, remote)
    env = {**ranks, **mpirun.variables(mpi)}
    if job.hosts_from == "slurm":
        env |= _slurm(site)
    if remote and mpi.family in ("mpich", "intel"):
        env |= ssh.variables(login)
    return Command(mpi.family, tuple(argv), env, site.cwd, job.placement, tuple(why), mpirun.TAGS[mpi.family])


def _by_horovodrun(job: Job, site: Site, ranks: dict[str, str], login: Ssh) -> Command:
    # To an elastic job, hosts that are not this machine may come later.
    mpi, remote = site.mpi() if job.backend == "mpi" else None, bool(site.remote(job) or job.elastic)
    argv, why = horovodrun.words(job, site, mpi)
    argv += _rank_words(job, site, remote)
    env, cwd = dict(ranks), site.cwd
    folders = [os.path.dirname(mpi.path)] if mpi else []  # horovodrun takes the first mpirun on PATH
    if remote:
        folders.insert(0, str(ssh.WRAPPER.parent))
        env |= ssh.variables(login)
        why.append(
            f"ssh: through {ssh.WRAPPER}: no prompt, {ssh.CONNECT_SECONDS} s to connect, host keys as your ssh"
            " configuration says (horovodrun itself turns their check off)"
        )
        if shlex.quote(cwd) != cwd:
            cwd = "/"
            why.append("folder: horovodrun starts in /, since it puts its folder into a remote shell without quotes")
    env["PATH"] = os.pathsep.join([*folders, ranks["PATH"]])
    tag = mpirun.TAGS["openmpi-4"] if mpi else horovodrun.TAG
    return Command(f"horovodrun-{job.backend}", tuple(argv), env, cwd, job.placement, tuple(why), tag)


_COMMANDS = {"alone": _alone, "srun": _by_srun, "mpirun": _by_mpirun, "horovodrun": _by_horovodrun}


def choose_launcher(job: Job, site: Site) -> tuple[str, str]:
    """(horovodrun, mpirun, srun or alone; because ...).

    Raises:
        LaunchError: the one that was asked for does not fit the hosts, or none is there.
    """
    remote = site.remote(job)
    if job.elastic:
        if job.launcher not in ("auto", "horovodrun") or job.backend != "gloo":
            raise LaunchError(
                f"--host-discovery-script with --launcher {job.launcher} --backend {job.backend}: only horovodrun over"
                " Gloo lets ranks come and go",
                "leave out --launcher and --backend, or use --max-restarts",
            )
        return "horovodrun", "it alone lets ranks come and go"
    if job.launcher == "local" and remote:
        raise LaunchError(
            f"--launcher local runs on this machine alone, and {remote[0].name} is another host",
            "leave out --launcher, or -H",
        )
    if job.launcher in ("horovodrun", "mpirun", "srun"):
        return job.launcher, f"--launcher {job.launcher}"
    if job.size == 1 and not remote:
        return "alone", "one rank on this machine needs no launcher"
    if job.launcher == "auto" and site.in_slurm and job.hosts_from == "slurm" and site.srun:
        return "srun", "this is a Slurm allocation, and srun needs neither MPI nor ssh"
    if job.backend == "mpi":
        return "horovodrun", "--backend mpi"
    if site.horovodrun:
        return "horovodrun", f"{site.horovodrun} is there, and over Gloo it needs no MPI"
    return "mpirun", "there is no horovodrun"


def _rank_words(job: Job, site: Site, remote: bool) -> tuple[str, ...]:
    """What each rank runs: the guard, and in it the job's words."""
    options = []
    if remote and site.route and site.route().subnet:
        options += ["--subnet", site.route().subnet]
    if remote:
        options += ["--chdir", site.cwd]
    first = 0
    for host, count in job.host_counts:
        if host.slot_ids:
            ids = ",".join(map(str, host.slot_ids[:count]))
            options += ["--gpus", f"{first}-{first + count - 1}={ids}"]
        first += count
    return (site.python, "-m", "hvd_mnist.launch.guard", *options, "--", *job.words)


def _defaults(job: Job, site: Site, environment: Forwarded, reasons: list[str]) -> dict[str, str]:
    """Variables that a job wants and the user has not set."""
    # Unbuffered, else the last lines of a rank that is killed are lost; without TensorFlow's greeting of each rank.
    wanted = {"PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if job.size > 1:
        # TensorFlow's import takes longer on one rank than on another; Gloo's own 30 s are too few.
        wanted["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(max(120, 2 * job.size))
    missing = {name: value for name, value in wanted.items() if name not in environment.ranks}
    if missing:
        reasons.append(f"defaults: {', '.join(f'{name}={value}' for name, value in missing.items())}")
    folders, own = environment.ranks.get("PATH", os.defpath), os.path.dirname(site.python)
    if own not in folders.split(os.pathsep):
        missing["PATH"] = f"{own}{os.pathsep}{folders}"
        reasons.append(f"PATH: {own} comes first, the folder of this Python")
    elif "PATH" not in environment.ranks:
        missing["PATH"] = folders
    return missing


def _slurm(site: Site) -> dict[str, str]:
    """What srun, and an mpirun inside an allocation, must see of the allocation."""
    return {name: value for name, value in site.environ.items() if name.startswith(("SLURM_", "SLURMD_"))}


def _check_words(job: Job) -> None:
    from hvd_mnist.cluster.hostfile import looks_like_hosts

    if not job.words:
        raise UsageError("no program to launch", "hvd-mnist launch -np 2 -- train, or -- python my.py")
    first = job.words[0]
    if looks_like_hosts(first):
        raise UsageError(f"{first!r} looks like a host, not like a program", "join hosts by commas: -H h1:4,h2:4")
    if first.endswith(".py") and not os.access(first, os.X_OK):
        raise UsageError(f"{first} is no program that can be executed", f"write -- python {first}")
