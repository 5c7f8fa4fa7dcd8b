"""Exact evaluation: every test example once, over all ranks, and the same numbers on each of them."""

from __future__ import annotations

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from hvd_mnist.data.pipeline import evaluation_batches
from hvd_mnist.runtime import world


@dataclass(frozen=True)
class Evaluation:
    """accuracy = correct / examples; loss is the mean cross-entropy over the examples."""

    examples: int
    correct: int
    loss: float

    @property
    def accuracy(self) -> float:
        return self.correct / self.examples


class Evaluator:
    """Counts of one model on one test set; keeps its traced function between calls.

    Args:
        model: gives logits [batch, classes].
        images, labels: the whole test set, on every rank.
        rank, size: whose part this process takes.
        batch_size: images per forward pass.
    """

    def __init__(self, model, images, labels, *, rank=0, size=1, batch_size=500):
        self._expected = len(images)
        self._batches = evaluation_batches(images, labels, rank=rank, size=size, batch_size=batch_size)

        @tf.function(reduce_retracing=True)
        def count(x, y, counted):
            logits = tf.cast(model(x, training=False), tf.float32)
            hits = tf.logical_and(tf.equal(tf.argmax(logits, axis=-1), y), counted)
            losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            losses = tf.where(counted, tf.cast(losses, tf.float64), 0.0)
            return (
                tf.reduce_sum(tf.cast(counted, tf.int64)),
                tf.reduce_sum(tf.cast(hits, tf.int64)),
                tf.reduce_sum(losses),
            )

        self._count = count

    def __call__(self) -> Evaluation:
        """Evaluate now; every rank must call it.

        Raises:
            RuntimeError: the ranks together did not see each example once (a fault of this package).
        """
        counts, loss = np.zeros(2, np.int64), np.zeros(1, np.float64)
        for x, y, counted in self._batches:
            examples, correct, losses = self._count(x, y, counted)
            counts += [int(examples), int(correct)]
            loss += float(losses)
        examples, correct = world.sum_over_ranks(counts, "evaluate.counts")
        loss = world.sum_over_ranks(loss, "evaluate.loss")
        if examples != self._expected:
            raise RuntimeError(f"evaluated {examples} examples of {self._expected}")
        return Evaluation(int(examples), int(correct), float(loss[0]) / int(examples))
