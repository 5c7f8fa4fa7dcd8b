"""Horovod for loops of your own on TensorFlow 2.21: ``import hvd_mnist.tensorflow as hvd``.

All of ``hvd_mnist.keras``, and ``DistributedGradientTape``, in place of ``horovod.tensorflow``.
"""

from __future__ import annotations

from hvd_mnist.keras import *  # noqa: F403
from hvd_mnist.keras import __all__ as _keras
from hvd_mnist.keras.tape import DistributedGradientTape

__all__ = ["DistributedGradientTape", *_keras]
