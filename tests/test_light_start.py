"""Commands that must start at once, and where TensorFlow cannot be imported, import nothing heavy.

Counted in modules, not in seconds: a shared machine's clock proves nothing. With these imports `hvd-mnist --help` takes
about 0.2 s of CPU (docs/performance.md).
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"tensorflow", "keras", "horovod", "mpi4py", "numpy", "h5py", "matplotlib", "rich", "jinja2", "yaml", "pooch"}


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("hosts", "--help"),
        ("hosts", "expand", "h[1-4]:4"),
        ("hosts", "check", "hostfiles/openmpi"),
        ("whoami",),
        ("launch", "-np", "2", "-H", "localhost:2", "--dry-run", "--", "true"),
        ("doctor", "--help"),
        ("train", "--help"),
        ("explain", "201"),
        ("baseline", "--help"),
        ("baseline", "parameter-server", "--help"),
        ("bench", "--help"),
    ],
    ids=" ".join,
)
def test_imports(words):
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "hvd_mnist", *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert told.returncode == 0, told.stderr[-2000:]
    imported = {name.split(".")[0] for name in re.findall(r"^import time:.*\| +(\S+)$", told.stderr, re.M)}
    assert "click" in imported and not imported & HEAVY
