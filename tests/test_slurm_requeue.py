"""scontrol requeue, asked of a script that stands in for it."""

import pytest

from hvd_mnist.config import TrainConfig
from hvd_mnist.errors import EnvironmentUnfit, UsageError
from hvd_mnist.runtime.slurm_requeue import check, requeue

JOB = {"SLURM_JOB_ID": "17"}


def scontrol(folder, monkeypatch, text):
    (folder / "scontrol").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_outside_slurm_and_without_scontrol(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="this is no Slurm job"):
        check({})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentUnfit, match="scontrol is not on this node's PATH"):
        check(JOB)


def test_the_job_is_named(tmp_path, monkeypatch):
    scontrol(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/asked')
    check(JOB)
    requeue(JOB)
    assert (tmp_path / "asked").read_text() == "requeue 17\n"


def test_what_slurm_says_is_handed_on(tmp_path, monkeypatch):
    scontrol(tmp_path, monkeypatch, 'echo "Requested operation is presently disabled" >&2; exit 1')
    with pytest.raises(EnvironmentUnfit, match="is saved, but scontrol requeue 17 failed: Requested operation is"):
        requeue(JOB)


@pytest.mark.parametrize("knobs", [{}, {"resume": "auto"}, {"run_dir": "runs/one"}])
def test_requeue_needs_a_run_to_go_on_with(knobs):
    with pytest.raises(UsageError, match="--resume auto --run-dir DIR"):
        TrainConfig(requeue=True, **knobs)


@pytest.mark.parametrize("knobs", [{"time_limit": 5.0}, {"patience": 2}])
def test_an_elastic_job_is_not_stopped_on_request(knobs):
    with pytest.raises(UsageError, match="with --elastic: an elastic job is not stopped on request"):
        TrainConfig(elastic=True, **knobs)
