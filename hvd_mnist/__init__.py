"""hvd_mnist: Horovod ring-allreduce training for today's TensorFlow (2.21, Keras 3).

Importing this package imports nothing heavy: TensorFlow and Horovod load with ``hvd_mnist.keras``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_mnist.launch.function import run as run

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "run":
        from hvd_mnist.launch.function import run

        return run
    raise AttributeError(f"module 'hvd_mnist' has no attribute '{name}'")
