"""``from hvd_mnist import train, TrainConfig``: what ``hvd-mnist train`` does, from Python."""

from __future__ import annotations

import sys
from typing import Any

from hvd_mnist.config import TrainConfig


def train(config: TrainConfig, knob_sources: dict[str, str] | None = None) -> dict[str, Any]:
    """Train on every rank of this job, or alone, as ``hvd-mnist train`` does with the same knobs.

        def job():
            from hvd_mnist import TrainConfig, train
            return train(TrainConfig(data="sample", epochs=1, run_dir="runs/one"))

        hvd_mnist.run(job, np=2)         # two ranks; job() alone: this process

    To be called once in a process, before TensorFlow has used a device; ``hvd_mnist.run`` gives each rank a new one.

    Args:
        config: every knob; those that are not named have the command's defaults. No environment variable is read.
        knob_sources: for each knob, where its value came from; recorded in config.json. Default "python" for all.

    Returns:
        The summary, as in RUN/summary.json (docs/run-folder.md).

    Raises:
        HvdMnistError: one of the tree, in a process that is alone. One of several ranks that fails says it in one line
            and ends its process with the error's status, so that the others do not wait for it; so does a process that
            is told to stop (status 200).
    """
    from hvd_mnist.runtime.ending import end_job_on_error

    if config.elastic:
        from hvd_mnist.train_elastic import train_elastic as job
    else:
        from hvd_mnist.trainer import train as job

    with end_job_on_error(_size, _rank):
        return job(config, knob_sources)


def _hvd() -> Any:
    return sys.modules.get("horovod.tensorflow")


def _size() -> int:
    return _hvd().size() if _hvd() and _hvd().is_initialized() else 1


def _rank() -> int:
    return _hvd().rank() if _hvd() and _hvd().is_initialized() else 0
