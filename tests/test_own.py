"""Functions of a user's own, by name: what is wrong with them is one line."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from hvd_mnist import own
from hvd_mnist.config import TrainConfig
from hvd_mnist.data import sources
from hvd_mnist.errors import DataError, UsageError
from hvd_mnist.run_folder import default_name

MODULE = """
import numpy as np
def build(input_shape, classes): return (input_shape, classes)
def build_nothing(): return None
def load(): return (np.zeros((4, 5, 5), np.uint8), [0, 1, 2, 0]), (np.zeros((2, 5, 5), np.uint8), [1, 2])
def load_floats(): return (np.zeros((4, 5, 5)), [0, 1, 2, 0]), (np.zeros((2, 5, 5)), [1, 2])
def load_three(): return 1, 2, 3
def load_broken(): raise OSError("no such disk")
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "mine_for_a_test.py").write_text(MODULE)
    (tmp_path / "broken_for_a_test.py").write_text("1 / 0")
    (tmp_path / "lacks_for_a_test.py").write_text("import not_installed_anywhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("mine_for_a_test", "broken_for_a_test", "lacks_for_a_test"):
        sys.modules.pop(name, None)


def test_called():
    assert own.call("mine_for_a_test:build", "--model", "build(input_shape, classes)", (28, 28, 1), 10) == (
        (28, 28, 1),
        10,
    )
    assert list(own.files("mine_for_a_test:build", "small", "mine_for_a_test:load")) == ["mine_for_a_test"]
    assert own.files("small", "mnist") == {}


@pytest.mark.parametrize(
    "name, said",
    [
        ("nowhere_for_a_test:build", "no module nowhere_for_a_test in .* or among what is installed"),
        (
            "mine_for_a_test:nothing",
            "no function nothing in .*mine_for_a_test.py, which has build, build_nothing, load",
        ),
        ("mine_for_a_test:build_nothing", r"takes \(\), expected to be called as build\(input_shape, classes\)"),
        ("broken_for_a_test:build", "importing broken_for_a_test failed: ZeroDivisionError: division by zero"),
        ("lacks_for_a_test:build", "lacks_for_a_test imports not_installed_anywhere, which is not installed"),
        (":build", "expected MODULE:FUNCTION"),
        ("mine_for_a_test:", "expected MODULE:FUNCTION"),
    ],
)
def test_errors_name_what_is_wrong(name, said):
    with pytest.raises(UsageError, match=said) as error:
        own.function(name, "--model", "build(input_shape, classes)")
    assert "\n" not in str(error.value)


def test_data():
    arrays = sources.load("mine_for_a_test:load")
    assert arrays.classes == 3 and arrays.train_images.shape == (4, 5, 5) and set(arrays.sha256) == {
        "train_images", "train_labels", "test_images", "test_labels"}  # fmt: skip
    assert arrays.train_labels.dtype == np.int64 and arrays.test_labels.tolist() == [1, 2]
    with pytest.raises(DataError, match=r"train images are float64 \(4, 5, 5\), expected uint8"):
        sources.load("mine_for_a_test:load_floats")
    with pytest.raises(DataError, match=r"returned tuple, expected \(\(x_train, y_train\), \(x_test, y_test\)\)"):
        sources.load("mine_for_a_test:load_three")
    with pytest.raises(UsageError, match="load_broken raised OSError: no such disk"):
        sources.load("mine_for_a_test:load_broken")


def test_a_path_with_a_colon_is_a_path(tmp_path):
    (tmp_path / "a:b").mkdir()
    assert not own.is_own(str(tmp_path / "a:b")) and own.is_own("a.b:c")


def test_settings():
    assert TrainConfig(model="a.b:c").model == "a.b:c"
    with pytest.raises(UsageError, match="expected small, cnn, mlp or MODULE:FUNCTION"):
        TrainConfig(model="large")
    with pytest.raises(UsageError, match="--no-dropout with --model a.b:c"):
        TrainConfig(model="a.b:c", dropout=False)
    assert default_name("a.b:load", "a.b:build").startswith("runs/a.b.load-a.b.build-")
