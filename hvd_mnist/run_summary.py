"""What a run says about itself: its effective settings at the start, its result at the end."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from hvd_mnist import __version__
from hvd_mnist.config import TrainConfig
from hvd_mnist.console import count
from hvd_mnist.data import shard
from hvd_mnist.run_folder import SCHEMA


def effective_settings(
    config: TrainConfig, here, arrays, gpu, threads, model, global_batch, per_epoch, total, plan
) -> list[tuple[str, str]]:
    """(what, value) lines of the banner: what follows from the knobs, the job and the data."""
    from hvd_mnist.keras.groups import grouped

    size, passes = here.size, config.accumulate
    scaling = {"linear": f" x {size}", "sqrt": f" x sqrt({size})", "none": ""}[config.lr_scaling]
    batch = f"{global_batch // size // passes} a rank x {size}" + (f" x {passes} passes" if passes > 1 else "")
    images = f"{arrays.train_examples} + {arrays.test_examples} images"
    wire = "uncompressed" if config.compression == "none" else f"{config.compression} on the wire"
    places = list(range(len(model.trainable_variables)))
    groups = grouped(places, model.trainable_variables, config.gradient_groups, all_at_once=passes > 1)
    return [
        ("job", f"{count(size, 'rank')} on {count(here.cross_size, 'host')}, {here.backend}"),
        ("launcher", f"{here.identity.launcher} ({here.identity.because})"),
        ("devices", f"{'CPU' if gpu is None else 'GPU'}, {count(threads, 'thread')} a rank"),
        ("data", f"{arrays.name}: {images}" + (" (a sample)" if arrays.is_sample else "")),
        ("from", arrays.origin),
        *([("classes", ", ".join(arrays.class_names))] if arrays.class_names else []),
        ("epoch", shard.remainder_rule(arrays.train_examples, global_batch)),
        ("model", f"{config.model}, {model.count_params()} parameters, {config.precision}"),
        ("global batch", f"{batch} = {global_batch}"),
        ("steps", f"{total} ({total / per_epoch:g} epochs of {per_epoch})"),
        ("learning rate", f"{config.learning_rate:g}{scaling} = {plan.peak:g}"),
        ("schedule", f"{count(plan.warmup, 'warm-up step')}, then {plan.kind}"),
        ("gradients", f"averaged over {count(size, 'rank')}, {wire}, in {count(len(groups), 'group')}"),
    ]


def job_and_data(here, arrays, config: TrainConfig, model) -> dict:
    """What summary.json says first: who trained what on what."""
    return {
        "schema": SCHEMA,
        "world_size": here.size,
        "launcher": here.identity.launcher,
        "backend": here.backend,
        "data": arrays.name,
        "data_is_sample": arrays.is_sample,
        "class_names": list(arrays.class_names),
        "data_sha256": arrays.sha256,
        "model": config.model,
        "parameters": model.count_params(),
    }


def quality(evaluation, config: TrainConfig, reached: bool) -> dict:
    """What it says of the last evaluation, and of the accuracy that was asked for."""
    return {
        "test_accuracy": evaluation.accuracy,
        "test_correct": evaluation.correct,
        "test_examples": evaluation.examples,
        "test_loss": evaluation.loss,
        "target_accuracy": config.target_accuracy,
        "target_reached": reached if config.target_accuracy is not None else None,
    }


def versions() -> dict[str, str]:
    """What a result depends on."""
    import horovod
    import keras
    import numpy
    import tensorflow as tf

    return {
        "hvd_mnist": __version__,
        "horovod": horovod.__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


# What can change a run's result or speed. Names are listed one by one: an environment also holds keys and passwords.
RECORDED_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HOROVOD_AUTOTUNE",
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_GLOO_IFACE",
    "HOROVOD_GLOO_TIMEOUT_SECONDS",
    "HOROVOD_GPU_OPERATIONS",
    "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "HOROVOD_TIMELINE",
    "HOROVOD_WAKE_ON_ENQUEUE",
    "NCCL_ALGO",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NCCL_SOCKET_IFNAME",
    "NVIDIA_TF32_OVERRIDE",
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_mpi_yield_when_idle",
    "OMP_NUM_THREADS",
    "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)


def recorded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of RECORDED_VARIABLES that are set. Pure."""
    return {name: environ[name] for name in RECORDED_VARIABLES if name in environ}


def config_record(config: TrainConfig, knob_sources: dict[str, str] | None, settings) -> dict:
    """RUN/config.json: every knob with its source, and what they came to."""
    origins = knob_sources or {}
    values = dataclasses.asdict(config)
    return {
        "schema": SCHEMA,
        "command": sys.argv,
        "knobs": {name: {"value": value, "source": origins.get(name, "python")} for name, value in values.items()},
        "effective": dict(settings),
        "versions": versions(),
        "environment": recorded_environment(os.environ),
    }


def summary_text(summary: dict, run: Path) -> str:
    """The last lines of a run."""
    proof = summary["proof"]
    lines = [
        f"test accuracy {summary['test_accuracy']:.2%} ({summary['test_correct']} of {summary['test_examples']}), "
        f"{count(summary['steps'], 'step')}, {summary['train_seconds']:.1f} s, {summary['cpu_seconds']:.1f} CPU s over "
        f"{count(summary['world_size'], 'rank')}",
        f"replicas proven equal: {count(proof['comparisons'], 'comparison')} of all ranks, {proof['seconds']:.2f} s",
        f"run folder {run}",
    ]
    return "\n".join(lines if summary["world_size"] > 1 else [lines[0], lines[2]])
