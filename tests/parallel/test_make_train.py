"""The first command of the README: full MNIST, default recipe, two ranks, over 99 %."""

import json
import shutil
import subprocess

import pytest

from tests.parallel.ranks import BIN, ROOT, end_tree


@pytest.mark.timeout(900)
def test_make_train(tmp_path):
    if BIN.parent != ROOT / ".venv":
        pytest.skip("runs in the environment that `make setup` made: make test")
    assert shutil.which("make"), "make is missing"
    folder = tmp_path / "run"
    process = subprocess.Popen(
        ["make", "train", f"ARGS=--run-dir {folder}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=850)
    finally:
        end_tree(process.pid)
    assert process.returncode == 0, output[-4000:]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["data"] == "mnist" and summary["test_examples"] == 10_000
    assert summary["test_accuracy"] >= 0.99
    assert summary["world_size"] == 2 and summary["proof"]["held"] and summary["proof"]["comparisons"] >= 2
