"""Pictures of digits in, digits out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvd_mnist.errors import DataError


@dataclass(frozen=True)
class Prediction:
    """``probabilities`` is float [classes]; ``label`` is its largest entry's index."""

    path: str
    label: int
    probabilities: np.ndarray

    @property
    def probability(self) -> float:
        return float(self.probabilities[self.label])


def read_image(path: str | Path, height: int, width: int, invert: str = "auto") -> np.ndarray:
    """A picture as the network wants it: float32 [height, width, 1] in 0..1, light strokes on a dark ground.

    Args:
        path: PNG, JPEG or anything else that Pillow reads; colours become grey.
        height, width: of the network's input; the picture is fitted into it with its proportions kept.
        invert: "yes" for dark strokes on a light ground, "no", or "auto": yes where most of the picture is light.

    Raises:
        DataError: no such file, or no picture.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            grey = ImageOps.exif_transpose(picture).convert("L")
    except UnidentifiedImageError:
        raise DataError(f"{path}: not a picture (PNG, JPEG, ...)") from None
    except (OSError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if invert == "yes" or (invert == "auto" and float(np.mean(np.asarray(grey))) > 127):
        grey = ImageOps.invert(grey)
    fitted = ImageOps.pad(grey, (width, height), color=0)
    return np.asarray(fitted, np.float32)[..., np.newaxis] / 255


def predict(model, paths, *, invert: str = "auto") -> list[Prediction]:
    """What ``model`` (logits [batch, classes]) sees in each picture."""
    height, width = model.input_shape[1:3]
    images = np.stack([read_image(path, height, width, invert) for path in paths])
    logits = np.asarray(model(images, training=False), np.float64)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    return [Prediction(str(path), int(row.argmax()), row) for path, row in zip(paths, probabilities, strict=True)]
