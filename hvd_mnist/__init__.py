"""hvd_mnist: Horovod ring-allreduce training for today's TensorFlow (2.21, Keras 3).

Importing this package imports nothing heavy: TensorFlow and Horovod load with ``hvd_mnist.keras``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_mnist.api import train as train
    from hvd_mnist.config import TrainConfig as TrainConfig
    from hvd_mnist.launch.function import run as run

__version__ = "0.1.0"

# Name -> the module that has it, loaded when somebody asks for it.
_LAZY = {"TrainConfig": "hvd_mnist.config", "run": "hvd_mnist.launch.function", "train": "hvd_mnist.api"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'hvd_mnist' has no attribute '{name}'")
