from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from hvd_mnist.data import pipeline, shard
from hvd_mnist.errors import UsageError

DRAW = np.random.default_rng(5)
IMAGES = DRAW.integers(0, 256, (101, 28, 28), dtype=np.uint8)
LABELS = np.arange(101, dtype=np.int64)  # a label names its example


def collect(**changes) -> list[tuple[np.ndarray, np.ndarray]]:
    settings = {"seed": 3, "epoch": 1, "first_step": 0, "steps": 12, "rank": 0, "size": 1, "batch_size": 8}
    dataset = pipeline.batches(IMAGES, LABELS, **{**settings, **changes})
    return [(x.numpy(), y.numpy()) for x, y in dataset]


def assert_same(one, other) -> None:
    assert len(one) == len(other) > 0
    for left, right in zip(one, other, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


def test_batches_are_the_examples_of_the_permutation_scaled_to_0_1():
    order = shard.epoch_permutation(101, 3, 1)
    for step, (x, y) in enumerate(collect()):
        np.testing.assert_array_equal(y, order[8 * step : 8 * step + 8])
        np.testing.assert_array_equal(x, IMAGES[y][..., None] / np.float32(255))
        assert x.dtype == np.float32 and y.dtype == np.int64


def test_shapes_and_the_number_of_steps_are_known_before_the_first_batch():
    dataset = pipeline.batches(
        IMAGES, LABELS, seed=0, epoch=0, first_step=2, steps=9, rank=1, size=2, batch_size=4, augment="shift"
    )
    assert dataset.cardinality().numpy() == 9
    x, y = dataset.element_spec
    assert x == tf.TensorSpec((4, 28, 28, 1), tf.float32) and y == tf.TensorSpec((4,), tf.int64)


@pytest.mark.parametrize("augment", pipeline.AUGMENTATIONS)
def test_the_same_call_gives_the_same_bits_and_a_later_start_gives_the_tail(augment):
    whole = collect(augment=augment)
    assert_same(whole, collect(augment=augment))
    for first in (1, 5, 11):
        assert_same(whole[first:], collect(augment=augment, first_step=first, steps=12 - first))


@pytest.mark.parametrize("augment", pipeline.AUGMENTATIONS)
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_together_see_the_batch_of_one_rank(augment, size):
    alone = collect(augment=augment)
    ranks = [collect(augment=augment, rank=rank, size=size, batch_size=8 // size) for rank in range(size)]
    together = [tuple(np.concatenate(parts) for parts in zip(*step, strict=True)) for step in zip(*ranks, strict=True)]
    assert_same(alone, together)


def test_epochs_and_seeds_differ_in_order_and_in_shifts():
    def places(batches):
        return {int(label): image for x, y in batches for image, label in zip(x, y, strict=True)}

    first, next_epoch = collect(augment="shift"), collect(augment="shift", epoch=2)
    assert not np.array_equal(first[0][1], next_epoch[0][1])
    one, other = places(first), places(next_epoch)
    both = one.keys() & other.keys()
    moved = [label for label in both if not np.array_equal(one[label], other[label])]
    assert len(moved) > 0.8 * len(both)  # 24 of 25 on average


def test_a_shift_moves_the_image_and_fills_with_zeros():
    shifts = np.array([[0, 0], [2, -1], [-2, 2], [1, 0], [0, -2]])
    moved = pipeline.shifted(IMAGES[:5], shifts)
    for image, (down, right), result in zip(IMAGES, shifts, moved, strict=False):
        expected = np.zeros_like(image)
        for row in range(28):
            for column in range(28):
                if 0 <= row + down < 28 and 0 <= column + right < 28:
                    expected[row + down, column + right] = image[row, column]
        np.testing.assert_array_equal(result, expected)
    coloured = np.stack([IMAGES[:5], IMAGES[5:10]], axis=-1)
    np.testing.assert_array_equal(pipeline.shifted(coloured, shifts)[..., 0], moved)
    np.testing.assert_array_equal(pipeline.shifted(coloured, shifts)[..., 1], pipeline.shifted(IMAGES[5:10], shifts))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_floating_types(dtype):
    (x, _), *_ = collect(dtype=dtype)
    exact = collect()[0][0]
    assert x.dtype == tf.as_dtype(dtype).as_numpy_dtype and x.max() <= 1
    np.testing.assert_allclose(x.astype(np.float32), exact, atol=1 / 256)


def test_images_with_channels_keep_them():
    coloured = np.stack([IMAGES] * 3, axis=-1)
    dataset = pipeline.batches(
        coloured, LABELS, seed=3, epoch=1, first_step=0, steps=2, rank=0, size=1, batch_size=8, augment="shift"
    )
    for (x, _), (grey, _) in zip(dataset, collect(augment="shift"), strict=False):
        assert x.shape == (8, 28, 28, 3)
        np.testing.assert_array_equal(x[..., 1], grey[..., 0])


@pytest.mark.parametrize("change", [{"steps": 13}, {"first_step": 12, "steps": 1}, {"first_step": -1}, {"size": 2}])
def test_steps_beyond_the_epoch_are_refused(change):
    with pytest.raises(UsageError, match="of an epoch of"):
        collect(**change)


def test_an_unknown_augmentation_is_refused():
    with pytest.raises(UsageError, match="expected one of none, shift"):
        collect(augment="flip")


@pytest.mark.parametrize(
    "examples, size, batch_size", [(101, 1, 10), (101, 3, 10), (101, 4, 100), (3, 4, 2), (8, 2, 4)]
)
def test_evaluation_counts_every_example_once_in_equal_steps(examples, size, batch_size):
    seen, steps = [], set()
    for rank in range(size):
        dataset = pipeline.evaluation_batches(
            IMAGES[:examples], LABELS[:examples], rank=rank, size=size, batch_size=batch_size
        )
        assert dataset.element_spec[0].shape == (batch_size, 28, 28, 1)
        steps.add(int(dataset.cardinality()))
        for x, y, counted in dataset:
            counted = counted.numpy()
            seen += y.numpy()[counted].tolist()
            np.testing.assert_array_equal(x.numpy()[counted], IMAGES[y.numpy()[counted]][..., None] / np.float32(255))
    assert sorted(seen) == list(range(examples))
    assert len(steps) == 1  # a collective in each batch would meet every rank


def test_a_compiled_evaluation_is_traced_once():
    traces = []

    @tf.function
    def count(x, y, counted):
        traces.append(x.shape)
        return tf.reduce_sum(tf.cast(counted, tf.int64))

    dataset = pipeline.evaluation_batches(IMAGES, LABELS, rank=0, size=1, batch_size=10)
    assert sum(int(count(*batch)) for batch in dataset) == 101 and len(traces) == 1


def test_keras_fit_takes_the_dataset_and_its_steps():
    import keras

    model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(101)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    dataset = pipeline.batches(IMAGES, LABELS, seed=0, epoch=0, first_step=0, steps=12, rank=0, size=1, batch_size=8)
    assert len(dataset) == 12
    model.fit(dataset, verbose=0)


def test_no_copy_of_the_images_is_in_the_graph():
    dataset = pipeline.batches(IMAGES, LABELS, seed=0, epoch=0, first_step=0, steps=2, rank=0, size=1, batch_size=8)
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(dataset)).numpy()
    assert len(graph) < 20_000  # 101 images alone would be 79 000 bytes


def test_memory_does_not_grow_with_the_epochs():
    images, labels = np.zeros((200_000, 1, 1), np.uint8), np.zeros(200_000, np.int64)

    def an_epoch(epoch):
        dataset = pipeline.batches(
            images, labels, seed=0, epoch=epoch, first_step=0, steps=2, rank=0, size=1, batch_size=8
        )
        assert len(list(dataset)) == 2

    for epoch in range(3):
        an_epoch(epoch)
    tracemalloc.start()
    try:
        for epoch in range(3, 13):
            an_epoch(epoch)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 6_000_000  # two orders are 3.2 MB, ten would be 16 MB
    finally:
        tracemalloc.stop()
