"""Which classes are taken for which, and the images on which a model is most certain and wrong.

hvd-mnist train                   writes RUN/digits.json at its end (docs/run-folder.md), from its last evaluation
hvd-mnist report --digits RUN     writes it anew, from the best checkpoint

Of a test set that is shared out, each rank counts its own part; counts and lists of all ranks are then put together.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvd_mnist import checkpoint
from hvd_mnist.data.sources import Arrays, load
from hvd_mnist.errors import DataError
from hvd_mnist.own import is_own
from hvd_mnist.run_folder import SCHEMA, write_json

MOST_WORST = 24
MOST_CLASSES = 50  # of which a matrix is kept: a larger one nobody reads
FILE = "digits.json"


class Mistake(NamedTuple):
    """A wrong answer: the example's place in the test set, what it is, what it was taken for, and how certainly."""

    index: int
    label: int
    predicted: int
    probability: float


def confusion(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """int64 [classes, classes]: row is what an example is, column what it was taken for. Pure.

    A label that is no class (which no loss is finite for) is not counted.
    """
    known = (labels >= 0) & (labels < classes)
    places = labels[known] * classes + predicted[known]
    return np.bincount(places, minlength=classes * classes).reshape(classes, classes)


def cells(matrix: np.ndarray) -> list[tuple[int, int]]:
    """(place, count) of what is not 0 in a matrix: what travels between ranks. Pure."""
    flat = matrix.ravel()
    return [(int(place), int(flat[place])) for place in np.flatnonzero(flat)]


def added(parts: Iterable[Sequence[Sequence[int]]], classes: int) -> np.ndarray:
    """The sum, int64 [classes, classes], of matrices given as ``cells``. Pure."""
    total = np.zeros(classes * classes, np.int64)
    for part in parts:
        for place, count in part:
            total[place] += count
    return total.reshape(classes, classes)


def worst(
    labels: np.ndarray, predicted: np.ndarray, probability: np.ndarray, first: int = 0, most: int = MOST_WORST
) -> list[Mistake]:
    """The wrong answers, the most certain first; among equally certain ones the first in the test set. Pure.

    Args:
        labels, predicted: int [N], of examples that stand beside each other in the test set.
        probability: float [N], of what was predicted.
        first: place of the first of them in the test set.
    """
    wrong = np.flatnonzero(predicted != labels)
    chosen = wrong[np.argsort(-probability[wrong], kind="stable")][:most]
    return [Mistake(int(n) + first, int(labels[n]), int(predicted[n]), float(probability[n])) for n in chosen]


def worst_of_all(parts: Iterable[Iterable[Sequence]], most: int = MOST_WORST) -> tuple[Mistake, ...]:
    """The same of several parts of a test set together, each as ``worst`` gave it. Pure."""
    every = [Mistake(*each) for part in parts for each in part]
    return tuple(sorted(every, key=lambda each: (-each.probability, each.index))[:most])


def record(evaluation, arrays: Arrays, by: str) -> dict:
    """What digits.json holds. ``evaluation``: an ``evaluate.Evaluation``; ``by``: the name of the checkpoint."""
    classes = len(evaluation.confusion)
    names = arrays.class_names or [str(number) for number in range(classes)]
    return {
        "schema": SCHEMA,
        "checkpoint": by,
        "data": arrays.name,
        "examples": evaluation.examples,
        "wrong": evaluation.examples - evaluation.correct,
        "labels": list(names),
        "confusion": evaluation.confusion.tolist() if classes <= MOST_CLASSES else None,
        "worst": [
            {
                "index": each.index,
                "label": names[each.label],
                "predicted": names[each.predicted],
                "probability": round(each.probability, 4),
                "png": as_png(arrays.test_images[each.index]),
            }
            for each in (evaluation.worst if arrays.test_images is not None else ())  # a `Stream` keeps no image
        ],
    }


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
    from hvd_mnist.evaluate import Evaluator

    model = checkpoint.load_model(found.path, notify=notify)
    alone = Evaluator(model, arrays, gather=lambda value, name: [value])
    write_json(run / FILE, record(alone(), arrays, found.path.name))
    return run / FILE


def as_png(image: np.ndarray) -> str:
    """A uint8 image [height, width] or [height, width, channels] as base64 of a PNG: grey of the first channel where
    the channels are not the three of a colour picture."""
    from PIL import Image

    plain = image[..., 0] if image.ndim == 3 and image.shape[2] != 3 else image
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
