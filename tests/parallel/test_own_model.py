"""A model and data of a user's own, with batch normalization, on two ranks."""

import json
import sys

import pytest

from tests.parallel.ranks import run, train

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
