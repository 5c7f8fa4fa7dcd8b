"""Horovod for Keras 3: ``import hvd_mnist.keras as hvd`` in place of ``horovod.tensorflow.keras``.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()))
    model.compile(optimizer, ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Where gradients are averaged: optimizer.py. How replicas are proven equal: replicas.py.
"""

from __future__ import annotations

from collections.abc import Callable as _Callable
from collections.abc import Mapping as _Mapping
from collections.abc import Sequence as _Sequence
from pathlib import Path as _Path
from typing import Any as _Any

from hvd_mnist.runtime.world import join as _join
from hvd_mnist.runtime.world import prepare_environment as _prepare_environment

_prepare_environment()  # before Horovod loads MPI

import horovod.tensorflow as _hvd  # noqa: E402
import keras as _keras  # noqa: E402
import tensorflow as _tf  # noqa: E402
from horovod.tensorflow import (  # noqa: E402
    Adasum,
    Average,
    Sum,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from horovod.tensorflow.functions import allgather_object, broadcast_object  # noqa: E402
from horovod.tensorflow.mpi_ops import (  # noqa: E402
    ProcessSet,
    add_process_set,
    alltoall,
    global_process_set,
    grouped_allgather,
    join,
    remove_process_set,
)

from hvd_mnist.errors import UsageError  # noqa: E402
from hvd_mnist.keras import callbacks, elastic  # noqa: E402
from hvd_mnist.keras.broadcast import broadcast_variables  # noqa: E402
from hvd_mnist.keras.compression import Compression  # noqa: E402
from hvd_mnist.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer  # noqa: E402
from hvd_mnist.keras.replicas import proof_failure  # noqa: E402
from hvd_mnist.keras.stall_report import StallReport  # noqa: E402
from hvd_mnist.keras.statistics import average_moving_statistics  # noqa: E402
from hvd_mnist.keras.sync_batch_normalization import SyncBatchNormalization  # noqa: E402
from hvd_mnist.runtime.agreement import agree as _agree  # noqa: E402

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "StallReport",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "agree",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "average_moving_statistics",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "proof_failure",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def init(comm: _Any = None, process_sets: _Any = None) -> None:
    """Join the job that a launcher started (or be a world of one), and check that Horovod sees the same job.

    Args:
        comm: as in ``horovod.tensorflow.init``: a communicator of MPI, or ranks.
        process_sets: as there: sets of ranks that will meet among themselves.

    Raises:
        WorldError: the launcher started another number of ranks than Horovod sees: unconnected copies.
    """
    given = {"comm": comm, "process_sets": process_sets}
    _join(**{name: value for name, value in given.items() if value is not None})


def allreduce(
    value: _Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[_Any] = Compression.none,
) -> _tf.Tensor:
    """The mean (or ``op``) of a tensor-compatible value over ranks; a tensor of the same shape and dtype."""
    return _hvd.allreduce(
        _tf.convert_to_tensor(value),
        average=average,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=op,
        compression=compression,
    )


def grouped_allreduce(
    values: _Sequence[_Any],
    name: str | None = None,
    op: int | None = None,
    compression: type[_Any] = Compression.none,
    **settings: _Any,
) -> list[_tf.Tensor]:
    """``allreduce`` of several values as one: a list of tensors, in order."""
    tensors = [_tf.convert_to_tensor(value) for value in values]
    reduced: list[_tf.Tensor] = _hvd.grouped_allreduce(tensors, name=name, op=op, compression=compression, **settings)
    return reduced


def reducescatter(value: _Any, name: str | None = None, op: int = Average) -> _tf.Tensor:
    """The mean (or ``op``) over ranks, of which each rank gets its share of the first dimension, in rank order.

    Shape [n, ...] gives [n // size, ...], and one row more to each of the first n % size ranks.
    """
    return _hvd.reducescatter(_tf.convert_to_tensor(value), name=name, op=op)


def grouped_reducescatter(values: _Sequence[_Any], op: int = Average) -> list[_tf.Tensor]:
    """``reducescatter`` of several values as one: a list of tensors, in order."""
    shares: list[_tf.Tensor] = _hvd.grouped_reducescatter([_tf.convert_to_tensor(value) for value in values], op=op)
    return shares


def allgather(value: _Any, name: str | None = None) -> _tf.Tensor:
    """All ranks' values joined along the first dimension, in rank order; the other dimensions must agree."""
    return _hvd.allgather(_tf.convert_to_tensor(value), name=name)


def broadcast(value: _Any, root_rank: int, name: str | None = None) -> _tf.Tensor:
    """The root's value on every rank."""
    return _hvd.broadcast(_tf.convert_to_tensor(value), root_rank, name=name)


def broadcast_object_fn(
    root_rank: int = 0, session: object = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> _Callable[[_Any], _Any]:
    """A function that broadcasts an object. (Horovod's own needs TensorFlow 1; ``session`` is its and not used.)"""
    return lambda obj: broadcast_object(obj, root_rank=root_rank, name=name, process_set=process_set)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the set is here. (Horovod has one for PyTorch alone.)"""
    _hvd.allreduce(_tf.zeros(()), op=Sum, name="barrier", process_set=process_set)


def agree(**facts: _Mapping[str, object]) -> None:
    """Before training: stop every rank with one error where the ranks do not have the same.

    Args:
        facts: {name: value} under any of ``version``, ``code``, ``setting``, ``data``, ``model``, ``steps``, as in
            ``agree(data={"train": sha256}, steps={"steps": 100})``. Every rank must call it.

    Raises:
        HvdMnistError: EnvironmentUnfit, UsageError, DataError or ReplicasDiffer, by the first aspect that differs;
            rank 0 has printed a table of what differs where.
    """
    _agree(facts)


def broadcast_global_variables(root_rank: int) -> None:
    """Horovod for TensorFlow 1 broadcast "all global variables"; TensorFlow 2 and Keras 3 keep no such list.

    Raises:
        UsageError: always, with the call that names the variables.
    """
    raise UsageError(
        "broadcast_global_variables: there are no global variables in Keras 3",
        "hvd.broadcast_variables(model.variables + model.optimizer.variables, root_rank), or "
        "callbacks.BroadcastGlobalVariablesCallback(root_rank)",
    )


def load_model(
    filepath: str | _Path,
    custom_optimizers: _Sequence[type[_keras.optimizers.Optimizer]] | None = None,
    custom_objects: _Mapping[str, object] | None = None,
    compression: type[_Any] = Compression.none,
    legacy_opts: bool = False,
) -> _keras.Model:
    """Load a saved Keras model with its optimizer's state, and make that optimizer distributed.

    Args:
        filepath: a ``.keras`` file.
        custom_optimizers: optimizer classes of your own that the file names.
        custom_objects: {name: class or function} for anything else of your own.
        compression: as in ``DistributedOptimizer``.
        legacy_opts: TensorFlow's legacy optimizers, which Keras 3 has not: must be False.
    """
    if legacy_opts:
        raise UsageError("legacy_opts=True: Keras 3 has no legacy optimizers", "legacy_opts=False")
    objects = {**{cls.__name__: cls for cls in custom_optimizers or []}, **(custom_objects or {})}
    model = _keras.saving.load_model(filepath, custom_objects=objects)
    if model.optimizer is None:
        raise UsageError(f"{filepath} holds no optimizer: it was saved uncompiled", "keras.saving.load_model(...)")
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    DistributedOptimizer(model.optimizer, compression=compression)
    return model
