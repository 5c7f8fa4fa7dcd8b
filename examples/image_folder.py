"""A folder of pictures, as CIFAR-like data sets come: draw a small one, train on it, in two commands.

    python examples/image_folder.py pictures          writes pictures/train/<class>/*.png, pictures/test/<class>/*.png
    horovodrun -np 2 hvd-mnist train --data pictures --model examples.image_folder:build --augment none

With your own pictures there is nothing to write: put them into train/<class>/ and test/<class>/, all of one size, PNG
or JPEG. The folders' names are the classes. docs/data.md has the rules, and what to do where memory is too small.
"""

import sys
from pathlib import Path

import numpy as np

CLASSES = ("disc", "ring", "square", "stripes")
SIDE = 32  # pixels


def build(input_shape, classes):
    """A keras.Model: pictures in 0..1 go in, logits come out."""
    from keras import Sequential, layers

    return Sequential(
        [
            layers.Input(input_shape),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.GlobalMaxPooling2D(),
            layers.Dense(classes, dtype="float32"),
        ],
        name="pictures",
    )


def draw(kind, rng):
    """uint8 [SIDE, SIDE, 3]: a shape of one colour somewhere on another, with noise."""
    ground, colour = rng.integers(0, 100, 3), rng.integers(140, 230, 3)
    down, right = np.mgrid[:SIDE, :SIDE]
    size, (y, x) = rng.integers(6, 11), rng.integers(11, SIDE - 11, 2)
    far = np.hypot(down - y, right - x)
    square = (abs(down - y) < size) & (abs(right - x) < size)
    inside = {
        "disc": far < size,
        "ring": (far < size) & (far > size - 3),
        "square": square,
        "stripes": square & (down % 4 < 2),
    }[kind]
    picture = np.where(inside[..., None], colour, ground) + rng.integers(0, 25, (SIDE, SIDE, 3))
    return picture.astype(np.uint8)


def write(folder, train=200, test=50):
    """``train`` and ``test`` pictures of each class; the same ones each time."""
    from PIL import Image

    rng = np.random.default_rng(1)
    for part, number in (("train", train), ("test", test)):
        for kind in CLASSES:
            place = Path(folder) / part / kind
            place.mkdir(parents=True, exist_ok=True)
            for each in range(number):
                Image.fromarray(draw(kind, rng)).save(place / f"{each:04}.png")


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "pictures"
    write(folder)
    print(f"{folder}: {', '.join(CLASSES)}. Now: hvd-mnist train --data {folder} --model examples.image_folder:build")
