"""One encoded picture (PNG or JPEG) as bytes of pixels, with Pillow. Nothing is resized or turned."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from hvd_mnist.errors import DataError, printable

GREY, COLOURED = ("1", "L"), ("P", "RGB")  # Pillow's modes that become 8 bits a channel without a loss


def head(source: BinaryIO, where: str) -> tuple[str, tuple[int, int]]:
    """What a picture's header says, without decoding it.

    Args:
        source: the file, open.
        where: its name, for errors.

    Returns:
        (mode, (height, width)); mode is one of GREY or COLOURED.

    Raises:
        DataError: no picture, transparency, or more than 8 bits a channel.
    """
    from PIL import Image

    try:
        with Image.open(source, formats=("PNG", "JPEG")) as picture:
            mode, (width, height), transparent = picture.mode, picture.size, "transparency" in picture.info
    except Exception as error:  # broken bytes make Pillow raise every kind
        raise DataError(f"{where}: not a PNG or JPEG that can be read ({_words(error)})") from None
    if mode not in (*GREY, *COLOURED) or transparent:
        what = "transparency" if transparent or mode in ("LA", "PA", "RGBA") else f"mode {mode}"
        raise DataError(f"{where}: a picture with {what}, expected 8 bits a channel, grey or RGB", "convert it")
    return mode, (height, width)


def common_mode(modes) -> str:
    """The mode in which all pictures of a data set are decoded: "L" where all are grey, else "RGB"."""
    return "L" if all(mode in GREY for mode in modes) else "RGB"


def pixels(source: BinaryIO, mode: str, where: str) -> np.ndarray:
    """uint8 [height, width] for mode "L", [height, width, 3] for "RGB".

    Raises:
        DataError: the picture is broken.
    """
    from PIL import Image

    try:
        with Image.open(source, formats=("PNG", "JPEG")) as picture:
            return np.asarray(picture.convert(mode))
    except Exception as error:
        raise DataError(f"{where}: not a PNG or JPEG that can be read ({_words(error)})") from None


def _words(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        return "it does not begin like one"
    return printable(str(error)) or type(error).__name__
