"""Who is this process: rank, size, local rank, by which launcher, and because of which variable.

Looked at in this order; the first that is there answers, the others must not contradict it:
    HOROVOD_RANK            horovodrun with Gloo, or elastic (``horovodrun --mpi`` is mpirun: it sets none of these)
    OMPI_COMM_WORLD_RANK    Open MPI 4 and 5
    MV2_COMM_WORLD_RANK     MVAPICH2
    PMI_RANK                MPICH and Intel MPI (Hydra)
    SLURM_PROCID            srun, inside a step only
    (none)                  one process alone

A Slurm job's SLURM_NTASKS says what *could* be started. Only a step (srun) has started it: a plain ``python`` in
an sbatch file or under salloc is one process, and must not wait for peers.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from hvd_mnist.errors import WorldError


@dataclass(frozen=True)
class Identity:
    """One process of a job.

    Attributes:
        rank, size: this process and the number of processes; 0 <= rank < size.
        local_rank, local_size: the same among the processes on this host; None where the launcher does not say.
        host: the name by which the launcher knows this host, else the host's own name.
        launcher: horovodrun-gloo, horovod-elastic, openmpi, mvapich2, mpich, intel, slurm or none.
        because: the variable that decided.
        notes: what a person should know, one sentence each.
        job_id: Slurm's job number, or None.
        cross_rank, cross_size: Horovod's, where horovodrun says them.
    """

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    host: str
    launcher: str
    because: str
    notes: tuple[str, ...] = ()
    job_id: str | None = None
    cross_rank: int | None = None
    cross_size: int | None = None

    def __str__(self) -> str:
        local = "" if self.local_rank is None else f", local rank {self.local_rank} of {self.local_size}"
        return f"rank {self.rank} of {self.size}{local} on {self.host}, launcher {self.launcher}: {self.because}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Variables:
    """Names of one family of variables, in the order rank, size, local rank, local size."""

    launcher: str
    names: tuple[str, str, str, str]


_HOROVOD = _Variables("horovodrun-gloo", ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"))
_OPENMPI = _Variables(
    "openmpi",
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",  # never ..._NODE_RANK: that counts the ranks of all jobs on the host
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
)
_MVAPICH2 = _Variables(
    "mvapich2",
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
)
_HYDRA = _Variables("mpich", ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"))
_MPI = (_OPENMPI, _MVAPICH2, _HYDRA)


def identity_from(environ: Mapping[str, str], hostname: str | None = None, in_shell: bool | None = None) -> Identity:
    """Who the process with these variables is.

    Args:
        environ: its environment.
        hostname: its host's own name; None asks this host.
        in_shell: whether it was typed at a terminal inside a task of srun --pty; None finds out for this process.

    Raises:
        WorldError: variables are half set, contradict one another or are no numbers.
    """
    hostname = hostname or socket.gethostname()
    job_id = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or None
    step, slurm_note = _slurm_step(environ, hostname, in_shell)
    horovod = _read(_HOROVOD, environ, hostname)
    mpi = [claim for claim in (_read(variables, environ, hostname) for variables in _MPI) if claim]
    if step:  # srun --mpi=pmi2 gives each task PMI_RANK too; so has a daemon that mpirun started with srun
        mpi = [claim for claim in mpi if claim.launcher != "mpich" or _pair(claim) != _pair(step)]
    if horovod:
        found = _horovod(horovod, mpi, step, environ)
    elif mpi:
        found = _without_contradiction(mpi[0], mpi[1:])
        if found.launcher == "openmpi":
            found = replace(found, because=f"{found.because} ({_open_mpi_version(environ)})")
        elif found.launcher == "mpich" and any(name.startswith("I_MPI_HYDRA") for name in environ):
            found = replace(found, launcher="intel")
    elif "PMIX_RANK" in environ and not step:
        raise WorldError(
            f"PMIX_RANK={environ['PMIX_RANK']} is set, but nothing says how many ranks there are",
            "start it with mpirun, or srun, instead of prterun",
        )
    elif step:
        found = step
    else:
        found = _alone(environ, hostname)
    if slurm_note and found.size == 1:
        notes = (slurm_note,) if found.launcher == "none" else (*found.notes, slurm_note)
        found = replace(found, notes=notes)
    return replace(found, job_id=job_id)


def check_agrees(identity: Identity, horovod_rank: int, horovod_size: int) -> None:
    """Stop before training when the launcher and Horovod disagree on who is in the job.

    A launcher that started 4 while each Horovod counts 1 means four unconnected copies. In an elastic job the
    numbers may change, and where no launcher is known Horovod's word stands: neither is checked.

    Raises:
        WorldError: the sizes or the ranks differ.
    """
    if identity.launcher in ("horovod-elastic", "none"):
        return
    if horovod_size != identity.size:
        consequence = "each process would train a copy of its own" if horovod_size == 1 else "ranks are missing"
        raise WorldError(
            f"rank {identity.rank} on {identity.host}: {identity.launcher} started {identity.size} ranks"
            f" ({identity.because}), but Horovod counts {horovod_size}: {consequence}",
            _how_to_connect(identity),
        )
    if horovod_rank != identity.rank:
        raise WorldError(
            f"on {identity.host}: {identity.launcher} says rank {identity.rank} ({identity.because}),"
            f" but Horovod says rank {horovod_rank}",
            "unset the variables of the launcher that is not in use, and start again",
        )


def _how_to_connect(identity: Identity) -> str:
    if identity.launcher == "slurm":
        return "start it with: srun hvd-mnist launch ... (or salloc, then mpirun)"
    if identity.launcher == "horovodrun-gloo":
        return "let HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS be gloo, as horovodrun sets them"
    return (
        "Horovod was built without MPI or with another MPI than this launcher's, or HOROVOD_CONTROLLER=gloo is set"
        " (horovodrun --check-build shows it): use that MPI's mpirun, or horovodrun --gloo"
    )


def _horovod(claim: Identity, mpi: list[Identity], step: Identity | None, environ: Mapping[str, str]) -> Identity:
    found = _without_contradiction(claim, mpi)
    connected = "HOROVOD_GLOO_RENDEZVOUS_ADDR" in environ
    if claim.size > 1 and claim.local_rank is None:
        raise WorldError(
            "HOROVOD_RANK and HOROVOD_SIZE are set without HOROVOD_LOCAL_RANK and HOROVOD_LOCAL_SIZE:"
            " every rank of a host would take GPU 0",
            "start it with horovodrun, or set all four",
        )
    if step and not connected and _pair(step) != _pair(claim):
        raise _contradiction(claim, step)
    if claim.size > 1 and not connected and not mpi:
        raise WorldError(
            f"HOROVOD_SIZE={claim.size}, but HOROVOD_GLOO_RENDEZVOUS_ADDR is not set:"
            " Horovod would run each process alone",
            "start it with horovodrun, or unset HOROVOD_RANK and HOROVOD_SIZE",
        )
    if environ.get("HOROVOD_ELASTIC") == "1":
        note = "an elastic job: rank and size are those at the start and may change"
        return replace(found, launcher="horovod-elastic", notes=(*found.notes, note))
    if step and claim.size > 1 and _pair(step) == _pair(claim):
        return replace(found, launcher="slurm", because=f"{claim.because}, and SLURM_PROCID agrees")
    return found


def _read(variables: _Variables, environ: Mapping[str, str], hostname: str) -> Identity | None:
    """What one family of variables says; None where it is absent."""
    rank_name, size_name, local_rank_name, local_size_name = variables.names
    present = [name for name in variables.names if name in environ]
    if not present or variables is _HYDRA and not {rank_name, size_name} & set(present):
        return None
    for missing in {rank_name, size_name} - set(present):
        raise WorldError(
            f"{', '.join(present)} set, but {missing} is not",
            f"unset {present[0]}, or start the program with its launcher",
        )
    for one, other in ((local_rank_name, local_size_name), (local_size_name, local_rank_name)):
        if one in environ and other not in environ:
            raise WorldError(f"{one} is set, but {other} is not", "start the program with its launcher")
    rank, size = (_number(environ, name) for name in (rank_name, size_name))
    _within(rank_name, rank, size_name, size)
    local_rank = local_size = None
    if local_rank_name in environ:
        local_rank, local_size = _number(environ, local_rank_name), _number(environ, local_size_name)
        _within(local_rank_name, local_rank, local_size_name, local_size)
        if local_size > size:
            raise WorldError(
                f"{local_size_name}={local_size} is more than {size_name}={size}",
                "start the program with its launcher",
            )
    elif size == 1:
        local_rank, local_size = 0, 1
    cross_rank = cross_size = None
    if variables is _HOROVOD and "HOROVOD_CROSS_RANK" in environ and "HOROVOD_CROSS_SIZE" in environ:
        cross_rank, cross_size = (_number(environ, f"HOROVOD_CROSS_{what}") for what in ("RANK", "SIZE"))
        _within("HOROVOD_CROSS_RANK", cross_rank, "HOROVOD_CROSS_SIZE", cross_size)
    named = environ.get("HOROVOD_HOSTNAME", "") if variables is _HOROVOD else ""
    return Identity(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        host=named if named and named != "localhost" and not named.startswith("127.") else hostname,
        launcher=variables.launcher,
        because=f"{rank_name}={rank} and {size_name}={size}",
        notes=() if local_rank is not None else (f"{variables.launcher} does not say the local rank",),
        cross_rank=cross_rank,
        cross_size=cross_size,
    )


def _slurm_step(environ: Mapping[str, str], hostname: str, in_shell: bool | None) -> tuple[Identity | None, str]:
    """(what srun says, a note for a process that is alone). No step: (None, note)."""
    if "SLURM_JOB_ID" not in environ and "SLURM_JOBID" not in environ:
        return None, ""
    tasks = _number(environ, "SLURM_NTASKS", _number(environ, "SLURM_NPROCS", 1))
    nodes = _number(environ, "SLURM_NNODES", 1)
    more = tasks if tasks > 1 else nodes
    note = ""
    if more > 1:
        note = (
            f"one process alone, in a Slurm job ({tasks} tasks, {nodes} nodes): nothing has started the others"
            f" (srun -n {more} ... or mpirun -np {more} ... would)"
        )
    if "SLURM_STEP_ID" not in environ and "SLURM_STEPID" not in environ:
        return None, note
    present = [name for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS") if name in environ]
    if not present:
        return None, note
    if len(present) == 1:
        raise WorldError(
            f"SLURM_STEP_ID and {present[0]} are set, but SLURM_PROCID or SLURM_STEP_NUM_TASKS is not",
            "let srun's variables through to the program (--export=ALL)",
        )
    rank, size = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS")
    _within("SLURM_PROCID", rank, "SLURM_STEP_NUM_TASKS", size)
    local_rank = _number(environ, "SLURM_LOCALID", 0 if size == 1 else None)
    local_size = _tasks_on_node(environ) or (1 if size == 1 else None)
    if size > 1 and _left_over(environ, size, local_size):
        left = f"SLURM_STEP_* variables are left over from the step of {size} tasks that submitted this job"
        return None, f"{note or 'one process alone'}; {left}"
    if size > 1 and rank == 0 and "SLURM_PTY_PORT" in environ and _typed(environ, in_shell):
        raise WorldError(
            f"inside a shell of srun --pty with {size} tasks: is this one process, or rank 0 of {size}?",
            f"for one: env -u SLURM_STEP_ID -u SLURM_STEPID COMMAND; for {size}: srun --overlap -n {size} COMMAND",
        )
    if local_size is not None:
        _within("SLURM_LOCALID", local_rank, "SLURM_STEP_TASKS_PER_NODE", local_size)
    step = Identity(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        host=environ.get("SLURMD_NODENAME") or hostname,
        launcher="slurm",
        because=f"SLURM_PROCID={rank} and SLURM_STEP_NUM_TASKS={size} in a step of srun",
    )
    return step, note


def _typed(environ: Mapping[str, str], in_shell: bool | None) -> bool:
    """Only task 0 of ``srun --pty`` has the terminal; SLURM_PTY_PORT alone is also handed on to later steps."""
    if in_shell is not None:
        return in_shell
    return os.isatty(0) and environ.get("SLURM_TASK_PID") != str(os.getpid())


def _left_over(environ: Mapping[str, str], size: int, local_size: int | None) -> bool:
    """sbatch called inside a step hands that step's variables on; those of the new job differ from them."""
    if "SLURM_HET_SIZE" not in environ and _number(environ, "SLURM_NTASKS", size) != size:
        return True
    ranks_here = environ.get("SLURM_GTIDS")
    return ranks_here is not None and local_size is not None and len(ranks_here.split(",")) != local_size


