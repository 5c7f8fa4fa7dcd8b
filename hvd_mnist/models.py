"""The networks, with nothing of distribution in them: pixels in 0..1 go in, logits come out.

    from hvd_mnist import models
    model = models.build("small")       # a keras.Model, not compiled
    model.summary()

small   the default of ``hvd-mnist train``: chosen for test accuracy per CPU second (docs/recipe.md)
cnn     the 1.2 M-parameter network of Horovod's and Keras' MNIST examples: the one for comparisons
mlp     784-100-10, the network of the old distributed-TensorFlow tutorials
package.module:build    a function of yours (docs/own-model.md)

No network has batch normalization: its running statistics would differ between ranks, which the comparison of
replicas forbids, and N ranks at batch B/N would no longer equal one rank at batch B.
"""

from __future__ import annotations

import difflib

from hvd_mnist import own
from hvd_mnist.errors import UsageError

NAMES = ("small", "cnn", "mlp")
PIXEL_MEAN, PIXEL_SPREAD = 0.1307, 0.3081  # of the MNIST training images, as parts of 255


def build(name: str, input_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10, *, dropout: bool = True):
    """A new network with its variables made, from Keras' current random seed.

    Args:
        name: one of NAMES, or MODULE:FUNCTION, called as ``build(input_shape, classes)``.
        input_shape: height, width, channels of an image.
        classes: number of outputs.
        dropout: False gives the same layers, and the same initial weights, with a dropout rate of 0.

    Returns:
        keras.Model, not compiled: float [batch, height, width, channels] in 0..1 -> logits float32 [batch, classes].

    Raises:
        UsageError: unknown name; an image too small for the network; or a function that gives no such model.
    """
    if own.is_own(name):
        return _own(name, input_shape, classes)
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, 1)
        raise UsageError(
            f"model {name!r} is unknown: expected one of {', '.join(NAMES)}", f"--model {near[0]}" if near else None
        )
    if min(input_shape[:2]) < SMALLEST[name]:
        least, (height, width) = SMALLEST[name], input_shape[:2]
        raise UsageError(
            f"model {name!r} needs images of {least} x {least} pixels or more, found {height} x {width}", "--model mlp"
        )
    return {"small": _small, "cnn": _cnn, "mlp": _mlp}[name](tuple(input_shape), classes, 1.0 if dropout else 0.0)


def compile_for_digits(model, optimizer) -> None:
    """Loss on logits and whole-number labels, accuracy; never XLA, in which Horovod's operations cannot be (CPU)."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Not "accuracy": Keras would make its variables in the first step, and TensorFlow traces such a step twice.
    accuracy = keras.metrics.SparseCategoricalAccuracy("accuracy")
    model.compile(optimizer, loss=loss, metrics=[accuracy], jit_compile=False)


def _own(name, input_shape, classes):
    import keras

    expected = "build(input_shape, classes)"
    model = own.call(name, "--model", expected, input_shape, classes)
    if not isinstance(model, keras.Model):
        raise UsageError(
            f"--model {name} returned {type(model).__name__}, expected a keras.Model", f"def {expected}: ..."
        )
    if not model.built:
        model.build((None, *input_shape))
    given = model.compute_output_shape((None, *input_shape))
    if tuple(given) != (None, classes):
        raise UsageError(
            f"--model {name} gives {given} for images of {input_shape}, expected (None, {classes}): logits for "
            f"{classes} classes",
            f"end it with keras.layers.Dense({classes}, dtype='float32')",
        )
    return model


SMALLEST = {"small": 15, "cnn": 6, "mlp": 1}  # pixels; below it a layer would have no output


def _small(input_shape, classes, drop):
    from keras import Input, Sequential, layers

    return Sequential(
        [
            Input(input_shape, name="pixels"),
            layers.Rescaling(1 / PIXEL_SPREAD, -PIXEL_MEAN / PIXEL_SPREAD, name="standardize"),
            layers.Conv2D(32, 5, strides=2, activation="relu", name="conv1"),
            layers.Conv2D(32, 3, activation="relu", name="conv2"),
            layers.Conv2D(64, 3, activation="relu", name="conv3"),
            layers.MaxPooling2D(2, name="pool"),
            layers.Dropout(0.2 * drop, name="dropout1"),
            layers.Flatten(name="flatten"),
            layers.Dense(128, activation="relu", name="hidden"),
            layers.Dropout(0.2 * drop, name="dropout2"),
            _logits(classes),
        ],
        name="small",
    )


def _cnn(input_shape, classes, drop):
    from keras import Input, Sequential, layers

    return Sequential(
        [
            Input(input_shape, name="pixels"),
            layers.Conv2D(32, 3, activation="relu", name="conv1"),
            layers.Conv2D(64, 3, activation="relu", name="conv2"),
            layers.MaxPooling2D(2, name="pool"),
            layers.Dropout(0.25 * drop, name="dropout1"),
            layers.Flatten(name="flatten"),
            layers.Dense(128, activation="relu", name="hidden"),
            layers.Dropout(0.5 * drop, name="dropout2"),
            _logits(classes),
        ],
        name="cnn",
    )


def _mlp(input_shape, classes, drop):
    from keras import Input, Sequential, layers

    return Sequential(
        [
            Input(input_shape, name="pixels"),
            layers.Flatten(name="flatten"),
            layers.Dense(100, activation="relu", name="hidden"),
            _logits(classes),
        ],
        name="mlp",
    )


def _logits(classes):
    from keras import layers

    return layers.Dense(classes, dtype="float32", name="logits")  # float32 under mixed precision too
