"""Facts about a machine become checks: GPUs, cores, memory, disk, data."""

from __future__ import annotations

from collections.abc import Iterator

from hvd_mnist.doctor.check import FAIL, OK, WARNING, Check
from hvd_mnist.doctor.facts import HostFacts

GIB, MIB = 1 << 30, 1 << 20
DOCKER_SHM = 64 * MIB
"""Docker's default size of /dev/shm: NCCL and Open MPI run out of it (NVIDIA/nccl#290)."""
RANK_MEMORY = GIB
"""What to have free for each rank: TensorFlow with the MNIST network and its data set (docs/doctor.md)."""
DISK_FREE = GIB
OPEN_FILES = 1024


def visible_gpus(facts: HostFacts) -> int:
    """GPUs that the mask leaves of those that nvidia-smi shows."""
    if facts.gpu_mask is None:
        return len(facts.gpus)
    wanted = [entry for entry in facts.gpu_mask.split(",") if entry.strip() not in ("", "-1")]
    return min(len(wanted), len(facts.gpus))


def gpus(facts: HostFacts, ranks: int) -> Iterator[Check]:
    if facts.gpu_error:
        state = FAIL if facts.tensorflow_cuda else WARNING
        yield Check(
            "gpus",
            state,
            f"nvidia-smi: {facts.gpu_error}",
            "mend the NVIDIA driver (after an update: reboot), until nvidia-smi works",
        )
        return
    visible = visible_gpus(facts)
    if not facts.gpus:
        if facts.tensorflow_cuda:
            yield Check(
                "gpus",
                WARNING,
                "none, though TensorFlow is built for GPUs: it trains on the CPU",
                "install the NVIDIA driver (in a container: --gpus all)",
            )
        else:
            yield Check("gpus", OK, "none: it trains on the CPU")
        return
    kinds = sorted({gpu["name"] for gpu in facts.gpus})
    found = f"{len(facts.gpus)} x {', '.join(kinds)}, driver {facts.driver}"
    if facts.gpu_mask is not None:
        found += f", {visible} left by CUDA_VISIBLE_DEVICES={facts.gpu_mask}"
    worn = [str(gpu["index"]) for gpu in facts.gpus if gpu.get("ecc_errors")]
    seen = visible if facts.tensorflow_gpus is None else facts.tensorflow_gpus
    if facts.tensorflow_cuda is False:
        yield Check(
            "gpus",
            WARNING,
            f"{found}; TensorFlow is built for CPUs and leaves them idle",
            "pip install -r requirements/gpu.txt; hvd-mnist build-horovod --gpu",
        )
    elif facts.tensorflow_cuda and seen < visible:
        yield Check(
            "gpus",
            FAIL,
            f"{found}; TensorFlow sees {seen} of {visible}",
            "pip install -r requirements/gpu.txt (CUDA libraries), and look at the driver's version",
        )
    elif visible and ranks > seen:
        yield Check(
            "gpus",
            FAIL,
            f"{found}; {ranks} ranks for {seen}: two ranks cannot share one",
            f"start at most {seen} rank{'s' * (seen > 1)} there: -np {seen}",
        )
    elif worn:
        yield Check(
            "gpus",
            WARNING,
            f"{found}; uncorrected memory errors on GPU {', '.join(worn)}",
            "reset or replace it: wrong numbers may come out",
        )
    else:
        yield Check("gpus", OK, found)


def nccl(facts: HostFacts, ranks: int) -> Iterator[Check]:
    if not (facts.tensorflow_cuda and visible_gpus(facts)):
        return
    if facts.nccl_built == 0:
        yield Check(
            "nccl",
            WARNING,
            "Horovod is built without NCCL: gradients pass through the host's memory",
            "hvd-mnist build-horovod --gpu",
        )
    elif facts.nccl_built:
        yield Check("nccl", OK, f"in Horovod; package nvidia-nccl-cu12 {facts.nccl or 'not installed'}")


def cores(facts: HostFacts, ranks: int) -> Iterator[Check]:
    if facts.cores is None:
        return
    shown = f"{facts.cores:g} core{'s' * (facts.cores != 1)} for {ranks} rank{'s' * (ranks != 1)}"
    if facts.cores < ranks:
        yield Check(
            "cores",
            WARNING,
            f"{shown}: they will wait for one another",
            f"-np {max(1, int(facts.cores))}, or give the container more cores",
        )
    else:
        yield Check("cores", OK, shown)


def memory(facts: HostFacts, ranks: int) -> Iterator[Check]:
    if facts.memory_available is None:
        return
    shown = f"{size(facts.memory_available)} free for {ranks} rank{'s' * (ranks != 1)}"
    if facts.memory_available < ranks * RANK_MEMORY:
        yield Check(
            "memory",
            WARNING,
            f"{shown}: less than {size(RANK_MEMORY)} each",
            f"fewer ranks: -np {max(1, facts.memory_available // RANK_MEMORY)}",
        )
    else:
        yield Check("memory", OK, shown)


def shared_memory(facts: HostFacts, ranks: int) -> Iterator[Check]:
    bigger = "in a container: docker run --shm-size=1g (Kubernetes: an emptyDir with medium: Memory on /dev/shm)"
    if facts.shm_size is None:
        yield Check("shared memory", WARNING, "no /dev/shm: MPI and NCCL use it between ranks of a host", bigger)
        return
    shown = f"/dev/shm {size(facts.shm_size)}, {size(facts.shm_free or 0)} free"
    if facts.shm_size <= DOCKER_SHM:
        yield Check("shared memory", WARNING, f"{shown}: Docker's default, too small for NCCL", bigger)
    elif (facts.shm_free or 0) < DOCKER_SHM:
        yield Check(
            "shared memory", WARNING, f"{shown}: nearly full", "remove what dead jobs left there: ls -la /dev/shm"
        )
    else:
        yield Check("shared memory", OK, shown)


def folder(facts: HostFacts, ranks: int) -> Iterator[Check]:
    if facts.folder_error:
        yield Check(
            "disk",
            WARNING,
            f"{facts.folder}: {facts.folder_error}",
            "start from a folder that all hosts have and that can be written, or give --run-dir",
        )
    elif facts.disk_free is not None and facts.disk_free < DISK_FREE:
        yield Check(
            "disk",
            WARNING,
            f"{size(facts.disk_free)} free in {facts.folder}: checkpoints may not fit",
            "make room, or give --run-dir on another disk",
        )
    elif facts.disk_free is not None:
        yield Check("disk", OK, f"{size(facts.disk_free)} free in {facts.folder}")


def open_files(facts: HostFacts, ranks: int) -> Iterator[Check]:
    if facts.open_files is None:
        return
    if 0 <= facts.open_files < OPEN_FILES:
        yield Check(
            "open files", WARNING, f"{facts.open_files} at most: connections of many ranks need more", "ulimit -n 4096"
        )
    else:
        yield Check("open files", OK, "no limit" if facts.open_files < 0 else f"{facts.open_files} at most")


def data(facts: HostFacts, ranks: int) -> Iterator[Check]:
    if facts.data_error:
        where = f" in the cache: {facts.data}" if facts.data else ""
        yield Check("data", WARNING, f"mnist{where}: {facts.data_error}", "hvd-mnist data fetch mnist")
    elif facts.data:
        yield Check("data", OK, f"mnist, sha256 right: {facts.data}")


def size(count: int) -> str:
    """``3.2 GiB``, ``64 MiB``."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
