"""Exact evaluation: each example once over all ranks, the numbers of one process on every rank."""

from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import hvd_mnist.keras as hvd
from hvd_mnist import mistakes
from hvd_mnist.data.pipeline import evaluation_batches
from hvd_mnist.evaluate import Evaluator


@pytest.mark.parametrize("examples, batch", [(103, 10), (1, 4), (64, 16)])
def test_equals_one_process(examples, batch):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    data = np.random.default_rng(0)
    images, labels = data.integers(0, 256, (examples, 6, 6), np.uint8), data.integers(0, 10, examples)
    test_part = SimpleNamespace(test_examples=examples, test_batches=partial(evaluation_batches, images, labels))
    found = Evaluator(model, test_part, rank=hvd.rank(), size=hvd.size(), batch_size=batch)()
    logits = np.asarray(model(images[..., None].astype(np.float32) / np.float32(255)), np.float64)
    picked = logits[np.arange(examples), labels]
    losses = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1) - picked
    assert found.examples == examples
    assert found.correct == int((logits.argmax(1) == labels).sum())
    assert found.loss == pytest.approx(losses.mean(), rel=1e-6)
    confusion = np.zeros((10, 10), np.int64)
    np.add.at(confusion, (labels, logits.argmax(1)), 1)
    np.testing.assert_array_equal(found.confusion, confusion)
    probability = 1 / np.exp(logits - logits.max(1, keepdims=True)).sum(1)
    expected = mistakes.worst(labels, logits.argmax(1), probability)
    assert [each.index for each in found.worst] == [each.index for each in expected]
    np.testing.assert_allclose([e.probability for e in found.worst], [e.probability for e in expected], rtol=1e-5)
    told = hvd.allgather([[found.correct, found.loss]]).numpy()
    assert (told == told[0]).all()
