"""Which GPU is mine, and how many cores are mine? Pure answers first, then the two calls that act on them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from hvd_mnist.errors import EnvironmentUnfit


def gpu_index(visible: int, local_rank: int, local_size: int, mask: str | None, host: str) -> int | None:
    """Index, among the GPUs that this process can see, of the one it trains on.

    Args:
        visible: how many GPUs TensorFlow sees in this process.
        local_rank, local_size: this rank's place on its host.
        mask: CUDA_VISIBLE_DEVICES, or None where it is not set.
        host: name used in the error.

    Returns:
        None where there is no GPU. Index 0 where the mask leaves exactly one GPU (a scheduler has already
        given each rank its own). Otherwise ``local_rank``.

    Raises:
        EnvironmentUnfit: the host has fewer GPUs than ranks; two ranks on one GPU would train at half speed
            or run out of memory.
    """
    if visible == 0:
        return None
    if visible == 1 and mask is not None:
        return 0
    if local_size > visible:
        shown = f"CUDA_VISIBLE_DEVICES={mask}" if mask is not None else "CUDA_VISIBLE_DEVICES not set"
        raise EnvironmentUnfit(
            f"host {host}: {local_size} ranks but {visible} visible GPU{'s' if visible > 1 else ''} "
            f"({shown}); local rank {local_rank} has none",
            f"start {visible} rank{'s' if visible > 1 else ''} there, as in -H {host}:{visible}",
        )
    return local_rank


def ranks_on_one_gpu(claims: Iterable[tuple[int, str, str]]) -> str | None:
    """One line naming the ranks that claim the same GPU, or None.

    Args:
        claims: (rank, host, GPU id) of every rank that trains on a GPU. The id is one entry of the mask or
            a plain index; under Slurm, which renumbers GPUs per task, pass a unique id or leave it out.
    """
    count = Counter((host, gpu) for _, host, gpu in claims)
    for (host, gpu), ranks in count.items():
        if ranks > 1:
            who = ", ".join(str(rank) for rank, *place in claims if tuple(place) == (host, gpu))
            return f"host {host}: ranks {who} all claim GPU {gpu}; each needs its own"
    return None


def threads_per_rank(mine: int, launcher: int, local_size: int, quota: float | None) -> int:
    """Compute threads for this rank so that the ranks of one host together fill its cores once.

    Args:
        mine: cores that this process may run on (a launcher may have bound it).
        launcher: cores that its parent may run on: what the whole job has on this host.
        local_size: ranks on this host.
        quota: CPU limit of the control group in cores, or None.
    """
    share = min(mine, max(launcher, mine) // local_size)
    if quota is not None:
        share = min(share, int(quota // local_size))
    return max(1, share)


def cgroup_cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPU limit of this container in cores (control groups 2, else 1), or None where there is none."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit = int((root / "cpu/cpu.cfs_quota_us").read_text())
        period = int((root / "cpu/cpu.cfs_period_us").read_text())
        return limit / period if limit > 0 else None
    except (OSError, ValueError):
        return None


def my_threads(local_size: int) -> int:
    """``threads_per_rank`` for this process as it was started."""
    mine = os.sched_getaffinity(0)
    try:
        launcher = os.sched_getaffinity(os.getppid())
    except OSError:  # the parent may already be gone, or belong to somebody else
        launcher = mine
    return threads_per_rank(len(mine), len(launcher), local_size, cgroup_cpu_quota())


def pin(local_rank: int, local_size: int, host: str, threads: int) -> int | None:
    """Make one GPU visible to TensorFlow (memory growing as needed) and set its thread pools.

    Returns the index of the GPU, None on a CPU. Must run before TensorFlow touches a device.
    """
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(min(threads, 2))
        gpus = tf.config.list_physical_devices("GPU")
        index = gpu_index(len(gpus), local_rank, local_size, os.environ.get("CUDA_VISIBLE_DEVICES"), host)
        if index is not None:
            tf.config.set_visible_devices(gpus[index], "GPU")
            tf.config.experimental.set_memory_growth(gpus[index], True)
    except RuntimeError as late:  # "... after being initialized"
        raise EnvironmentUnfit(
            f"TensorFlow used a device before its GPU was chosen ({late})",
            "pin the GPU before any other TensorFlow call",
        ) from None
    return index
