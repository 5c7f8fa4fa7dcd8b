"""Types as somebody's editor sees them: right uses pass strict mypy, and wrong ones are found where they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

SETTINGS = """\
[mypy]
strict = True
[mypy-tensorflow.*,keras.*,horovod.*,numpy.*,rich.*]
follow_imports = skip
follow_imports_for_stubs = True
"""
SCRIPT = """\
import hvd_mnist
import hvd_mnist.keras as hvd
import hvd_mnist.tensorflow as hvd_tf
from hvd_mnist.cluster.hostfile import read_hostfile
from hvd_mnist.config import TrainConfig
from hvd_mnist.errors import HostFileError


def train(epochs: int) -> float:
    hvd.init()
    hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1)
    with hvd_tf.DistributedGradientTape(object()) as tape:
        tape.register_local_source(object())
    return 0.5 * epochs


losses: list[float] = hvd_mnist.run(train, [2], np=2)
TrainConfig(epochs=2, data="sample")
try:
    first: str = read_hostfile("hosts").hosts[0].name
except HostFileError as error:
    where: int = error.line

hvd_mnist.run(train, np="two")  # wrong
names: list[str] = hvd_mnist.run(train, np=2)  # wrong
TrainConfig(epoch=2)  # wrong
TrainConfig(epochs="two")  # wrong
hvd.DistributedOptimizer(object(), backward_passes=2)  # wrong
hvd.callbacks.LearningRateWarmupCallback(0.1, verbose="yes")  # wrong
hvd.barriers()  # wrong
hvd.elastic.run(3)  # wrong
"""


def test_script_of_a_user(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, env={**os.environ, "MYPYPATH": str(ROOT)},
    )  # fmt: skip
    found = [int(number) for number in re.findall(r"^script\.py:(\d+): error:", done.stdout, re.M)]
    wrong = [number for number, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# wrong")]
    assert sorted(set(found)) == wrong, done.stdout
