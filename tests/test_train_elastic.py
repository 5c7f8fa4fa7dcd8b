"""Elastic training as arithmetic: what follows from the number of ranks, and where a checkpoint stands."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_mnist import trainer
from hvd_mnist.config import TrainConfig
from hvd_mnist.console import Console
from hvd_mnist.data import shard
from hvd_mnist.errors import CheckpointError, UsageError
from hvd_mnist.train_elastic import checkpoint_state, resume, terms


def test_terms_of_each_number_of_ranks():
    """The default batch is a rank's, so the global batch and the rate grow with the ranks."""
    config = TrainConfig(elastic=True, epochs=3, batch_size=100, lr_scaling="linear", learning_rate=0.1)
    one, four = terms(config, 4000, 1), terms(config, 4000, 4)
    assert (one.global_batch, one.per_epoch, one.plan.peak, one.plan.total) == (100, 40, 0.1, 120)
    assert (four.global_batch, four.per_epoch, four.plan.peak, four.plan.total) == (400, 10, 0.4, 30)
    assert (one.plan.warmup, four.plan.warmup) == (20, 5)  # half an epoch each
    assert four.iterations(1, 2000) == 15 and one.iterations(1, 2000) == 60  # the same place of the run


def test_a_global_batch_that_ranks_cannot_share_becomes_the_nearest():
    found = {
        size: terms(TrainConfig(elastic=True, global_batch=128), 4000, size).global_batch for size in (1, 2, 3, 5, 256)
    }
    assert found == {1: 128, 2: 128, 3: 129, 5: 130, 256: 256}


@settings(deadline=None)
@given(st.integers(50, 400), st.integers(1, 8), st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1))
def test_the_plan_of_rates_never_runs_over_its_end(examples, batch, spans):
    """However ranks change in an epoch, the steps made since stay within what the plan foresees for it."""
    config, samples = TrainConfig(elastic=True, epochs=1, batch_size=batch), 0
    for size, steps in spans:
        now = terms(config, examples, size)
        left = shard.steps_left(examples, samples, now.global_batch)
        assert now.iterations(0, samples) + left <= now.per_epoch == now.plan.total
        samples += min(steps, left) * now.global_batch


@pytest.mark.parametrize(
    "knobs",
    [{"steps": 9}, {"accumulate": 2}, {"patience": 2}, {"inject": ("kill:rank=0,step=1",), "allow_faults": True}],
)
def test_what_elastic_training_has_not_is_refused(knobs):
    with pytest.raises(UsageError, match="with --elastic: "):
        TrainConfig(elastic=True, **knobs)
    TrainConfig(elastic=True, commit_every=5, reset_limit=2)


def test_knobs_of_elastic_training_need_it():
    with pytest.raises(UsageError, match="--reset-limit without --elastic"):
        TrainConfig(reset_limit=3)


def test_a_checkpoint_says_where_the_run_stands():
    config = TrainConfig(elastic=True, batch_size=100)
    state = SimpleNamespace(step=70, epoch=2, samples=1300, best_accuracy=0.9)
    kept = checkpoint_state(config, state, terms(config, 4000, 3), "sha")
    again = SimpleNamespace(step=0, epoch=0, samples=0, best_accuracy=None)
    resume(again, kept)
    assert vars(again) == vars(state)
    resume(again, None)
    assert vars(again) == vars(state)
    # One that trainer.py wrote counts steps: 2 epochs of 31, and 8 steps of 128.
    resume(again, {"step": 70, "steps_per_epoch": 31, "global_batch": 128, "best_accuracy": None})
    assert (again.epoch, again.samples, again.step) == (2, 8 * 128, 70)


def test_the_other_trainer_refuses_such_a_checkpoint(monkeypatch, tmp_path):
    """It counts steps, which had different numbers of examples here."""
    monkeypatch.setattr(trainer.checkpoint, "latest", lambda folder, notify: SimpleNamespace(path=tmp_path))
    monkeypatch.setattr(trainer.checkpoint, "load_state", lambda path: {"samples": 1300, "step": 70})
    console = Console(speaks=False)
    with pytest.raises(CheckpointError, match="is of an elastic run"):
        trainer.restore(tmp_path, None, TrainConfig(resume="auto", run_dir=str(tmp_path)), console)
