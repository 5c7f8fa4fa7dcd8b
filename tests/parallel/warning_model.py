"""A model of one's own whose function warns, on rank 1 of one thing more: for test_measuring.py."""

import warnings

import hvd_mnist.keras as hvd
from hvd_mnist import models


def build(input_shape, classes):
    warnings.warn("an old kind of layer", stacklevel=1)
    if hvd.rank() == 1:
        warnings.warn("little memory is left", stacklevel=1)
    return models.build("mlp", input_shape, classes)
