"""The job as this process sees it: join, agree, leave.

``join`` reads who the launcher says this process is, prepares the environment so that nothing has to be
exported by hand, starts Horovod, and refuses to go on where launcher and Horovod disagree (unconnected
copies that train alone). Everything that ranks tell each other here is JSON in a tensor, never a pickle.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hvd_mnist import errors
from hvd_mnist.cluster.identity import Identity, check_agrees, identity_from
from hvd_mnist.console import FAST_TENSORFLOW
from hvd_mnist.errors import HvdMnistError, WorldError
from hvd_mnist.runtime import autotune, slurm_rendezvous

T = TypeVar("T")

STALL_WARNING_SECONDS = 30
STALL_SHUTDOWN_SECONDS = 300
GLOO_TIMEOUT_SECONDS = 120
# On CPUs; the reasons are beside environment_defaults, the figures in docs/performance.md.
CYCLE_MILLISECONDS = "20"  # Horovod's own is 1
FUSION_BYTES = str(4 * 2**20)  # Horovod's own is 128 MiB

last_gathered = ""  # the name of the gather_json in which this rank stands, for the report of a stall


@dataclass(frozen=True)
class World:
    """A world of one is a world: rank 0 of size 1, and every collective returns its input."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str
    backend: str  # what carries the tensors: NCCL, MPI or Gloo
    identity: Identity

    @property
    def is_root(self) -> bool:
        return self.rank == 0


