"""hvd_mnist: Horovod ring-allreduce training for today's TensorFlow (2.21, Keras 3).

Importing this package imports nothing heavy: TensorFlow and Horovod load with ``hvd_mnist.keras``.
"""

__version__ = "0.1.0"


def __getattr__(name):
    if name == "run":
        from hvd_mnist.launch.function import run

        return run
    raise AttributeError(f"module 'hvd_mnist' has no attribute '{name}'")
