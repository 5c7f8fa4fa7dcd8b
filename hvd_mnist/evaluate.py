"""Exact evaluation: every test example once, over all ranks, and the same numbers on each of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from hvd_mnist.data.arrays import TEST_BATCH
from hvd_mnist.data.pipeline import data_failure
from hvd_mnist.data.shard import rank_slice
from hvd_mnist.errors import DataError, NotFinite
from hvd_mnist.mistakes import Mistake, added, cells, confusion, worst, worst_of_all
from hvd_mnist.runtime import world


@dataclass(frozen=True)
class Evaluation:
    """accuracy = correct / examples; loss is the mean cross-entropy over the examples.

    ``confusion`` is int64 [classes, classes]: row is what an example is, column what it was taken for. ``worst`` are
    the wrong answers of which the model is most certain, the most certain first.
    """

    examples: int
    correct: int
    loss: float
    confusion: np.ndarray
    worst: tuple[Mistake, ...]

    @property
    def accuracy(self) -> float:
        return self.correct / self.examples

    def numbers(self) -> dict[str, float]:
        """What a line of metrics.jsonl says of it."""
        return {"accuracy": self.accuracy, "loss": self.loss, "correct": self.correct, "examples": self.examples}


class Evaluator:
    """Counts of one model on one test set; keeps its traced function between calls.

    Args:
        model: gives logits [batch, classes].
        data: `arrays.Arrays` or `stream.Stream`; its test part is used.
        rank, size: whose part of it this process takes.
        batch_size: images per forward pass.
        spoil: makes another data set of this rank's; fault injection does.
        gather: how the ranks' counts come together; default `world.gather_json`. A process in no job has its own.
    """

    def __init__(self, model, data, *, rank=0, size=1, batch_size=TEST_BATCH, spoil=None, gather=None):
        self._expected, self._gather = data.test_examples, gather
        self._first = rank_slice(data.test_examples, rank, size).start
        batches = data.test_batches(rank=rank, size=size, batch_size=batch_size)
        self._batches = batches if spoil is None else spoil(batches)

        @tf.function(reduce_retracing=True)
        def count(x, y, counted):
            logits = tf.cast(model(x, training=False), tf.float32)
            hits = tf.logical_and(tf.equal(tf.argmax(logits, axis=-1), y), counted)
            losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            losses = tf.where(counted, tf.cast(losses, tf.float64), 0.0)
            probabilities = tf.nn.softmax(tf.cast(logits, tf.float64))
            answers = tf.stack([y, tf.argmax(logits, axis=-1)]), tf.reduce_max(probabilities, axis=-1)
            return (
                tf.reduce_sum(tf.cast(counted, tf.int64)),
                tf.reduce_sum(tf.cast(hits, tf.int64)),
                tf.reduce_sum(losses),
                tf.boolean_mask(answers[0], counted, axis=1),
                tf.boolean_mask(answers[1], counted),
                tf.shape(logits)[-1],
            )

        self._count = count

    def __call__(self) -> Evaluation:
        """Evaluate now; every rank must call it.

        Raises:
            NotFinite: the loss of a rank's part is NaN or infinite.
            DataError: the ranks together did not see so many examples as there are.
        """
        examples, correct, loss, answers, certain, classes = 0, 0, 0.0, [], [], 1
        try:
            for x, y, counted in self._batches:
                counts = self._count(x, y, counted)
                examples, correct, loss = examples + int(counts[0]), correct + int(counts[1]), loss + float(counts[2])
                answers.append(counts[3].numpy())
                certain.append(counts[4].numpy())
                classes = int(counts[5])
        except tf.errors.OpError as error:
            raise data_failure(error) or error from None
        labels, predicted = np.concatenate(answers, axis=1)
        mine = worst(labels, predicted, np.concatenate(certain), self._first)
        counted = cells(confusion(labels, predicted, classes))
        told = (self._gather or world.gather_json)(
            [examples, correct, loss, counted, mine, world.hostname()], "evaluate"
        )
        for rank, (_, _, part, *_, host) in enumerate(told):
            if not math.isfinite(part):
                raise NotFinite(f"the test loss of rank {rank} on {host} is {part}", "look at the test images")
        examples, correct, loss, counts, wrong, _ = zip(*told, strict=True)
        if sum(examples) != self._expected:
            raise DataError(f"the test set had {self._expected} examples at the start, and {sum(examples)} now")
        return Evaluation(
            sum(examples), sum(correct), sum(loss) / sum(examples), added(counts, classes), worst_of_all(wrong)
        )
