"""How Horovod 0.28.1 is compiled against TensorFlow 2.21: pure functions from what is here to what is run.

Four things stand between that source archive and that TensorFlow (docs/building.md tells them at length):

1. one header moved inside XLA            -> a forwarding header under the old name, in ``compat/``
2. two headers that TensorFlow includes   -> they ship inside TensorFlow, in folders not on its include path
3. one function left TensorFlow (GPU)     -> ``compat/gpu_stream_value.h``, force-included
4. libraries are found by absolute path   -> a run path relative to the wheel, so that it can move to any venv
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from hvd_mnist.horovod_build.mends import mends_hash
from hvd_mnist.horovod_build.stack import Stack

# The newest Horovod there is; it comes as source only. The hash is of the archive on PyPI.
HOROVOD_VERSION = "0.28.1"
SDIST_NAME = f"horovod-{HOROVOD_VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

COMPAT = Path(__file__).parent / "compat"

# Of the caller's environment these would change the build without being in its cache key, or break it:
# a `make` above us hands down a job server in MAKEFLAGS that Horovod's own `cmake --build` cannot use.
NOT_PASSED_ON = {
    "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "CMAKE_GENERATOR", "CMAKE_BUILD_PARALLEL_LEVEL", "DESTDIR",
    "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CUDAFLAGS",
    "CUDACXX", "CUDAHOSTCXX", "PIP_REQUIRE_HASHES", "PIP_CONSTRAINT", "PIP_TARGET", "PIP_PREFIX", "PIP_USER",
}  # fmt: skip
MEMORY_PER_JOB = 2 * 2**30  # bytes: xla_mpi_ops.cc, the largest, was seen at 2.0 GB


def headers_hash(folder: Path = COMPAT) -> str:
    """sha256 over names and contents of the compatibility headers, as 64 hex digits."""
    digest = hashlib.sha256()
    for header in sorted(folder.rglob("*.h")):
        digest.update(header.relative_to(folder).as_posix().encode() + b"\0" + header.read_bytes() + b"\0")
    return digest.hexdigest()


def ingredients(stack: Stack) -> dict[str, str]:
    """Everything that goes into the wheel, by name. Two builds with equal ingredients are the same build."""
    return {
        "Horovod": HOROVOD_VERSION,
        "TensorFlow": f"{stack.tensorflow_package} {stack.tensorflow_version}",
        "Python": stack.python_abi,
        "platform": stack.platform,
        "CPU": stack.cpu,
        "MPI": stack.mpi,
        "GPU": f"NCCL {stack.nccl_version}, CUDA {stack.cuda_version}" if stack.gpu else "no",
        "compiler": stack.compiler,
        "headers": headers_hash()[:16],
        "mends": mends_hash()[:16],
        "sdist": SDIST_SHA256[:16],
    }


def cache_key(parts: Mapping[str, str]) -> str:
    """Folder name for one build: readable in front, exact behind (``tensorflow-cpu-2.21.0-cp311-1a2b3c...``)."""
    digest = hashlib.sha256("\n".join(f"{name}={parts[name]}" for name in sorted(parts)).encode()).hexdigest()
    readable = parts["TensorFlow"].replace(" ", "-")
    return f"{readable}-{parts['Python']}{'-gpu' if parts['GPU'] != 'no' else ''}-{digest[:16]}"


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Which ingredients of an earlier build are not those of now, as ``TensorFlow: 2.20.0 then, 2.21.0 now``.

    A machine whose compiler was removed after the build is no reason to build again.
    """
    names = [name for name in new if not (name == "compiler" and not new[name])]
    return [
        f"{name}: {old.get(name) or 'not recorded'} then, {new[name]} now"
        for name in names
        if old.get(name) != new[name]
    ]


def parallel_jobs(cores: int, memory_bytes: int) -> int:
    """How many compilers to run at once: one a core, as long as each has 2 GiB; at least one."""
    return max(1, min(cores, memory_bytes // MEMORY_PER_JOB))


def run_path(stack: Stack) -> list[str]:
    """Where Horovod's library looks for TensorFlow, MPI and NCCL, relative to itself where they move with it.

    Left alone, CMake writes the absolute folders of the venv that built the wheel, and the same wheel in
    another venv then loads the first one's MPI, or none.
    """
    to_site = "$ORIGIN/../.."  # <site-packages>/horovod/tensorflow/mpi_lib.so
    paths = [f"{to_site}/tensorflow"]
    if stack.mpi_libraries and stack.mpi_libraries.is_relative_to(stack.prefix):
        paths.append(f"{to_site}/{os.path.relpath(stack.mpi_libraries, stack.site_packages)}")
    elif stack.mpi_libraries:
        paths.append(str(stack.mpi_libraries))
    if stack.gpu:
        paths.append(f"{to_site}/nvidia/nccl/lib")
    return paths


def cmake_wrapper(cmake: Path, stack: Stack) -> str:
    """A shell script to stand as ``HOROVOD_CMAKE``: CMake with our run path added when it configures."""
    options = ["-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", f"-DCMAKE_INSTALL_RPATH={';'.join(run_path(stack))}"]
    return (
        "#!/bin/sh\n"
        f'case "$1" in --*) exec {shlex.quote(str(cmake))} "$@" ;; esac\n'
        f'exec {shlex.quote(str(cmake))} "$@" {" ".join(map(shlex.quote, options))}\n'
    )


def environment(base: Mapping[str, str], stack: Stack, jobs: int, wrapper: Path, nccl_links: Path) -> dict[str, str]:
    """The whole environment of the build.

    Args:
        base: the caller's environment; its ``HOROVOD_*`` and the names in NOT_PASSED_ON are dropped.
        stack: what is installed here.
        jobs: compilers at once.
        wrapper: the script of ``cmake_wrapper``.
        nccl_links: folder that holds ``libnccl.so`` (GPU build only).
    """
    env = {name: value for name, value in base.items() if name not in NOT_PASSED_ON and not name.startswith("HOROVOD_")}
    path = [str(stack.scripts), base.get("PATH", os.defpath)]
    bundled = stack.tensorflow_include / "external"
    env |= {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_CMAKE": str(wrapper),
        # Searched after -isystem: supplies a header that is missing, overrides none.
        "CPLUS_INCLUDE_PATH": ":".join(
            map(str, [COMPAT, bundled / "highwayhash", bundled / "farmhash_archive" / "src"])
        ),
        "MAKEFLAGS": f"-j{jobs}",  # without it Horovod's setup.py says -j8, whatever the machine
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "LC_ALL": "C",  # the table of causes reads English
    }
    if stack.gpu:
        path.insert(0, str(stack.cuda_home / "bin"))  # Horovod asks the nvcc on PATH for its flags first
        env |= {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_CUDA_HOME": str(stack.cuda_home),
            "HOROVOD_NCCL_INCLUDE": str(stack.nccl_home / "include"),
            "HOROVOD_NCCL_LIB": str(nccl_links),
            "HOROVOD_NCCL_LINK": "SHARED",
            "CXXFLAGS": f"-include {shlex.quote(str(COMPAT / 'gpu_stream_value.h'))}",
        }
    env["PATH"] = os.pathsep.join(path)
    return env
