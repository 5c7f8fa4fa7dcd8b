"""horovodrun, as our build makes it: it knows what Horovod was built with, and does not import TensorFlow to ask."""

import sys

import pytest

from tests.parallel.ranks import run

COMPARE = """
import horovod.tensorflow as hvd
from horovod.common import util
for carrier in ("gloo", "mpi", "nccl"):
    noted, real = util._built_with(carrier), bool(getattr(hvd, f"{carrier}_built")())
    assert noted is real, (carrier, noted, real)
    assert getattr(util, f"{carrier}_built")() is real
print("NOTED-RIGHT")
"""


@pytest.mark.parametrize("launcher", ["gloo", "mpi"])
def test_ranks_start_without_tensorflow_in_the_launcher(launcher, tmp_path):
    package = tmp_path / "tensorflow"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\nraise ImportError\n")
    ended = run(["echo", "RANK-RAN"], launcher=launcher, np=2, PYTHONPATH=tmp_path)
    ended.assert_ok()
    assert ended.output.count("RANK-RAN") == 2
    assert not (tmp_path / "imported").exists()


def test_what_is_noted_is_what_was_built():
    ended = run([sys.executable, "-c", COMPARE])
    ended.assert_ok()
    assert "NOTED-RIGHT" in ended.output
