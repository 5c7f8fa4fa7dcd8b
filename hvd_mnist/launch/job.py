"""The three values of a launch: Job (what is wanted), Site (what is here), Command (what will be run)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hvd_mnist.cluster.host import Host
from hvd_mnist.cluster.placement import Placement

LAUNCHERS = ("auto", "horovodrun", "mpirun", "srun", "local")


@dataclass(frozen=True)
class Ssh:
    """How other hosts are entered; None means what ssh's own configuration says."""

    user: str | None = None
    port: int | None = None
    identity: str | None = None


@dataclass(frozen=True)
class Elastic:
    """A job whose ranks come and go.

    Attributes:
        script: program that prints the hosts that there are, absolute path.
        start, least, most: ranks to wait for at the start, to go on with, and to use at most (None: every slot).
        reset_limit: times that ranks may change before the job fails.
        cooldown: seconds (shortest, longest) for which a host is left out after a rank failed there.
        interface: network interface while all hosts are this machine.
    """

    script: str
    start: int
    least: int
    most: int | None
    reset_limit: int
    cooldown: tuple[int, int]
    interface: str = "lo"


@dataclass(frozen=True)
class Job:
    """What is wanted.

    Attributes:
        words: the program of each rank with its arguments.
        placement: which rank runs on which host.
        launcher: one of LAUNCHERS.
        backend: what ranks meet over under horovodrun: gloo or mpi.
        exports: ``NAME`` or ``NAME=VALUE`` to hand to the ranks beyond the allow-list.
        prefix: folder of the MPI installation on the hosts, "auto", or None for no --prefix.
        hosts_from: where the host list came from: "-H", a file, "slurm" or "here".
        notes: rules that reading the host list applied.
        elastic: ranks come and go; ``placement`` is that of the start.
    """

    words: tuple[str, ...]
    placement: Placement
    launcher: str = "auto"
    backend: str = "gloo"
    exports: tuple[str, ...] = ()
    ssh: Ssh = Ssh()
    prefix: str | None = "auto"
    hosts_from: str = "-H"
    notes: tuple[str, ...] = ()
    elastic: Elastic | None = None

    @property
    def size(self) -> int:
        return self.placement.size

    @property
    def host_counts(self) -> tuple[tuple[Host, int], ...]:
        """Hosts in use with the number of ranks on each."""
        return tuple(zip(self.placement.hosts, self.placement.counts, strict=True))


@dataclass(frozen=True)
class Mpi:
    """An mpirun: its path, its family (openmpi-4, openmpi-5, mpich or intel), its version."""

    path: str
    family: str
    version: str


@dataclass(frozen=True)
class Route:
    """How this machine reaches the other hosts.

    Attributes:
        interface: name of the network interface here.
        subnet: the network that all hosts share, as 10.0.0.0/24; None where they do not share one, or where
            their addresses are not known.
        because: why this one.
    """

    interface: str
    subnet: str | None
    because: str


@dataclass(frozen=True)
class Site:
    """What is on the machine where launch was typed.

    Attributes:
        python: this interpreter.
        cwd: the folder in which the job will run, on every host.
        local: names among the job's hosts that are this machine.
        horovodrun, srun: their paths, or None where they are not.
        mpi: looks for mpirun when it is called (that takes a process); raises LaunchError where there is none.
        in_slurm: inside a Slurm allocation.
        route: how the other hosts are reached; raises LaunchError where no network leads there. Asked only where
            there are other hosts and the launcher needs to know.
    """

    python: str
    cwd: str
    environ: Mapping[str, str]
    local: frozenset[str]
    is_root: bool = False
    horovodrun: str | None = None
    srun: str | None = None
    mpi: Callable[[], Mpi] | None = None
    in_slurm: bool = False
    route: Callable[[], Route] | None = None

    def remote(self, job: Job) -> tuple[Host, ...]:
        """The job's hosts that are not this machine."""
        return tuple(host for host in job.placement.hosts if host.name not in self.local)


@dataclass(frozen=True)
class Command:
    """What will be run, complete: words, the whole environment, the folder.

    Attributes:
        launcher: horovodrun-gloo, horovodrun-mpi, openmpi-4, openmpi-5, mpich, intel, srun or local.
        argv: program and arguments.
        env: all of its environment; nothing else is handed on.
        cwd: where the launcher is started; ``folder``: where the ranks run, on every host.
        by_name: variables shown as ``$NAME``, since their value may be a secret.
        reasons: each choice with its reason, one sentence each.
        tag: regular expression of the mark that the launcher puts before a rank's line, rank as its first group;
            with ^ where it stands at the start alone; None where there is one rank and no mark.
        reach: hosts that must be reachable over ssh before the start.
        elastic: a rank that fails is no failure of the job.
    """

    launcher: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    placement: Placement
    reasons: tuple[str, ...]
    tag: str | None = None
    by_name: frozenset[str] = frozenset()
    reach: tuple[Host, ...] = ()
    ssh: Ssh = field(default_factory=Ssh)
    python: str = ""
    folder: str = ""
    elastic: bool = False
