"""Exact evaluation: every test example once, over all ranks, and the same numbers on each of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import keras
import tensorflow as tf

from hvd_mnist.data.pipeline import data_failure, evaluation_batches
from hvd_mnist.errors import NotFinite
from hvd_mnist.runtime import world

BATCH = 200  # a pass of the cnn over 500 images takes 110 MiB for a moment, more than its training step


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
        spoil: makes another data set of this rank's; fault injection does.
        gather: how the ranks' counts come together; default `world.gather_json`. A process in no job has its own.
    """

    def __init__(self, model, images, labels, *, rank=0, size=1, batch_size=BATCH, spoil=None, gather=None):
        self._expected, self._gather = len(images), gather
        self._batches = evaluation_batches(images, labels, rank=rank, size=size, batch_size=batch_size)
        if spoil is not None:
            self._batches = spoil(self._batches)

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
            NotFinite: the loss of a rank's part is NaN or infinite.
            RuntimeError: the ranks together did not see each example once (a fault of this package).
        """
        examples, correct, loss = 0, 0, 0.0
        try:
            for x, y, counted in self._batches:
                counts = self._count(x, y, counted)
                examples, correct, loss = examples + int(counts[0]), correct + int(counts[1]), loss + float(counts[2])
        except tf.errors.OpError as error:
            raise data_failure(error) or error from None
        told = (self._gather or world.gather_json)([examples, correct, loss, world.hostname()], "evaluate")
        for rank, (_, _, part, host) in enumerate(told):
            if not math.isfinite(part):
                raise NotFinite(f"the test loss of rank {rank} on {host} is {part}", "look at the test images")
        examples, correct, loss = (sum(column) for column in list(zip(*told, strict=True))[:3])
        if examples != self._expected:
            raise RuntimeError(f"evaluated {examples} examples of {self._expected}")
        return Evaluation(examples, correct, loss / examples)
