"""Folders of pictures and of TFRecord files: what is read, and what is refused in one line."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from hvd_mnist.data import shard, sources
from hvd_mnist.errors import DataError


def picture(seed: int, size=(6, 8), channels=3) -> np.ndarray:
    shape = size if channels == 1 else (*size, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(pixels: np.ndarray, kind="PNG", mode=None) -> bytes:
    from PIL import Image

    out, image = io.BytesIO(), Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(out, kind)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path):
    """train/: 3 cats, 2 dogs; test/: a dog. Seeds 0 to 5, in the order in which they are to be read."""
    places = ("train/cat/a", "train/cat/b", "train/cat/c", "train/dog/a", "train/dog/b", "test/dog/z")
    for seed, place in enumerate(places):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{place}.png").write_bytes(encoded(picture(seed)))
    return tmp_path


def test_a_folder_of_pictures(folder):
    (folder / "train" / "cat" / ".hidden").write_text("left out")
    arrays = sources.load(str(folder))
    np.testing.assert_array_equal(arrays.train_images, [picture(seed) for seed in range(5)])
    np.testing.assert_array_equal(arrays.test_images, [picture(5)])
    assert arrays.train_labels.tolist() == [0, 0, 0, 1, 1] and arrays.test_labels.tolist() == [1]
    assert arrays.class_names == ("cat", "dog") and arrays.classes == 2
    before = arrays.sha256
    for part in ("train", "test"):
        (folder / part / "dog").rename(folder / part / "hound")
    renamed = sources.load(str(folder))
    assert {name for name in before if before[name] != renamed.sha256[name]} == {"class_names"}


def test_grey_and_coloured_pictures(folder):
    grey = {seed: picture(seed, channels=1) for seed in range(6)}
    for seed, file in enumerate([*sorted(folder.glob("train/*/*")), *folder.glob("test/*/*")]):
        file.write_bytes(encoded(grey[seed]))
    assert sources.load(str(folder)).train_images.shape == (5, 6, 8)
    np.testing.assert_array_equal(sources.load(str(folder)).train_images[4], grey[4])
    (folder / "train/dog/b.png").write_bytes(encoded(picture(4), mode="P"))  # one with colours: all have three
    arrays = sources.load(str(folder))
    assert arrays.train_images.shape == (5, 6, 8, 3) and arrays.train_images[0, ..., 1].tolist() == grey[0].tolist()


@pytest.mark.parametrize(
    "place, content, said",
    [
        (
            "train/dog/a.png",
            encoded(picture(1, (8, 6))),
            "train/dog/a.png: 6 x 8 pixels, expected 8 x 6 as .*cat/a.png",
        ),
        ("test/dog/z.png", encoded(picture(1))[:60], "test/dog/z.png: not a PNG or JPEG that can be read"),
        ("train/dog/b.png", b"no picture", "train/dog/b.png: not a PNG or JPEG .*it does not begin like one"),
        ("train/dog/b.png", encoded(picture(1, channels=4)), "dog/b.png: a picture with transparency, expected 8 bits"),
        ("train/dog/b.png", encoded(picture(1, channels=1).astype(np.uint16)), "a picture with mode I;16, expected"),
        ("train/dog/notes.txt", b"", "dog/notes.txt: expected pictures .* and nothing else in a class"),
        ("train/notes.png", b"", "train/notes.png: a file beside the folders of classes"),
        ("test/mouse/a.png", encoded(picture(1)), "test/mouse: no such class in .*train, which has cat, dog"),
    ],
)
def test_wrong_pictures_are_one_line_with_the_file(folder, place, content, said):
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_bytes(content)
    with pytest.raises(DataError, match=said) as error:
        sources.load(str(folder))
    assert "\n" not in str(error.value)


def test_what_a_folder_lacks_is_said(folder, tmp_path_factory):
    (folder / "train" / "bird").mkdir()
    with pytest.raises(DataError, match="train/bird: a class without a picture"):
        sources.load(str(folder))
    (folder / "train" / "bird").rmdir()
    (folder / "test").rename(folder / "validation")
    with pytest.raises(DataError, match="test: no such folder; pictures lie in train/<class>/ and test/<class>/"):
        sources.load(str(folder))
    with pytest.raises(
        DataError, match=r"no data in it: neither train/<class>/\*.png, nor train\*.tfrecord, nor train-"
    ):
        sources.load(str(tmp_path_factory.mktemp("empty")))


# --- TFRecord files ----------------------------------------------------------------------------------------------


def record(image: bytes, label: int, shape=(), called="label") -> bytes:
    import tensorflow as tf

    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        called: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    if shape:
        features["shape"] = tf.train.Feature(int64_list=tf.train.Int64List(value=shape))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(path: Path, records: list[bytes]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as out:
        for each in records:
            out.write(each)


LABELS = [seed * seed % 3 for seed in range(23)]


@pytest.fixture
def in_files(tmp_path):
    """23 training records in files of 9, 0, 1 and 13, 5 test records; with the seeds of their pictures as order."""
    rows = [record(encoded(picture(seed)), LABELS[seed]) for seed in range(23)]
    for number, part in enumerate([rows[:9], [], rows[9:10], rows[10:]]):
        write(tmp_path / f"train-0000{number}-of-00004.tfrecord", part)
    write(tmp_path / "test-0.tfrecord", [record(encoded(picture(seed)), seed % 3) for seed in range(50, 55)])
    return tmp_path


def test_records_are_read_when_they_are_asked_for(in_files):
    arrays = sources.load(str(in_files))
    images = arrays.train_images
    assert images.shape == (23, 6, 8, 3) and len(images) == 23 and images.ndim == 4 and arrays.classes == 3
    assert arrays.train_labels.tolist() == LABELS and arrays.test_labels.tolist() == [2, 0, 1, 2, 0]
    np.testing.assert_array_equal(images[np.array([22, 0, 9, 8])], [picture(seed) for seed in (22, 0, 9, 8)])
    np.testing.assert_array_equal(images[7:12], [picture(seed) for seed in range(7, 12)])
    np.testing.assert_array_equal(images[22], picture(22))
    assert images[5:5].shape == (0, 6, 8, 3)
    np.testing.assert_array_equal(images[np.array([[1], [0]])], [[picture(1)], [picture(0)]])
    for chosen in ((..., None), (0, 0)):
        with pytest.raises(IndexError, match="by a number, a slice or an array of numbers"):
            images[chosen]


def test_every_record_once_an_epoch_over_all_ranks(in_files):
    """Through the pipeline that trains: pixels of each batch, for three ranks, against those of the seeds."""
    from hvd_mnist.data.pipeline import batches, evaluation_batches

    arrays = sources.load(str(in_files))
    own = {picture(seed).tobytes(): seed for seed in range(23)}

    def seen(rank, first=0):
        place = {"seed": 1, "epoch": 2, "first_step": first, "steps": 3 - first, "rank": rank, "size": 3}
        made = batches(arrays.train_images, arrays.train_labels, **place, batch_size=2)
        return [
            [own[np.rint(x * 255).astype(np.uint8).tobytes()] for x in xs] for xs, _ in made.as_numpy_iterator()
        ]  # fmt: skip

    order = shard.epoch_permutation(23, 1, 2)
    ranks = [seen(rank) for rank in range(3)]
    assert [seed for step in range(3) for rank in ranks for seed in rank[step]] == order[:18].tolist()
    assert seen(1, first=2) == ranks[1][2:]  # a resume
    counted = [
        int(part.sum())
        for rank in range(3)
        for *_, part in evaluation_batches(
            arrays.test_images, arrays.test_labels, rank=rank, size=3, batch_size=4
        ).as_numpy_iterator()
    ]
    assert sum(counted) == 5


def test_raw_pixels(tmp_path):
    write(tmp_path / "train.tfrecord", [record(picture(s, channels=1).tobytes(), s, (6, 8)) for s in range(4)])
    write(tmp_path / "test.tfrecord", [record(picture(9, channels=1).tobytes(), 0, (6, 8))])
    arrays = sources.load(str(tmp_path))
    np.testing.assert_array_equal(arrays.train_images[:], [picture(s, channels=1) for s in range(4)])
    write(tmp_path / "test.tfrecord", [record(encoded(picture(9, channels=1)), 0)])
    with pytest.raises(
        DataError, match=r"test.tfrecord, record at byte 0: a picture of 6 x 8, expected raw pixels 6 x 8"
    ):
        sources.load(str(tmp_path))


@pytest.mark.parametrize(
    "made, said",
    [
        (lambda: record(encoded(picture(1, (7, 8))), 0), r"record at byte \d+: a picture of 7 x 8, expected .* 6 x 8"),
        (lambda: record(b"abc", 0), r"record at byte \d+: not a PNG or JPEG"),
        (lambda: record(b"abc", 0, (2, 2)), r"shape \(2, 2\) and 3 bytes of image; expected height x width"),
        (lambda: record(b"abc", 0, called="class"), "features class, image; expected image .* and label"),
        (lambda: record(encoded(picture(1)), -1), "train labels run from -1 to"),
        (lambda: b"\x93NUMPY", "not a tf.train.Example"),
    ],
)
def test_wrong_records_are_one_line_with_their_place(in_files, made, said):
    write(in_files / "train-9.tfrecord", [record(encoded(picture(0)), 0), made()])
    with pytest.raises(DataError, match=said) as error:
        sources.load(str(in_files))
    assert "\n" not in str(error.value)


def test_broken_files(in_files):
    last = in_files / "train-00003-of-00004.tfrecord"
    whole = last.read_bytes()
    loaded = sources.load(str(in_files)).train_images
    for broken, said in (
        (whole[:-1], "truncated record at"),
        (whole[:400] + bytes([whole[400] ^ 1]) + whole[401:], "corrupted record at"),
    ):
        last.write_bytes(broken)
        with pytest.raises(DataError, match=rf"train-00003-of-00004.tfrecord: {said} \d+ -> "):
            sources.load(str(in_files))
    last.write_bytes(whole[:40])
    with pytest.raises(DataError, match="the file has changed since the start"):
        loaded[22]
    (in_files / "test-0.tfrecord").unlink()
    with pytest.raises(DataError, match=r"no test\*.tfrecord in it"):
        sources.load(str(in_files))