def _tasks_on_node(environ: Mapping[str, str]) -> int | None:
    """The entry for this node in ``SLURM_STEP_TASKS_PER_NODE``, such as ``4(x2),2``; None where it is not said."""
    text, node = environ.get("SLURM_STEP_TASKS_PER_NODE", ""), environ.get("SLURM_NODEID", "")
    if not text or not re.fullmatch("[0-9]{1,9}", node):
        return None
    left = int(node)
    for piece in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", piece)
        if not match:
            raise WorldError(f"SLURM_STEP_TASKS_PER_NODE={text!r} is not of the form 4(x2),2", "start it with srun")
        left -= int(match[2] or 1)
        if left < 0:
            return int(match[1])
    return None


def _alone(environ: Mapping[str, str], hostname: str) -> Identity:
    notes = ["one process, no launcher; for 2 ranks on this host: hvd-mnist launch -np 2 -H localhost:2 -- ..."]
    if environ.get("WORLD_SIZE", "1") != "1":
        notes.append(f"WORLD_SIZE={environ['WORLD_SIZE']} is torchrun's: Horovod does not read it")
    return Identity(0, 1, 0, 1, hostname, "none", "no variable of a launcher is set", tuple(notes))


def _without_contradiction(first: Identity, others: list[Identity]) -> Identity:
    """The first claim, unless another one says something else. An outer launcher of one process is no other."""
    for other in others:
        if _pair(other) == _pair(first) or other.size == 1:
            continue
        raise _contradiction(first, other)
    return first


def _contradiction(first: Identity, other: Identity) -> WorldError:
    return WorldError(
        f"two launchers contradict each other: {first.because}, but {other.because}",
        "unset the variables of the one that is not in use, or do not start a launcher inside another's rank",
    )


def _pair(claim: Identity) -> tuple[int, int]:
    return claim.rank, claim.size


def _open_mpi_version(environ: Mapping[str, str]) -> str:
    if "OMPI_VERSION" in environ:
        return f"Open MPI {environ['OMPI_VERSION']}"
    return "Open MPI 4 or older" if any(name.startswith("OMPI_MCA_orte") for name in environ) else "Open MPI"


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"-?[0-9]{1,9}", text):
        shown = "not set" if text is None else f"{text[:40]!r}, not a whole number"
        raise WorldError(f"{name} is {shown}", f"unset {name}, or start the program with its launcher")
    return int(text)


def _within(rank_name: str, rank: int, size_name: str, size: int) -> None:
    if size < 1 or not 0 <= rank < size:
        raise WorldError(
            f"{rank_name}={rank} and {size_name}={size}: a rank lies between 0 and the size less 1",
            "start the program with its launcher, or unset both",
        )
