"""A Slurm job that is told to stop saves, and is put back into the queue by scontrol."""

from __future__ import annotations

import re
import time

import pytest
from pretended_hosts import job_environment
from test_launch_slurm import LAUNCH, environment  # noqa: F401

pytestmark = pytest.mark.timeout(400)
TRAIN = ["train", "--data", "sample", "--model", "mlp", "--batch-size", "16", "--steps", "100000", "--log-every", "1"]


def test_a_job_that_is_told_to_stop_is_saved_and_queued_again(slurm, tmp_path):
    """What --signal=USR1@120 sends, sent by scancel: to the tasks of the step, not to the batch script."""
    run = tmp_path / "run"
    words = [*LAUNCH, "--launcher", "srun", "--", *TRAIN, "--requeue", "--resume", "auto", "--run-dir", str(run)]
    (tmp_path / "job.sh").write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --requeue\n{' '.join(words)}\n"
    )
    submit = ["sbatch", "--parsable", f"--output={tmp_path / 'job.out'}", "--open-mode=append", tmp_path / "job.sh"]
    job = slurm.run(submit, 30, cwd=tmp_path, env=job_environment({})).checked().stdout.strip()
    metrics, until = run / "metrics.jsonl", time.monotonic() + 200
    while not (metrics.exists() and '"kind": "step"' in metrics.read_text()):
        assert time.monotonic() < until, (tmp_path / "job.out").read_text()[-3000:]
        time.sleep(0.2)
    slurm.run(["scancel", "--signal=USR1", job], 20).checked()
    while True:
        shown = slurm.run(["scontrol", "--oneliner", "show", "job", job], 20).checked().stdout
        if re.search(r"Restarts=1\b", shown):
            break
        assert time.monotonic() < until, shown + (tmp_path / "job.out").read_text()[-3000:]
        time.sleep(0.2)
    slurm.cancel_all()
    logged = (run / "logs" / "rank-0.log").read_text()
    assert len(list((run / "checkpoints").glob("step-*"))) == 1, logged[-2000:]
