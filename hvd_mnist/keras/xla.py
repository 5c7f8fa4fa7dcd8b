"""XLA under control: Horovod's ops have no XLA kernel on CPU, and on GPU only where they were switched on.

Keras 3 compiles with XLA by itself (``jit_compile="auto"``) wherever the layers allow it; it does not look at
the optimizer.
"""

from __future__ import annotations

import os

import keras
import tensorflow as tf

from hvd_mnist.errors import UsageError


def horovod_ops_compile() -> bool:
    """Horovod's XLA ops are switched on, and there is a GPU to run them."""
    on = os.environ.get("HOROVOD_ENABLE_XLA_OPS", "0").lower() in ("1", "true")
    return on and bool(tf.config.list_physical_devices("GPU"))


def keep_keras_from_choosing_it() -> None:
    """Answer "no" for Keras' ``jit_compile="auto"`` where the model's optimizer is a DistributedOptimizer.

    Keras decides in one method of its Trainer and offers no way to ask the optimizer, so that method is
    replaced by one that asks it first. A forced ``jit_compile=True`` is left to ``refuse_inside_xla``, which
    also speaks where a later Keras decides elsewhere.
    """
    from hvd_mnist.keras.replicas import is_distributed

    decide = getattr(keras.Model, "_resolve_auto_jit_compile", None)
    if decide is None or hasattr(decide, "asks_the_optimizer"):
        return

    def _resolve_auto_jit_compile(self):
        return not is_distributed(getattr(self, "optimizer", None)) and decide(self)

    _resolve_auto_jit_compile.asks_the_optimizer = True
    keras.Model._resolve_auto_jit_compile = _resolve_auto_jit_compile


def refuse_inside_xla(who) -> None:
    """Raise UsageError where a step is being traced for XLA and Horovod's ops cannot be compiled.

    Args:
        who: the optimizer or tape that is about to exchange gradients.
    """
    from tensorflow.python.ops import control_flow_util

    if tf.executing_eagerly() or horovod_ops_compile():
        return
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UsageError(
            f"jit_compile=True: Horovod's allreduce in {type(who).__name__} '{who.name}' cannot be "
            "compiled by XLA here",
            "model.compile(..., jit_compile=False), or on GPUs set HOROVOD_ENABLE_XLA_OPS=1",
        )
