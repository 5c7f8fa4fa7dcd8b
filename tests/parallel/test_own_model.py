"""A model and data of a user's own, with batch normalization, on two ranks; a tf.data.Dataset for each rank."""

import json
import shutil
import sys

import pytest

from tests.parallel.ranks import arrays_of, run, train

pytestmark = pytest.mark.timeout(600)

OWN = ("--model", "examples.tiny_resnet:build", "--data", "examples.tiny_resnet:load")


def test_example_trains_and_its_saved_model_is_the_one_that_was_evaluated(tmp_path):
    folder = tmp_path / "run"
    options = [*OWN, "--augment", "none", "--batch-size", "32", "--no-tensorboard", "--run-dir", str(folder)]
    ended = train(*options, "--steps", "12", "--checkpoint-every", "5", launcher="gloo", np=2)
    ended.assert_ok()
    found = json.loads((folder / "summary.json").read_text())
    assert found["model"] == OWN[1] and found["test_examples"] == 512 and found["proof"]["held"]
    assert "replicas proven equal" in ended.output
    # The moving statistics were put together before the save: one process finds what two ranks found.
    told = run([sys.executable, "-m", "hvd_mnist", "evaluate", str(folder), "--data", OWN[3], "--json"])
    told.assert_ok()
    alone = json.loads(told.output.strip().splitlines()[-1])
    assert alone["examples"] == 512 and abs(alone["accuracy"] - found["test_accuracy"]) <= 1 / 512
    ended = train(*options, "--steps", "14", "--resume", "auto", launcher="gloo", np=2)
    ended.assert_ok()
    assert "resuming from step-00000012" in ended.output


def test_wrong_functions_are_one_line(tmp_path):
    ended = train("--model", "examples.tiny_resnet:load", "--data", "sample", "--run-dir", str(tmp_path / "run"))
    assert ended.status == 2
    assert "takes (), expected to be called as build(input_shape, classes)" in ended.output
    assert "Traceback" not in ended.output


def test_a_dataset_for_each_rank(tmp_path):
    """Parts of 106 and 105 examples, 10 steps an epoch, stopped after 14; then again from step 5, of epoch 1."""
    whole, again = tmp_path / "whole", tmp_path / "again"
    options = ["--data", "tests.parallel.stream_functions:load", "--model", "mlp", "--batch-size", "10"]
    options += ["--steps", "14"]
    options += ["--checkpoint-every", "5", "--keep", "9", "--threads", "1", "--no-tensorboard", "--resume", "auto"]
    ended = train(*options, "--run-dir", str(whole), launcher="gloo", np=2)
    ended.assert_ok()
    found = json.loads((whole / "summary.json").read_text())
    assert found["test_examples"] == 33 and found["epochs"] == 1.4 and found["proof"]["held"]
    told = json.loads((whole / "config.json").read_text())["effective"]
    assert "211 over all ranks, of which 105 each are used in an epoch" in told["from"]
    told = run([sys.executable, "-m", "hvd_mnist", "evaluate", str(whole), "--data", options[1], "--json"])
    told.assert_ok()  # one process has the whole test set
    alone = json.loads(told.output.strip().splitlines()[-1])
    best = max(json.loads(line)["correct"] for line in lines(whole) if '"evaluation"' in line)
    assert alone["examples"] == 33 and alone["correct"] == best
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints" / "step-00000014")
    ended = train(*options, "--run-dir", str(again), launcher="gloo", np=2)
    ended.assert_ok()
    assert "resuming from step-00000005" in ended.output and "reading past 50 examples a rank" in ended.output
    mine, theirs = (arrays_of(folder / "checkpoints" / "step-00000014") for folder in (again, whole))
    assert list(mine) == list(theirs) and all((mine[name] == theirs[name]).all() for name in mine)


def lines(folder):
    return (folder / "metrics.jsonl").read_text().splitlines()
