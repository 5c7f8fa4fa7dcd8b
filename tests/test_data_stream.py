"""A function of the user's that gives each rank a tf.data.Dataset: its steps, its test set, what is refused."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from hvd_mnist.data import sources
from hvd_mnist.errors import DataError, UsageError

MODULE = """
import numpy as np
import tensorflow as tf

COUNT = 50

def pictures(epoch):
    first = 1000 if epoch is None else 0
    count = 7 if epoch is None else COUNT
    numbers = np.arange(first, first + count)
    images = np.repeat(numbers % 251, 12).reshape(count, 3, 4).astype(np.uint8)
    return tf.data.Dataset.from_tensor_slices((images, numbers % 5))

def load(rank, size, epoch, seed):
    dataset = pictures(epoch).shard(size, rank)
    return dataset if epoch is None else dataset.shuffle(100, seed=seed + epoch)

def renamed(r, n, e, s): return load(r, n, e, s)
def endless(rank, size, epoch, seed): return load(rank, size, epoch, seed).repeat()
def batched(rank, size, epoch, seed): return load(rank, size, epoch, seed).batch(4)
def no_dataset(rank, size, epoch, seed): return 1
def nothing(rank, size, epoch, seed): return load(rank, size, epoch, seed).take(0)
def negative(rank, size, epoch, seed): return load(rank, size, epoch, seed).map(lambda x, y: (x, y - 1))
def fewer(rank, size, epoch, seed): return load(rank, size, epoch, seed).take(-1 if not epoch else 9)
def broken(rank, size, epoch, seed): raise OSError("no such disk")
def broken_later(rank, size, epoch, seed):
    def examples():
        yield np.zeros((3, 4), np.float32), 0
        raise OSError("disk full of holes")
    spec = tf.TensorSpec((3, 4), tf.float32), tf.TensorSpec((), tf.int32)
    return tf.data.Dataset.from_generator(examples, output_signature=spec)
def two(rank, size): return load(rank, size, 0, 0)
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "stream_for_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("stream_for_a_test", None)


@pytest.fixture
def ranks(monkeypatch):
    """(function, size, ...) -> the Stream of each of ``size`` ranks, which have told each other their counts."""
    from hvd_mnist.data import stream
    from hvd_mnist.runtime import world

    def opened(function, size=2, parts=("train", "test")):
        told, name = [], f"stream_for_a_test:{function}"
        streams = [stream.load(name, rank=rank, size=size, seed=3, notify=print) for rank in range(size)]
        monkeypatch.setattr(world, "on_every_rank", lambda act, name: act())
        monkeypatch.setattr(world, "gather_json", lambda value, name: told.append(value) or [value])
        for each in streams:
            each.with_all_ranks(parts)
        monkeypatch.setattr(world, "gather_json", lambda value, name: told)
        return [each.with_all_ranks(parts) for each in streams]

    return opened


def numbers(dataset):
    return [np.rint(x[:, 0, 0, 0] * 255).astype(int).tolist() for x, *_ in dataset.as_numpy_iterator()]


def test_each_rank_has_its_own_part_and_as_many_steps(ranks):
    streams = ranks("load", size=3)  # 17, 17 and 16 examples
    assert {stream.train_examples for stream in streams} == {48} and {stream.test_examples for stream in streams} == {7}
    assert streams[0].classes == 5 and streams[0].image_shape == (3, 4, 1)
    place = {"seed": 3, "epoch": 1, "size": 3, "batch_size": 5, "augment": "none"}
    epoch = [numbers(each.train_batches(first_step=0, steps=3, rank=r, **place)) for r, each in enumerate(streams)]
    seen = [number for rank in epoch for batch in rank for number in batch]
    assert [len(rank) for rank in epoch] == [3, 3, 3] and len(set(seen)) == len(seen) == 45
    resumed = streams[1].train_batches(first_step=2, steps=1, rank=1, **place)
    assert numbers(resumed) == epoch[1][2:] == numbers(resumed)  # however often it is iterated
    x, y = next(resumed.as_numpy_iterator())
    assert x.dtype == np.float32 and x.shape == (5, 3, 4, 1) and y.dtype == np.int64
    assert (np.rint(x[:, 0, 0, 0] * 255).astype(int) % 5 == y).all()
    shifted = streams[1].train_batches(first_step=2, steps=1, rank=1, **place | {"augment": "shift"})
    moved, labels = next(shifted.as_numpy_iterator())
    assert (labels == y).all() and (moved != x).any()


def test_each_test_example_is_counted_once_in_as_many_batches(ranks):
    streams = ranks("renamed", size=3)  # 3, 2 and 2 examples
    rows = [list(each.test_batches(rank=r, size=3, batch_size=2).as_numpy_iterator()) for r, each in enumerate(streams)]
    assert [len(batches) for batches in rows] == [2, 2, 2]
    seen = [
        round(float(image[0, 0, 0]) * 255)
        for batches in rows
        for x, _, counted in batches
        for image in x[counted]
    ]  # fmt: skip
    assert sorted(seen) == sorted(number % 251 for number in range(1000, 1007))


@pytest.mark.parametrize(
    "function, size, said",
    [
        ("endless", 1, "gives a dataset without an end -> leave .repeat.. out"),
        ("batched", 1, "expected one example each: an image uint8 or float32 .* -> leave .batch.. out"),
        ("no_dataset", 1, "returned int, expected a tf.data.Dataset -> def load.rank, size, epoch, seed.: return"),
        ("nothing", 1, "gave no train examples to rank 0 of 1"),
        ("negative", 1, "a train label is -1, expected 0 to classes - 1"),
        ("broken", 1, r"raised OSError: no such disk \(.*stream_for_a_test.py\)"),
        ("broken_later", 1, r"\(train part\): .*OSError: disk full of holes"),
        ("all_to_all", 2, "gave the same first train examples to ranks 0 and 1; .* -> return dataset.shard"),
    ],
)
def test_what_is_wrong_is_one_line(ranks, tmp_path, function, size, said):
    with open("stream_for_a_test.py", "a") as file:
        file.write("def all_to_all(rank, size, epoch, seed): return pictures(epoch)\n")
    with pytest.raises(DataError, match=said) as error:
        ranks(function, size)
    assert "\n" not in str(error.value)


def test_fewer_examples_than_before_end_the_epoch_with_an_error(ranks):
    import tensorflow as tf

    from hvd_mnist.data.pipeline import data_failure

    (stream,) = ranks("fewer", size=1)
    batches = stream.train_batches(seed=3, epoch=1, first_step=1, steps=3, rank=0, size=1, batch_size=5, augment="none")
    with pytest.raises(tf.errors.OpError) as error:
        list(batches)
    assert "gave rank 0 fewer examples in epoch 2 than in epoch 1; expected 20 or more" in str(
        data_failure(error.value)
    )


def test_who_takes_such_a_function(ranks):
    with pytest.raises(UsageError, match=r"a tf.data.Dataset, for train \(not --elastic\) and evaluate"):
        sources.load("stream_for_a_test:load")
    with pytest.raises(UsageError, match=r"takes \(rank, size\), expected .* as load\(\) or load\(rank, size, epoch,"):
        sources.load("stream_for_a_test:two")
