"""Counts of what is taken for what. The whole path, with a real run, is in tests/parallel/test_training.py."""

import base64
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hvd_mnist import mistakes
from hvd_mnist.errors import DataError
from tests.made_runs import made_run


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_confusion_counts_each_example_once(pairs):
    labels, predicted = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    found = mistakes.confusion(labels, predicted, 4)
    assert found.sum() == len(pairs) and found.trace() == sum(a == b for a, b in pairs)
    assert all(found[a, b] == pairs.count((a, b)) for a in range(4) for b in range(4))


def test_worst_are_wrong_and_the_most_certain_comes_first():
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.7, 0.3]])
    assert mistakes.worst(np.array([0, 0, 0, 1]), probabilities).tolist() == [2, 3, 1]
    assert mistakes.worst(np.array([0, 0, 0, 1]), probabilities, most=1).tolist() == [2]
    assert mistakes.worst(np.array([0, 1, 1, 0]), probabilities).tolist() == []


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 3)])
def test_a_picture_comes_back(shape):
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    with Image.open(io.BytesIO(base64.b64decode(mistakes.as_png(image)))) as picture:
        np.testing.assert_array_equal(np.asarray(picture).reshape(shape), image)


def test_nothing_that_a_run_folder_names_is_imported_and_called(tmp_path):
    folder = made_run(tmp_path / "run", data="os:getcwd")
    with pytest.raises(DataError, match="is not called unasked -> --digits --data os:getcwd"):
        mistakes.write(folder, notify=print)
    (folder / "config.json").write_text("{}")
    with pytest.raises(DataError, match="does not say on which data"):
        mistakes.write(folder, notify=print)
