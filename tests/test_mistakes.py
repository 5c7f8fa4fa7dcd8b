"""Counts of what is taken for what. The whole path, with a real run, is in tests/parallel/test_training.py."""

import base64
import io
import json

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
    labels, predicted, certain = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 0]), np.array([0.9, 0.6, 0.8, 0.7])
    found = mistakes.worst(labels, predicted, certain, first=10)
    assert found == [(12, 0, 1, 0.8), (13, 1, 0, 0.7), (11, 0, 1, 0.6)] and found[0].label == 0
    assert mistakes.worst(labels, predicted, certain, most=1) == [(2, 0, 1, 0.8)]
    assert mistakes.worst(labels, labels, certain) == []


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.5, 0.75, 1.0])), max_size=30),
    st.integers(1, 4),
)
def test_parts_together_say_what_the_whole_says(answers, parts):
    labels, predicted, certain = (np.array([one[k] for one in answers]) for k in range(3))
    labels, predicted = labels.astype(np.int64), predicted.astype(np.int64)
    bounds = [len(answers) * k // parts for k in range(parts + 1)]
    spans = [slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
    counted = [mistakes.cells(mistakes.confusion(labels[at], predicted[at], 4)) for at in spans]
    sent = json.loads(json.dumps(counted))  # as it travels
    np.testing.assert_array_equal(mistakes.added(sent, 4), mistakes.confusion(labels, predicted, 4))
    lists = [mistakes.worst(labels[at], predicted[at], certain[at], at.start, most=5) for at in spans]
    lists = json.loads(json.dumps(lists))
    assert mistakes.worst_of_all(lists, most=5) == tuple(mistakes.worst(labels, predicted, certain, most=5))


def test_a_label_that_is_no_class_is_not_counted():
    found = mistakes.confusion(np.array([0, 7, -1]), np.array([1, 1, 1]), 2)
    assert found.tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 3), (5, 4, 2)])
def test_a_picture_comes_back(shape):
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    with Image.open(io.BytesIO(base64.b64decode(mistakes.as_png(image)))) as picture:
        seen = image[..., :1] if shape[2:] == (2,) else image
        np.testing.assert_array_equal(np.asarray(picture).reshape(seen.shape), seen)


def test_nothing_that_a_run_folder_names_is_imported_and_called(tmp_path):
    folder = made_run(tmp_path / "run", data="os:getcwd")
    with pytest.raises(DataError, match="is not called unasked -> --digits --data os:getcwd"):
        mistakes.write(folder, notify=print)
    (folder / "config.json").write_text("{}")
    with pytest.raises(DataError, match="does not say on which data"):
        mistakes.write(folder, notify=print)
