"""Which MPI an ``mpirun --version`` text is of, and which library file each family's programs are linked with."""

from __future__ import annotations

import re

# Open MPI 4 and 5 share libmpi.so.40; MPICH, Intel MPI and MVAPICH2 share the ABI of libmpi.so.12.
MPI_LIBRARIES = {
    "openmpi": ("libmpi.so.40", "libmpi.so.20"),
    "mpich": ("libmpi.so.12", "libmpich.so"),
    "intel": ("libmpi.so.12", "libmpich.so"),
    "mvapich2": ("libmpi.so.12", "libmpich.so"),
    "spectrum": ("libmpi_ibm.so",),
}


def family_and_version(text: str) -> tuple[str, str]:
    """("openmpi", "4.1.8") of ``mpirun --version``; ("unknown", "") for anything else."""
    patterns = {
        "spectrum": r"IBM Spectrum MPI\)?\s+([\d.]+)",
        "openmpi": r"(?:Open MPI|OpenRTE)\)?\s+v?([\d.]+\w*)",
        "intel": r"Intel\(R\) MPI Library[^\n]*?Version ([\d.]+)",
        "mpich": r"HYDRA build details:\s*Version:\s+([\w.]+)",
    }
    for family, pattern in patterns.items():
        if found := re.search(pattern, text):
            return family, found.group(1)
    return "unknown", ""
