"""Which classes a run's best checkpoint takes for which, and the images on which it is most certain and wrong.

hvd-mnist report --digits RUN     writes RUN/digits.json (docs/run-folder.md) and shows it in the report
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hvd_mnist import checkpoint
from hvd_mnist.data.sources import load
from hvd_mnist.errors import DataError
from hvd_mnist.own import is_own
from hvd_mnist.run_folder import SCHEMA, write_json

MOST_WORST = 24
BATCH = 500  # images in a forward pass
FILE = "digits.json"


def write(run: str | Path, *, data: str | None = None, offline: bool = False, notify: Callable[[str], None]) -> Path:
    """Let the best checkpoint of ``run`` read the test set that the run was evaluated on; write RUN/digits.json.

    Args:
        data: the data set; default the one that the run names, unless that is a function: nothing that a run folder
            says is imported and called.

    Raises:
        CheckpointError: the run has no checkpoint that can be used.
        DataError: its data set is not to be had, or is not the one that the checkpoint was trained with.
    """
    run = Path(run)
    name = data or _data_of(run)
    found = checkpoint.find(run, notify)
    arrays = load(name, offline=offline, notify=notify)
    trained_with = checkpoint.load_state(found.path).get("data_sha256") or {}
    if trained_with.get("test_images", arrays.sha256["test_images"]) != arrays.sha256["test_images"]:
        raise DataError(
            f"{arrays.name}: its test images are not those of {found.path.name}, by their sha256",
            "give the run's own data set its old place again",
        )
    probabilities = _probabilities(checkpoint.load_model(found.path, notify=notify), arrays.test_images)
    labels, predicted = arrays.test_labels, probabilities.argmax(axis=1)
    names = arrays.class_names or [str(number) for number in range(arrays.classes)]
    write_json(
        run / FILE,
        {
            "schema": SCHEMA,
            "checkpoint": found.path.name,
            "data": arrays.name,
            "examples": len(labels),
            "wrong": int((predicted != labels).sum()),
            "labels": list(names),
            "confusion": confusion(labels, predicted, arrays.classes).tolist(),
            "worst": [
                {
                    "index": int(index),
                    "label": names[labels[index]],
                    "predicted": names[predicted[index]],
                    "probability": round(float(probabilities[index].max()), 4),
                    "png": as_png(arrays.test_images[index]),
                }
                for index in worst(labels, probabilities)
            ],
        },
    )
    return run / FILE


def confusion(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """int64 [classes, classes]: row is what an example is, column what it was taken for. Pure."""
    return np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def worst(labels: np.ndarray, probabilities: np.ndarray, most: int = MOST_WORST) -> np.ndarray:
    """Indices of the wrong answers, the most certain first. Pure.

    Args:
        labels: int [N].
        probabilities: float [N, classes].
    """
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    return wrong[np.argsort(-probabilities[wrong].max(axis=1), kind="stable")][:most]


def as_png(image: np.ndarray) -> str:
    """A uint8 image [height, width] or [height, width, channels] as base64 of a PNG."""
    from PIL import Image

    plain = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    file = io.BytesIO()
    Image.fromarray(plain).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")


def _data_of(run: Path) -> str:
    path = run / "config.json"
    try:
        name = str(json.loads(path.read_text(encoding="utf-8"))["knobs"]["data"]["value"])
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; it says on which data the run was evaluated") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: does not say on which data the run was evaluated") from None
    if is_own(name):
        raise DataError(
            f"{path}: the data came from the function {name}, which is not called unasked", f"--digits --data {name}"
        )
    return name


def _probabilities(model, images: np.ndarray) -> np.ndarray:
    """float64 [N, classes]."""
    rows = []
    for first in range(0, len(images), BATCH):
        part = images[first : first + BATCH]
        pixels = (part if part.ndim == 4 else part[..., np.newaxis]).astype(np.float32) / 255
        logits = np.asarray(model(pixels, training=False), np.float64)
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows.append(exponentials / exponentials.sum(axis=1, keepdims=True))
    return np.concatenate(rows)
