"""A cached data set whose images are read when they are asked for: the same images, and never silently other ones."""

from __future__ import annotations

import os
import zipfile
from collections import namedtuple

import numpy as np
import pytest

from hvd_mnist.data import files, sources, stored
from hvd_mnist.errors import DataError

NAMES = {array: key for array, (key, _, _) in files.ARRAYS.items()}


@pytest.fixture
def cache(digits, tmp_path, monkeypatch):
    """A folder that holds a known data set, "tiny"."""
    known = sources.Known(train=20, test=10, sha256={name: files.digest(array) for name, array in digits.items()})
    monkeypatch.setitem(sources.KNOWN, "tiny", known)
    monkeypatch.setattr(sources, "on_this_host", lambda path: True)  # wherever the tests' folder may lie
    files.write_npz(tmp_path / "tiny.npz", digits)
    return tmp_path


def assert_holds(arrays, digits):
    for name, expected in digits.items():
        assert np.array_equal(getattr(arrays, name), expected), name


def test_images_stay_in_the_file(cache, digits):
    arrays = sources.load("tiny", cache=cache, offline=True)
    assert_holds(arrays, digits)
    assert arrays.stored == cache / "tiny.npz"
    assert isinstance(arrays.train_images, stored.Stored) and isinstance(arrays.test_images, stored.Stored)
    arrays.check_unchanged()


@pytest.mark.parametrize(
    "chosen",
    [3, -1, np.int64(7), slice(2, 9), slice(5, 5), slice(-3, None), slice(0, 20, 3), slice(None, None, -1),
     np.array([4, 19, 4, 0]), [1, 2], np.arange(20) % 2 == 0, np.array([], int)],
    ids=str,
)  # fmt: skip
def test_they_are_chosen_as_an_arrays_are(chosen, cache, digits):
    images, expected = sources.load("tiny", cache=cache, offline=True).train_images, digits["train_images"]
    found = images[chosen]
    assert found.dtype == np.uint8 and found.shape == expected[chosen].shape and np.array_equal(found, expected[chosen])
    assert (len(images), images.shape, images.ndim) == (20, (20, 28, 28), 3)


def test_other_ways_to_choose_are_refused(cache):
    images = sources.load("tiny", cache=cache, offline=True).train_images
    for chosen in ((..., None), (0, 0), (slice(None), 3)):
        with pytest.raises(IndexError, match="by a number, a slice or an array of numbers"):
            images[chosen]
    with pytest.raises(IndexError):
        images[20]


def test_a_read_that_ends_early_goes_on(cache, digits, monkeypatch):
    """As one of more than 2 GB does."""
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, start: whole(file, min(size, 1000), start))
    images = sources.load("tiny", cache=cache, offline=True).train_images
    assert np.array_equal(np.asarray(images), digits["train_images"])


def test_a_file_that_is_cut_short_is_one_line(cache):
    arrays = sources.load("tiny", cache=cache, offline=True)
    os.truncate(cache / "tiny.npz", 4000)  # labels and test images come first
    for images in (arrays.train_images, arrays.test_images):
        with pytest.raises(DataError, match=r"tiny\.npz: cut short while it was trained on \(\d* of 7840 bytes"):
            images[:10]
    with pytest.raises(DataError, match="was written into while it was trained on"):
        arrays.check_unchanged()


def test_elsewhere_it_is_read_as_before(cache, digits, monkeypatch):
    monkeypatch.setattr(sources, "on_this_host", lambda path: False)
    arrays = sources.load("tiny", cache=cache, offline=True)
    assert_holds(arrays, digits)
    assert arrays.stored is None and isinstance(arrays.train_images, np.ndarray)
    (cache / "tiny.npz").write_bytes(b"anything")
    arrays.check_unchanged()  # it is ours


def test_a_compressed_file_is_read(cache, digits):
    np.savez_compressed(cache / "tiny.npz", **{NAMES[name]: array for name, array in digits.items()})
    assert stored.store_npz(cache / "tiny.npz") is None
    arrays = sources.load("tiny", cache=cache, offline=True)
    assert_holds(arrays, digits)
    assert arrays.stored is None


def test_a_longer_header_is_followed_and_bytes_in_another_order_are_read_whole(tmp_path, digits):
    def written(given, versions):
        with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
            for version, (name, array) in zip(versions, given.items(), strict=True):
                with archive.open(f"{NAMES[name]}.npy", "w") as entry:
                    np.lib.format.write_array(entry, array, version)
        return stored.store_npz(tmp_path / "own.npz")

    for versions in ([(1, 0), (2, 0)] * 2, [(2, 0), (1, 0)] * 2):
        for name, array in written(digits, versions).items():
            assert np.array_equal(array, digits[name]), name
    assert written(digits | {"train_images": np.asfortranarray(digits["train_images"])}, [(1, 0)] * 4) is None
    assert written(digits | {"train_images": digits["train_images"].astype(np.int16)}, [(1, 0)] * 4) is None


@pytest.mark.parametrize("keep", [0, 60, -2000], ids=["empty", "a head", "cut off"])
def test_a_broken_file_is_a_data_error(keep, cache):
    file = cache / "tiny.npz"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"tiny\.npz: broken or not an \.npz file"):
        stored.store_npz(file)


def test_a_file_that_is_replaced_stays_as_it_was(cache, digits):
    arrays = sources.load("tiny", cache=cache, offline=True)
    files.write_npz(cache / "tiny.npz", {name: array[::-1].copy() for name, array in digits.items()})
    arrays.check_unchanged()
    assert_holds(arrays, digits)
    (cache / "tiny.npz").unlink()
    arrays.check_unchanged()
    assert_holds(arrays, digits)


def test_a_file_that_is_only_touched_is_the_same(cache):
    arrays = sources.load("tiny", cache=cache, offline=True)
    os.utime(cache / "tiny.npz", (0, 0))
    arrays.check_unchanged()


def test_a_file_that_is_written_into_is_found_out(cache):
    arrays = sources.load("tiny", cache=cache, offline=True)
    with (cache / "tiny.npz").open("r+b") as file:
        file.seek(int(arrays.train_images._starts[0]) + 100)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    os.utime(cache / "tiny.npz", (0, 0))  # a clock of coarse ticks may give both writes one date
    with pytest.raises(DataError, match=r"tiny\.npz on .* was written into while it was trained on \(train_images has"):
        arrays.check_unchanged()


Part = namedtuple("Part", "mountpoint fstype")


@pytest.mark.parametrize(
    "mounts, expected",
    [
        ([("/", "ext4")], True),
        ([("/", "ext4"), ("/home", "nfs4")], False),
        ([("/", "nfs"), ("/home/me", "tmpfs")], True),
        ([("/", "ext4"), ("/home", "xfs"), ("/home", "lustre")], False),
        ([("/", "ext4"), ("/homely", "nfs")], True),
        ([("/", "something new")], False),
        ([], False),
    ],
)
def test_which_file_systems_are_of_this_host(mounts, expected, monkeypatch, tmp_path):
    import psutil

    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [Part(*mount) for mount in mounts])

    class File:
        def resolve(self):
            from pathlib import PurePosixPath

            return PurePosixPath("/home/me/.cache/mnist.npz")

    assert stored.on_this_host(File()) is expected