def environment_defaults(environ: Mapping[str, str], identity: Identity, prefix: Path) -> dict[str, str]:
    """Variables that Horovod, MPI and TensorFlow need and that nobody has set. Pure; the reasons stand beside each.

    Args:
        environ: the process environment; a variable that is set there is never overridden.
        identity: who the launcher says we are.
        prefix: root of the Python environment (sys.prefix).
    """
    wanted = {}
    if identity.size == 1 and identity.launcher == "none":
        # A world of one needs no MPI: MPI_Init would start a daemon, ask for OPAL_PREFIX and refuse root.
        wanted["HOROVOD_CONTROLLER"] = "gloo"
        wanted["HOROVOD_CPU_OPERATIONS"] = "gloo"
    if (prefix / "lib" / "libmpi.so.40").exists():
        # Open MPI from its wheel was built for another prefix and finds its plug-ins by this variable alone.
        wanted["OPAL_PREFIX"] = str(prefix)
    # Horovod waits for ever by default; a missing rank must become an error that names it.
    wanted["HOROVOD_STALL_CHECK_TIME_SECONDS"] = str(STALL_WARNING_SECONDS)
    wanted["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = str(STALL_SHUTDOWN_SECONDS)
    # 30 s by default, for all ranks to be there: an uneven import of TensorFlow on a busy host takes longer.
    wanted["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(GLOO_TIMEOUT_SECONDS)
    # Waiting that spins takes the core from TensorFlow's own threads: yield while MPI waits.
    wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if not Path("/proc/driver/nvidia/gpus").is_dir():
        # Between two steps Horovod's thread asks the other ranks every cycle whether there is work; what is enqueued
        # wakes it (horovod_build/mended_speed.py), so that the cycle can be long and an exchange still starts at once.
        wanted["HOROVOD_WAKE_ON_ENQUEUE"] = "1"
        wanted["HOROVOD_CYCLE_TIME"] = CYCLE_MILLISECONDS
        # Small tensors travel together; large ones are not copied into a common buffer and out of it.
        wanted["HOROVOD_FUSION_THRESHOLD"] = FUSION_BYTES
        wanted |= FAST_TENSORFLOW
    return {name: value for name, value in wanted.items() if name not in environ}


def prepare_environment() -> Identity:
    """Set ``environment_defaults`` in this process; call it before TensorFlow and Horovod are imported."""
    identity = identity_from(os.environ)
    wanted = environment_defaults(os.environ, identity, Path(sys.prefix))
    if autotune.is_on():  # what is set is not tuned
        wanted = {name: value for name, value in wanted.items() if name not in autotune.TUNED}
    os.environ.update(wanted)
    return identity


def join(stall_timeout: int | None = None, **init_arguments) -> World:
    """Start Horovod (again is harmless) and say where this process stands.

    Args:
        stall_timeout: seconds after which waiting for a missing rank becomes an error; None keeps the
            environment's value or STALL_SHUTDOWN_SECONDS.
        init_arguments: Horovod's own, such as process_sets.

    Raises:
        WorldError: the launcher's variables contradict each other, or Horovod sees another job than the
            launcher started.
    """
    if stall_timeout is not None:
        os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = str(stall_timeout)
        os.environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] = str(stall_warning_seconds(stall_timeout))
    identity = prepare_environment()
    if slurm_rendezvous.needed(os.environ, identity):  # tasks of srun, without MPI
        os.environ.update(slurm_rendezvous.meet(os.environ, identity))
    import horovod.tensorflow as hvd

    hvd.init(**init_arguments)
    if "comm" not in init_arguments:  # a communicator of one's own may well be smaller than the job
        check_agrees(identity, hvd.rank(), hvd.size())
    return World(
        rank=hvd.rank(),
        size=hvd.size(),
        local_rank=hvd.local_rank(),
        local_size=hvd.local_size(),
        cross_rank=hvd.cross_rank(),
        cross_size=hvd.cross_size(),
        host=hostname(),
        backend=_backend(hvd),
        identity=identity,
    )


def stall_warning_seconds(stall_timeout: int) -> int:
    """After how many seconds of waiting a rank is worth a warning."""
    return max(1, min(STALL_WARNING_SECONDS, stall_timeout // 2))


def rank() -> int:
    """This process's rank; ``join`` has been called."""
    import horovod.tensorflow as hvd

    return hvd.rank()


def hostname() -> str:
    """This host's name, as errors and logs give it."""
    return socket.gethostname()


def _backend(hvd) -> str:
    import tensorflow as tf

    if hvd.nccl_built() and tf.config.list_physical_devices("GPU"):
        return "NCCL"
    return "MPI" if hvd.mpi_enabled() else "Gloo"


def gather_json(value: Any, name: str) -> list[Any]:
    """Every rank's ``value`` (anything that JSON can hold), in rank order, on every rank.

    Args:
        name: the same on every rank.

    Raises:
        WorldError: a rank stands in another call than this one. (TensorFlow does not hand the names of eager
            operations to Horovod, so that any two calls would match.)
    """
    import horovod.tensorflow as hvd
    import numpy as np
    import tensorflow as tf

    global last_gathered
    last_gathered = name
    text = np.frombuffer(json.dumps([name, value]).encode(), dtype=np.uint8)
    with tf.device("/CPU:0"):
        lengths = hvd.allgather(tf.constant([len(text)], tf.int64), name=f"{name}.length").numpy()
        joined = hvd.allgather(tf.constant(text), name=name).numpy().tobytes()
    last_gathered = ""
    ends = np.cumsum(lengths)
    told = [json.loads(joined[end - length : end]) for end, length in zip(ends, lengths, strict=True)]
    stray = next((rank for rank, (theirs, _) in enumerate(told) if theirs != told[0][0]), None)
    if stray is not None:
        raise WorldError(
            f"ranks met in different places: rank {stray} in '{told[stray][0]}', rank 0 in '{told[0][0]}'",
            "a collective was left out: does every rank run the same code?",
        )
    return [theirs for _, theirs in told]


def root_json(value: Any, name: str) -> Any:
    """Rank 0's ``value`` on every rank. What the other ranks pass is not looked at."""
    import horovod.tensorflow as hvd

    return gather_json(value if hvd.rank() == 0 else None, name)[0]


def on_every_rank(act: Callable[[], T], name: str) -> T:
    """Do ``act`` here; where it fails on any rank, raise on every rank, naming the first that failed.

    For acts that can fail on one host alone (data, disk, GPU): otherwise that rank ends and the others wait.
    Only HvdMnistError and OSError are shared; anything else is a fault of the program and ends this rank.
    """
    result = failure = None
    try:
        result = act()
    except (HvdMnistError, OSError) as error:
        failure = error
    told = gather_json([type(failure).__name__, str(failure), hostname()] if failure else None, name)
    failed = [(rank, *report) for rank, report in enumerate(told) if report is not None]
    if not failed:
        return result
    rank, kind, message, host = failed[0]
    if len(told) == 1 and isinstance(failure, HvdMnistError):
        raise failure
    others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    raise getattr(errors, kind, HvdMnistError)(f"rank {rank} on {host}{others}: {message}")


def barrier(name: str = "barrier") -> None:
    """Wait until every rank is here."""
    gather_json(0, name)


def leave() -> None:
    """Meet once more, so that no rank's exit looks like a failure to another, then stop Horovod."""
    import horovod.tensorflow as hvd

    if hvd.is_initialized():
        barrier("leave")
        hvd.shutdown()
