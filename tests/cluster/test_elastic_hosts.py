"""Hosts that die and hosts that join, over real ssh; docs/elastic.md."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
HVD_MNIST = [sys.executable, "-m", "hvd_mnist"]
RECIPE = ["--data", "sample", "--model", "mlp", "--epochs", "1", "--global-batch", "8", "--lr-scaling", "none",
          "--optimizer", "sgd", "--learning-rate", "0.01", "--threads", "1", "--no-tensorboard"]  # fmt: skip
LOAD = (
    "import sys; sys.modules['horovod'] = None\n"
    "import keras, numpy as np\n"
    "models = [keras.saving.load_model(f'{run}/checkpoints/step-00000500/model.keras') for run in sys.argv[2:]]\n"
    "values = [[np.asarray(v) for v in [*m.trainable_variables, *m.optimizer.variables]] for m in models]\n"
    "worst = max(float(np.abs(a.astype(float) - b.astype(float)).max()) for a, b in zip(*values, strict=True))\n"
    "open(sys.argv[1], 'w').write(repr(worst))"
)


def test_a_host_dies_in_mid_epoch_and_another_joins(make_hosts, tmp_path, monkeypatch):
    """hvd-mnist launch -np 2 --min-np 1 --max-np 2 --host-discovery-script ./hosts.sh -- train --elastic ..."""
    from hvd_mnist.data import sources

    sources.load("sample")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HVD_MNIST_CACHE", str(sources.cache_folder().parent))
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "20")  # a step takes as long at least
    monkeypatch.setenv("HOROVOD_WAKE_ON_ENQUEUE", "0")
    hosts = make_hosts({"host1": 1, "host2": 1, "host3": 1})
    there, script, folder = tmp_path / "hosts", tmp_path / "hosts.sh", tmp_path / "run"
    there.write_text("host1:1\nhost2:1\n")
    script.write_text(f"#!/bin/sh\ncat '{there}'\n")
    script.chmod(0o755)
    options = ["-np", "2", "--min-np", "1", "--max-np", "2", "--host-discovery-script", script]
    train = ["train", "--elastic", "--commit-every", "15", "--log-every", "10", "--run-dir", folder, *RECIPE]
    job = hosts.start("host1", [*HVD_MNIST, "launch", *options, "--", *train], cwd=tmp_path)
    wait_for(folder, job, '"step": 100,')
    hosts.power_off("host2")
    wait_for(folder, job, '"kind": "reset"')
    there.write_text("host1:1\nhost3:1\n")
    done = job.wait(300).checked()

    found = json.loads((folder / "summary.json").read_text())
    assert (found["world_size"], found["resets"], found["steps"]) == (2, 2, 500)
    assert [rank["host"] for rank in found["ranks"]] == ["host1", "host3"]
    lost, joined = found["changes"]
    assert (lost["before"], lost["world_size"]) == (2, 1) and 0 <= lost["lost_steps"] <= 16
    assert (joined["before"], joined["world_size"], joined["lost_steps"]) == (1, 2, 0)
    assert found["proof"]["held"] and found["proof"]["comparisons"] == 3 + 2  # each first step, epoch, save
    assert "2 ranks became 1" in done.stdout and "1 rank became 2" in done.stdout

    # Nothing happened to this one. Each example as often, each rate at its step: the same weights.
    alone = [*HVD_MNIST, "train", *RECIPE, "--run-dir", tmp_path / "alone"]
    hosts.run("host1", alone, 200, cwd=tmp_path, env={"HOROVOD_CYCLE_TIME": "1"}).checked()
    hosts.run("host1", [sys.executable, "-c", LOAD, tmp_path / "worst", folder, tmp_path / "alone"], 120).checked()
    assert float((tmp_path / "worst").read_text()) < 5e-6


def wait_for(folder: Path, job, text: str) -> None:
    until = time.monotonic() + 200
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and text in metrics.read_text()):
        assert time.monotonic() < until and job.process.poll() is None, f"no {text}\n{job.stdout}{job.stderr}"
        time.sleep(0.1)
