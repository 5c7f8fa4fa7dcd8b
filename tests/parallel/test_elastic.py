"""Ranks that die, and jobs that are started again: the run ends with the weights of one that nothing happened to.

That is the account of every example: with a global batch that does not change, an example trained twice or left out,
a moment of the optimizer that was lost, or a rate of another step would show in the weights.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.parallel.ranks import BIN, ROOT, end_tree, run, train
from tests.parallel.test_training import sample_is_here, summary, weights  # noqa: F401

pytestmark = pytest.mark.timeout(600)

LAUNCH = [sys.executable, "-m", "hvd_mnist", "launch"]
# 500 steps of at least 20 ms (Horovod's cycle): time enough to kill somebody in mid-epoch.
RECIPE = ["--data", "sample", "--model", "mlp", "--epochs", "1", "--global-batch", "8", "--lr-scaling", "none",
          "--optimizer", "sgd", "--learning-rate", "0.01", "--threads", "1", "--no-tensorboard"]  # fmt: skip
SLOWLY = {"HOROVOD_CYCLE_TIME": "20", "HOROVOD_WAKE_ON_ENQUEUE": "0"}


def assert_same_weights(found: Path, expected: Path) -> None:
    for mine, theirs in zip(weights(found), weights(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=5e-6)  # sums of two halves round otherwise than one sum


def wait_for_step(folder: Path, step: int, job: subprocess.Popen) -> None:
    until = time.monotonic() + 240
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and f'"step": {step},' in metrics.read_text()):
        assert time.monotonic() < until and job.poll() is None, "the step was not reached"
        time.sleep(0.1)


def test_rank_0_is_killed_in_mid_epoch_and_the_other_goes_on(tmp_path):
    """hvd-mnist launch -np 2 --min-np 1 --host-discovery-script ./hosts.sh -- train --elastic ...

    Two names of this machine are two hosts to Horovod. Rank 0 holds the run folder; the other must take it over.
    """
    script, log = tmp_path / "hosts.sh", tmp_path / "log"
    script.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    script.chmod(0o755)
    folder = tmp_path / "run"
    elastic = ["-np", "2", "--min-np", "1", "--host-discovery-script", str(script), "--cooldown", "600", "3600"]
    words = ["train", "--elastic", "--commit-every", "15", "--log-every", "10", "--run-dir", str(folder), *RECIPE]
    environ = os.environ | SLOWLY | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:
        job = subprocess.Popen(
            [*LAUNCH, *elastic, "--", *words], env=environ, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_for_step(folder, 100, job)
        killed = int(re.search(r"rank 0 of 2, .* pid (\d+)", (folder / "logs" / "rank-0.log").read_text())[1])
        os.kill(killed, signal.SIGKILL)
        status = job.wait(240)
    finally:
        end_tree(job.pid)
    said = log.read_text()
    assert status == 0, said
    assert "went on without it: rank 0 on" in said and "(SIGKILL" in said
    found = summary(folder)
    assert (found["world_size"], found["resets"], found["steps"]) == (1, 1, 500)
    (change,) = found["changes"]
    assert (change["before"], change["world_size"]) == (2, 1) and change["step"] > 90
    assert change["samples"] == 8 * change["step"]  # whatever was not committed was put back
    assert (change["step"] - 1) % 15 == 0 and 0 <= change["lost_steps"] <= 15 + 1
    assert found["proof"]["held"] and found["proof"]["comparisons"] >= 2 * 2  # again after the reset
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    train(*RECIPE, "--run-dir", str(tmp_path / "alone")).assert_ok()
    assert_same_weights(folder, tmp_path / "alone")


def test_a_job_is_started_again_from_its_last_checkpoint(tmp_path):
    """hvd-mnist launch -np 2 --max-restarts 3 -- train ..., whose rank 1 is killed in step 7 of its first start."""
    folder, mark = tmp_path / "run", tmp_path / "was here"
    mine = f"'{mark}'-$HOROVOD_RANK"
    first_start = f'[ -e {mine} ] || {{ touch {mine}; set -- "$@" $FAULT; }}; exec "$@"'
    program = [sys.executable, "-m", "hvd_mnist", "train", *RECIPE, "--global-batch", "64", "--steps", "12"]
    words = [*program, "--checkpoint-every", "5", "--resume", "auto", "--run-dir", str(folder)]
    options = ["-np", "2", "-H", "localhost:2", "--max-restarts", "3", "--restart-delay", "0.1", "-x", "FAULT"]
    fault = "--allow-faults --inject kill:rank=1,step=7"
    ended = run([*LAUNCH, *options, "--", "sh", "-c", first_start, "sh", *words], FAULT=fault)
    ended.assert_ok()
    assert "step 5 was saved since its start: restart 1 of 3 in 0.1 s" in ended.output
    assert "resuming from step-00000005" in ended.output and "restart 2" not in ended.output
    assert summary(folder)["steps"] == 12 and summary(folder)["resumed_from_step"] == 5
