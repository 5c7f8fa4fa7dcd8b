"""Looks at this host and fills a ``HostFacts``. Nothing is judged here; nothing waits without a limit.

Works with the standard library alone: where a package of ours is missing, what it would have told stays empty.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import ipaddress
import json
import mmap
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from hvd_mnist import __version__
from hvd_mnist.cluster.identity import identity_from
from hvd_mnist.doctor import stack
from hvd_mnist.doctor.facts import HostFacts
from hvd_mnist.errors import HvdMnistError

PROGRAM_LIMIT = 20.0  # seconds for nvidia-smi or mpirun --version; a broken driver can make the first one hang
PACKAGES = ("click", "filelock", "hostlist", "jinja2", "mpi4py", "numpy", "pooch", "psutil", "rich", "yaml")
ROOT = Path(__file__).parent.parent
GPU_QUERY = "index,name,memory.total,driver_version,ecc.errors.uncorrected.volatile.total"


def gather(folder: str | None = None, imports: bool = True, limit: float = stack.IMPORT_LIMIT) -> HostFacts:
    """Facts of this host.

    Args:
        folder: where training would run; None is the current folder.
        imports: also import TensorFlow and Horovod, in a child process.
        limit: seconds for that.
    """
    found: dict[str, object] = {
        "hostname": socket.gethostname(),
        "platform": f"{platform.machine()}, Linux {platform.release()}",
        "python": platform.python_version(),
        "executable": sys.executable,
        "hvd_mnist": __version__,
        "code": code_hash(ROOT),
        "missing_packages": tuple(name for name in PACKAGES if not has_module(name)),
        "cores": usable_cores(),
        "memory_available": memory_available(),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "interfaces": interfaces(),
        "nccl": version_of("nvidia-nccl-cu12"),
    }
    for part in (versions(), horovod_files(), launchers(), gpus(), shared_memory(), disk(folder), data_set(), job()):
        found.update(part)
    if imports:
        loaded = stack.look_at_imports(limit)
        found.update({name: value for name, value in loaded.items() if value is not None})
    return HostFacts(**found)


def code_hash(root: Path) -> str:
    """12 hexadecimal digits that differ where a source file of this package differs."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in ("*.py", "*.h") for path in root.rglob(pattern)):
        with contextlib.suppress(OSError):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def version_of(*distributions: str) -> str | None:
    """The version of the first of these packages that is installed."""
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def versions() -> dict[str, object]:
    names = [n for n in ("tensorflow-cpu", "tensorflow", "tf-nightly-cpu", "tf-nightly") if version_of(n)]
    return {
        "tensorflow": version_of(*names),
        "tensorflow_package": " and ".join(names) or None,
        "keras": version_of("keras"),
        "horovod": version_of("horovod"),
    }


