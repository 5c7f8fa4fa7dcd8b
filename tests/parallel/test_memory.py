"""What a rank's memory is told to be; and that nobody trains on a file that somebody spoils."""

import json
import os
import shutil
import sys
import time

import pytest

from hvd_mnist.bench import memory
from hvd_mnist.data import sources
from tests.parallel.ranks import run, started

pytestmark = pytest.mark.timeout(700)


@pytest.fixture(scope="module")
def sample():
    run([sys.executable, "-m", "hvd_mnist", "data", "fetch", "sample"], timeout=300).assert_ok()
    return sources.cached_path("sample")


def test_each_act_of_the_trainer_is_told(sample, tmp_path):
    words = ("--data", "sample", "--model", "mlp", "--steps", "2", "--run-dir", str(tmp_path / "run"))
    ended = run([sys.executable, "-m", "hvd_mnist.bench.memory", *words])
    ended.assert_ok()
    rows = json.loads(ended.output[ended.output.index('{\n "rows"') :])["rows"]
    acts = [
        "Python",
        "import TensorFlow and Keras",
        "import Horovod and the trainer",
        *(act for act, _, _ in memory.ACTS),
    ]
    assert [row["act"] for row in rows] == [*acts, "end"]
    assert all(row["private"] <= row["resident"] <= row["most"] for row in rows)
    assert rows[1]["resident"] > rows[0]["resident"] + 100  # TensorFlow


def overwrite(file):
    with file.open("r+b") as opened:
        opened.seek(os.path.getsize(file) // 2)  # in the training images, which are four fifths of it
        opened.write(bytes(range(256)))


def cut_short(file):
    os.truncate(file, os.path.getsize(file) // 2)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (overwrite, ("{file} on ", "was written into while it was trained on (")),
        (cut_short, ("{file}: cut short while it was trained on (",)),
    ],
    ids=["written into", "cut short"],
)
def test_a_cached_file_that_is_spoiled_ends_the_job_in_one_line(harm, says, sample, tmp_path):
    file, folder = tmp_path / "cache" / "data" / "sample.npz", tmp_path / "run"
    file.parent.mkdir(parents=True)
    shutil.copy(sample, file)
    train = [sys.executable, "-m", "hvd_mnist", "train", "--data", "sample", "--model", "mlp", "--epochs", "1000"]
    options = ["--no-tensorboard", "--log-every", "1", "--run-dir", str(folder)]
    with started([*train, *options], launcher="gloo", np=2, HVD_MNIST_CACHE=file.parents[1]) as job:
        metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 400
        while not (metrics.exists() and '"kind": "step"' in metrics.read_text()):
            assert time.monotonic() < deadline and job.poll() is None
            time.sleep(0.05)
        harm(file)
        output, _ = job.communicate(timeout=200)
    assert job.returncode != 0
    for said in says:
        assert said.format(file=file) in output, output[-3000:]
    assert "Traceback" not in output.split("while it was trained on")[0]
    assert '"kind": "checkpoint"' in metrics.read_text() or not list((folder / "checkpoints").glob("step-*"))
