"""A small vision transformer: a picture is a sequence of 16 patches, read by two blocks of attention.

    horovodrun -np 2 hvd-mnist train --model examples.transformer:build --learning-rate 0.001 --epochs 10

A model is a function, and knows nothing of ranks: sharding, averaging, evaluation and saving are hvd-mnist's. All
layers are Keras' own, so that a saved model is loaded without this file.
"""

import keras
from keras import layers

GRID, WIDTH, HEADS, BLOCKS = 4, 64, 4, 2  # 4 x 4 patches, each told in 64 numbers


def build(input_shape, classes):
    """A keras.Model: pictures in 0..1 go in, logits come out."""
    height, width, _ = input_shape
    patch = height // GRID, width // GRID  # pixels; a rim that is left over is not seen
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(WIDTH, patch, strides=patch)(inputs)[:, :GRID, :GRID]
    x = layers.Reshape((GRID * GRID, WIDTH))(x)
    # Attention has no order: each place of the sequence (p) learns a vector of its own, the bias of this layer.
    x = layers.EinsumDense("bpi,io->bpo", (GRID * GRID, WIDTH), bias_axes="po")(x)
    for _ in range(BLOCKS):
        x = block(x)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(classes, dtype="float32")(x), name="transformer")


def block(x):
    """Attention between the patches, then two dense layers on each of them; both add to what came in."""
    y = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=0.1)(y, y)])
    y = layers.Dense(2 * WIDTH, activation="gelu")(layers.LayerNormalization()(x))
    return layers.Add()([x, layers.Dropout(0.1)(layers.Dense(WIDTH)(y))])
