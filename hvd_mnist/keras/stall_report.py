"""Which rank is missing, and where it stands, for training scripts of one's own.

with hvd.StallReport("logs") as report:
    model.fit(..., callbacks=[..., report])
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import horovod.tensorflow as hvd
import keras

from hvd_mnist.runtime import ending, world


class StallReport(keras.callbacks.Callback):
    """Around a training, and among its callbacks, on every rank.

    A rank that stands still for HOROVOD_STALL_CHECK_TIME_SECONDS (30) writes its Python stacks into
    ``FOLDER/rank-R.log``. After HOROVOD_STALL_SHUTDOWN_TIME_SECONDS (300) Horovod ends the waiting, and then:

    Args:
        folder: of the logs, the same on every rank; shared by all hosts, or each host sees its own ranks only.

    Raises:
        PeerLost: on every rank that waited; names the missing ranks and their hosts, the collective, and where each
            rank stood. The lowest of these ranks prints the stacks of the missing ones.
    """

    def __init__(self, folder: str | Path):
        super().__init__()
        self.folder = Path(folder)

    def __enter__(self) -> StallReport:
        told = world.gather_json([world.hostname(), os.getpid()], "processes")
        ending.know_processes([(host, pid) for host, pid in told])
        seconds = float(os.environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS", world.STALL_WARNING_SECONDS))
        ending.watch(self.folder, hvd.rank(), hvd.size(), max(1.0, seconds))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        explained = ending.explained(error) if isinstance(error, Exception) else error
        ending.stop_watching()
        if explained is not None and explained is not error:
            raise explained from error

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        ending.moved()

    def on_test_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        ending.moved()

    def on_predict_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        ending.moved()
