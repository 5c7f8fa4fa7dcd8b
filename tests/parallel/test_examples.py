"""Each script of examples/ on two ranks, at a tiny size (tiny_resnet: test_own_model.py)."""

from __future__ import annotations

import difflib
import json
import re
import shutil
import sys

import numpy as np
import pytest

from tests.parallel.ranks import ROOT, arrays_of, run, train

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def sample():
    """Where the sample's .npz lies, fetched before any rank starts."""
    run([sys.executable, "-m", "hvd_mnist", "data", "fetch", "sample"], timeout=300).assert_ok()
    told = run([sys.executable, "-m", "hvd_mnist", "data", "path", "sample"])
    told.assert_ok()
    return told.output.strip().splitlines()[-1]


def test_fashion_mnist_from_python_ends_with_the_weights_of_the_command(tmp_path, sample):
    """The script starts ranks that call ``hvd_mnist.train``; with digits, which need not be fetched."""
    options = ["--data", "sample", "--steps", "12", "--run-dir"]
    ended = run([sys.executable, "examples/fashion_mnist.py", *options, str(tmp_path / "python")], timeout=400)
    ended.assert_ok()
    assert re.search(r"^2 ranks: \d+\.\d+% of 1000 test pictures$", ended.output, re.M), ended.output[-2000:]
    found = json.loads((tmp_path / "python" / "summary.json").read_text())
    assert found["steps"] == 12 and found["proof"]["held"] and found["test_accuracy"] > 0.3
    words = ["--model", "examples.fashion_mnist:build", "--augment", "none", "--learning-rate", "0.001"]
    train(*options, str(tmp_path / "typed"), *words, launcher="gloo", np=2).assert_ok()
    python, typed = (arrays_of(tmp_path / each / "checkpoints" / "step-00000012") for each in ("python", "typed"))
    assert len(typed) > 12 and list(python) == list(typed)  # three layers, and Adam's two moments of each
    for name in typed:
        np.testing.assert_allclose(python[name], typed[name], rtol=0, atol=1e-5, err_msg=name)


def test_image_folder(tmp_path):
    sys.path.insert(0, str(ROOT))
    try:
        from examples import image_folder
    finally:
        sys.path.remove(str(ROOT))
    image_folder.write(tmp_path / "pictures", train=40, test=11)
    options = ["--data", str(tmp_path / "pictures"), "--model", "examples.image_folder:build", "--augment", "none"]
    options += ["--batch-size", "20", "--epochs", "3", "--no-tensorboard", "--run-dir", str(tmp_path / "run")]
    ended = train(*options, launcher="gloo", np=2)
    ended.assert_ok()
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found["class_names"] == ["disc", "ring", "square", "stripes"]
    assert found["steps"] == 12 and found["test_examples"] == 44 and found["proof"]["held"]
    # Each picture's name and pixels are those of the other host, or the job does not start.
    assert "class_names" in found["data_sha256"] and "disc, ring, square, stripes" in ended.output


def test_transformer(tmp_path, sample):
    options = ["--data", "sample", "--model", "examples.transformer:build", "--learning-rate", "0.002"]
    options += ["--augment", "none", "--steps", "30", "--batch-size", "64", "--no-tensorboard"]
    ended = train(*options, "--run-dir", str(tmp_path / "run"), launcher="gloo", np=2)
    ended.assert_ok()
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found["proof"]["held"] and found["test_accuracy"] > 0.2


def test_a_plain_script_becomes_distributed_by_five_lines(tmp_path, sample):
    plain, distributed = (
        (ROOT / "examples" / name).read_text().split('"""')[2].splitlines() for name in ("plain.py", "distributed.py")
    )
    changed = [line for line in difflib.ndiff(plain, distributed) if line[0] == "+" and line[1:].strip()]
    gone = [line for line in difflib.ndiff(plain, distributed) if line[0] == "-"]
    assert len(changed) == 5 and len(gone) == 3 and len(plain) < 25
    shutil.copy(sample, tmp_path / "digits.npz")
    script = ["env", "-C", str(tmp_path), sys.executable, str(ROOT / "examples" / "distributed.py")]
    ended = run(script, launcher="gloo", np=2, timeout=300)
    ended.assert_ok()
    means = re.findall(r"mean of the last layer's weights: (\S+)", ended.output)
    assert len(means) == 2 and means[0] == means[1], ended.output[-2000:]
    assert re.search(r"40/40.*accuracy: 0\.[5-9]", ended.output), ended.output[-2000:]  # 4 000 / 2 ranks / 50
