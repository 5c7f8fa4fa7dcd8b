"""``hvd-mnist whoami`` in ranks that a real launcher started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LAUNCHER_VARIABLES = ("HOROVOD_", "OMPI_", "PMI_", "PMIX_", "MPI_", "MV2_", "SLURM_")

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_whoami_under_a_real_launcher(launcher):
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which(launcher, path=path)
    if not program:
        pytest.skip(f"no {launcher}")
    words = [program, "--gloo"] if launcher == "horovodrun" else [program, "--oversubscribe"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    environ |= {"PATH": path, "PYTHONPATH": str(ROOT)}
    environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [*words, "-np", "2", sys.executable, "-m", "hvd_mnist", "whoami", "--json"],
        capture_output=True,
        text=True,
        env=environ,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if "{" in line]
    assert sorted((each["rank"], each["size"], each["local_rank"], each["local_size"]) for each in said) == [
        (0, 2, 0, 2),
        (1, 2, 1, 2),
    ]
    assert {each["launcher"] for each in said} == {"openmpi" if launcher == "mpirun" else "horovodrun-gloo"}
