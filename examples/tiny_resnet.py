"""A residual network with batch normalization on colour pictures, as a model and a data set of your own.

    cd examples
    hvd-mnist train --model tiny_resnet:build --data tiny_resnet:load --augment none
    horovodrun -np 2 -H localhost:2 hvd-mnist train --model tiny_resnet:build --data tiny_resnet:load --augment none

``build`` and ``load`` know nothing of ranks: sharding, averaging, evaluation and saving are hvd-mnist's. Nothing is
downloaded: the pictures (a disc, a square or a cross in some colour, on noise) are drawn from a fixed seed.
"""

import keras
import numpy as np
from keras import layers


def build(input_shape, classes):
    """A keras.Model: pictures in 0..1 go in, logits come out."""
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        shortcut = x if stride == 1 else layers.Conv2D(filters, 1, strides=stride, use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization()(x))
        y = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(y)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(y)
        x = layers.Add()([shortcut, y])
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    return keras.Model(inputs, layers.Dense(classes, dtype="float32")(x), name="tiny_resnet")


def load():
    """((x_train, y_train), (x_test, y_test)): uint8 [N, 32, 32, 3] and whole numbers [N]; the same on every rank."""
    return draw(2048, seed=1), draw(512, seed=2)


def draw(number, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, number)
    pictures = rng.integers(0, 90, (number, 32, 32, 3), dtype=np.uint8)
    down, right = np.mgrid[:32, :32]
    for picture, label in zip(pictures, labels, strict=True):
        size, (y, x) = rng.integers(5, 9), rng.integers(10, 22, 2)
        far_down, far_right = abs(down - y), abs(right - x)
        inside = (
            far_down**2 + far_right**2 < size**2,
            (far_down < size) & (far_right < size),
            ((far_down < 2) & (far_right < size)) | ((far_right < 2) & (far_down < size)),
        )[label]
        picture[inside] = rng.integers(120, 256, 3)
    return pictures, labels