def horovod_files() -> dict[str, object]:
    """What Horovod's files say of its build: for which TensorFlow, against which MPI library, by our build or not."""
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("horovod")
    if spec is None or not spec.origin:
        return {}
    folder = Path(spec.origin).parent
    found: dict[str, object] = {}
    with contextlib.suppress(OSError, ValueError):
        found["horovod_built_for"] = json.loads((folder / "metadata.json").read_text()).get("tensorflow")
    library = folder / "tensorflow" / f"mpi_lib{sysconfig.get_config_var('EXT_SUFFIX')}"
    with contextlib.suppress(OSError, ValueError), library.open("rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            needed = re.search(rb"\0(lib(?:mpi|mpich|mpi_cray)\.so\.\d+)\0", content)
            found["horovod_mpi_library"] = needed.group(1).decode() if needed else None
    with contextlib.suppress(Exception):  # click or psutil may be missing here
        from hvd_mnist.horovod_build.build import installed_build

        found["horovod_build"] = installed_build()
    return found


def output_of(*command: str) -> tuple[int | None, str]:
    """(status, what it printed); status None where it is not there, does not run, or ran past its limit."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PROGRAM_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {PROGRAM_LIMIT:.0f} s"
    except OSError as wrong:
        return None, str(wrong.strerror)
    return done.returncode, done.stdout.strip()


def find_program(name: str) -> str | None:
    """A program of this Python's environment, else of PATH (over ssh, PATH lacks the environment)."""
    own = Path(sysconfig.get_path("scripts")) / name
    return str(own) if os.access(own, os.X_OK) else shutil.which(name)


def launchers() -> dict[str, object]:
    mpirun = shutil.which("mpirun") or find_program("mpirun")
    said = ""
    if mpirun:
        status, said = output_of(mpirun, "--version")
        said = "\n".join(said.splitlines()[:12]) if status == 0 else f"error: {said[:200]}"
    return {"mpirun": mpirun, "mpirun_version": said, "horovodrun": find_program("horovodrun")}


def job() -> dict[str, object]:
    """Whether the variables of a launcher that are set here make sense."""
    try:
        me = identity_from(os.environ)
    except HvdMnistError as wrong:
        return {"launcher_error": str(wrong)}
    notes = list(me.notes) if me.launcher != "none" else []
    gloo = [os.environ.get(f"HOROVOD_{name}", "") for name in ("CONTROLLER", "CPU_OPERATIONS")]
    if "gloo" in (name.lower() for name in gloo) and gloo[0].lower() != gloo[1].lower():
        notes.append("HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS: one is gloo and the other is not; set both")
    return {"launcher": str(me) if me.launcher != "none" else "none", "launcher_notes": tuple(notes)}


def gpus() -> dict[str, object]:
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {"gpu_mask": mask}
    status, said = output_of(tool, f"--query-gpu={GPU_QUERY}", "--format=csv,noheader,nounits")
    if status != 0:
        return {"gpu_mask": mask, "gpu_error": " ".join(said.split())[:300] or f"status {status}"}
    cards, driver = parse_gpus(said)
    return {"gpu_mask": mask, "gpus": cards, "driver": driver}


def parse_gpus(text: str) -> tuple[tuple[dict, ...], str | None]:
    """GPUs and the driver's version from nvidia-smi's answer to ``GPU_QUERY``; memory in MiB."""
    cards, driver = [], None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 5 or not cells[0].isdigit():
            continue  # "No devices were found"
        number = [int(cell) if cell.isdigit() else None for cell in cells]
        cards.append({"index": number[0], "name": cells[1], "memory_mib": number[2], "ecc_errors": number[4]})
        driver = cells[3]
    return tuple(cards), driver


def usable_cores() -> float:
    """Cores that this process may use: its affinity, and the limit of its container."""
    from hvd_mnist.runtime.devices import cgroup_cpu_quota

    allowed = len(os.sched_getaffinity(0))
    quota = cgroup_cpu_quota()
    return allowed if quota is None else min(allowed, quota)


def memory_available(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that can be had before this machine, or this container, is out of memory."""
    found = []
    with contextlib.suppress(OSError):
        if line := re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE):
            found.append(int(line.group(1)) * 1024)
    for most, used in (("memory.max", "memory.current"),
                       ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):  # fmt: skip
        with contextlib.suppress(OSError, ValueError):
            found.append(int((cgroup / most).read_text()) - int((cgroup / used).read_text()))
    return max(0, min(found)) if found else None


def shared_memory(place: str = "/dev/shm") -> dict[str, object]:
    try:
        system = os.statvfs(place)
    except OSError:
        return {}
    return {"shm_size": system.f_blocks * system.f_frsize, "shm_free": system.f_bavail * system.f_frsize}


def disk(folder: str | None) -> dict[str, object]:
    place = Path(folder or os.getcwd())
    try:
        system = os.statvfs(place)
    except OSError as wrong:
        return {"folder": str(place), "folder_error": f"{wrong.strerror}"}
    writable = os.access(place, os.W_OK | os.X_OK)
    error = None if writable else "no permission to write"
    return {"folder": str(place), "folder_error": error, "disk_free": system.f_bavail * system.f_frsize}


def data_set(name: str = "mnist") -> dict[str, object]:
    try:
        from hvd_mnist.data import sources

        return {"data": str(sources.cached_path(name)), "data_error": sources.wrong_with_cached(name) or None}
    except ImportError as wrong:
        return {"data_error": f"cannot be looked at: {wrong}"}


def interfaces() -> tuple[dict, ...]:
    """IPv4 addresses of interfaces that are up: name "eth0", address "10.0.0.1", network "10.0.0.0/24"."""
    try:
        import psutil
    except ImportError:
        return ()
    found = []
    up = psutil.net_if_stats()
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        for each in addresses:
            if each.family == socket.AF_INET and each.netmask and name in up and up[name].isup:
                network = ipaddress.IPv4Network(f"{each.address}/{each.netmask}", strict=False)
                found.append({"name": name, "address": each.address, "network": str(network)})
    return tuple(found)
