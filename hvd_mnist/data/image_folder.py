"""A folder of pictures, one folder a class: DIR/train/<class>/*.png and DIR/test/<class>/*.png, decoded once.

The classes are the folders of DIR/train, sorted by name, numbered from 0; pictures are read in the order of their
names. So every rank and every host has the same arrays. All pictures have one size.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hvd_mnist.data import pictures
from hvd_mnist.errors import DataError

ENDINGS = (".png", ".jpg", ".jpeg")


def is_image_folder(folder: Path) -> bool:
    """It has ``train/`` in it."""
    return (folder / "train").is_dir()


def read_image_folder(folder: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Decode all pictures into memory: N x height x width x channels bytes.

    Returns:
        the four arrays: images uint8 [N, height, width] where all pictures are grey, else [N, height, width, 3];
        labels int64 [N]; and the names of the classes.

    Raises:
        DataError: a picture that cannot be read, of another size, with transparency or 16 bits; a class without
            pictures; a class of test/ that train/ has not; a file that is no picture. One line with its path.
    """
    try:
        names = _classes(folder / "train")
        unknown = [name for name in _classes(folder / "test") if name not in names]
        if unknown:
            known = ", ".join(names[:6])
            raise DataError(f"{folder / 'test' / unknown[0]}: no such class in {folder / 'train'}, which has {known}")
        files = {part: _files(folder / part, names) for part in ("train", "test")}
        every = [file for part in files.values() for file, _ in part]
        heads = [_read(pictures.head, file) for file in every]
        size = heads[0][1]
        for file, (_, found) in zip(every, heads, strict=True):
            if found != size:
                raise DataError(
                    f"{file}: {found[1]} x {found[0]} pixels, expected {size[1]} x {size[0]} as {every[0]}",
                    "make all pictures one size",
                )
        mode = pictures.common_mode(mode for mode, _ in heads)
        arrays = {}
        for part, pairs in files.items():
            images = np.empty((len(pairs), *size, *((3,) if mode == "RGB" else ())), np.uint8)
            for number, (file, _) in enumerate(pairs):
                images[number] = _read(pictures.pixels, file, mode)
            arrays[f"{part}_images"] = images
            arrays[f"{part}_labels"] = np.array([label for _, label in pairs], np.int64)
    except OSError as error:
        raise DataError(f"{error.filename or folder}: cannot be read ({error.strerror or error})") from error
    return arrays, names


def _read(what, file: Path, *arguments):
    with file.open("rb") as source:
        return what(source, *arguments, str(file))


def _classes(part: Path) -> tuple[str, ...]:
    """The names of the folders in it, sorted."""
    if not part.is_dir():
        raise DataError(f"{part}: no such folder; pictures lie in train/<class>/ and test/<class>/")
    for stray in (each for each in _seen(part) if not each.is_dir()):
        raise DataError(f"{stray}: a file beside the folders of classes; expected {part.name}/<class>/NAME.png")
    names = tuple(each.name for each in _seen(part))
    if not names:
        raise DataError(f"{part}: no folder in it; pictures lie in {part.name}/<class>/")
    return names


def _files(part: Path, names: tuple[str, ...]) -> list[tuple[Path, int]]:
    """(file, label) in the order of classes and names. A class may be missing from test/."""
    found = []
    for label, name in enumerate(names):
        files = _seen(part / name) if (part / name).is_dir() else []
        if not files and part.name == "train":
            raise DataError(f"{part / name}: a class without a picture")
        for file in files:
            if file.suffix.lower() not in ENDINGS or not file.is_file():
                raise DataError(f"{file}: expected pictures ({', '.join(ENDINGS)}) and nothing else in a class")
            found.append((file, label))
    if not found:
        raise DataError(f"{part}: no pictures in it")
    return found


def _seen(folder: Path) -> list[Path]:
    """What is in a folder, sorted by name; hidden files are left out."""
    return sorted((each for each in folder.iterdir() if not each.name.startswith(".")), key=lambda each: each.name)
