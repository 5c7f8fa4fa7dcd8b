"""A cached data set that ranks map: the same arrays, checked like read ones, and never silently other ones."""

from __future__ import annotations

import os
import zipfile
from collections import namedtuple

import numpy as np
import pytest

from hvd_mnist.data import files, mapped, sources
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


def test_the_images_are_the_files_pages_and_read_only(cache, digits):
    arrays = sources.load("tiny", cache=cache, offline=True)
    assert_holds(arrays, digits)
    assert arrays.mapped == cache / "tiny.npz"
    for images in (arrays.train_images, arrays.test_images):
        assert isinstance(images.base, np.memmap) and not images.flags.writeable
    arrays.check_unchanged()


def test_elsewhere_it_is_read_as_before(cache, digits, monkeypatch):
    monkeypatch.setattr(sources, "on_this_host", lambda path: False)
    arrays = sources.load("tiny", cache=cache, offline=True)
    assert_holds(arrays, digits)
    assert arrays.mapped is None and not isinstance(arrays.train_images.base, np.memmap)
    (cache / "tiny.npz").write_bytes(b"anything")
    arrays.check_unchanged()  # it is ours


def test_a_compressed_file_is_read(cache, digits):
    np.savez_compressed(cache / "tiny.npz", **{NAMES[name]: array for name, array in digits.items()})
    assert mapped.map_npz(cache / "tiny.npz") is None
    arrays = sources.load("tiny", cache=cache, offline=True)
    assert_holds(arrays, digits)
    assert arrays.mapped is None


def test_the_order_of_an_arrays_bytes_and_a_longer_header_are_followed(tmp_path, digits):
    given = digits | {"train_images": np.asfortranarray(digits["train_images"])}
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        for version, (name, array) in zip([(1, 0), (2, 0)] * 2, given.items(), strict=True):
            with archive.open(f"{NAMES[name]}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, version)
    for name, array in mapped.map_npz(tmp_path / "own.npz").items():
        assert np.array_equal(array, digits[name]), name


@pytest.mark.parametrize("keep", [0, 60, -2000], ids=["empty", "a head", "cut off"])
def test_a_broken_file_is_a_data_error(keep, cache):
    file = cache / "tiny.npz"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"tiny\.npz: broken or not an \.npz file"):
        mapped.map_npz(file)


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
        file.seek(arrays.train_images.base.offset + 100)
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

    assert mapped.on_this_host(File()) is expected
