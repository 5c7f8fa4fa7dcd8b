"""The run folder: what rank 0 writes about a run. The schema is in docs/run-folder.md.

config.json  metrics.jsonl  summary.json  tensorboard/  checkpoints/  logs/rank-N.log
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvd_mnist.errors import HvdMnistError

SCHEMA = 1
# What TensorBoard shows of a line, and where: what stands before "/" groups cards; train and validation share a card.
SCALARS = {
    "loss": "quality/loss",
    "accuracy": "quality/accuracy",
    "learning_rate": "steps/learning_rate",
    "images_per_second": "steps/images_per_second",
    "communication": "steps/communication",
    "world_size": "steps/ranks",
}


def default_name(data: str, model: str) -> str:
    """runs/<data>-<model>-<time>, in the folder where the command was typed."""
    data, model = Path(data).name.replace(":", "."), model.replace(":", ".")
    return str(Path("runs") / f"{data}-{model}-{time.strftime('%Y%m%d-%H%M%S')}")


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all: temporary name, fsync, rename."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, allow_nan=False, default=_plain)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise HvdMnistError(f"cannot write {path}: {error.strerror}") from None


def _plain(value):
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON")


class Records:
    """metrics.jsonl and TensorBoard, on rank 0. The other ranks have ``Records(None)``, which writes nothing.

    Args:
        run: the run folder, or None.
        tensorboard: write event files too.
        from_step: after a resume, lines of later steps are dropped first: those steps are made again.
    """

    def __init__(self, run: Path | None, *, tensorboard: bool = True, from_step: int = 0):
        self._file = self._events = None
        self._from_step = from_step
        if run is None:
            return
        path = run / "metrics.jsonl"
        if path.exists():
            _drop_after(path, from_step)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        if tensorboard:
            folders = {kind: run / "tensorboard" / kind for kind in ("train", "validation")}
            for folder in folders.values() if from_step else ():
                _forget_after(folder, from_step)
            self._events = {kind: _event_writer(folder) for kind, folder in folders.items()}

    def describe(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show (what, value) lines on TensorBoard's page of texts."""
        if self._events is not None:
            import tensorflow as tf

            table = ["| setting | value |", "| --- | --- |", *(f"| {what} | `{value}` |" for what, value in rows)]
            with self._events["train"].as_default(step=self._from_step):
                tf.summary.text("settings", "\n".join(table))

    def write(self, kind: str, step: int, **values) -> None:
        """One line: kind ("step", "epoch", "evaluation", "checkpoint"), global step, and numbers."""
        if self._file is not None:
            line = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
            self._file.write(json.dumps(line, default=_plain) + "\n")
        if self._events is not None and kind in ("step", "evaluation"):
            self._summarize("validation" if kind == "evaluation" else "train", step, values)

    def _summarize(self, kind, step, values):
        import tensorflow as tf

        with self._events[kind].as_default(step=step):
            for name in SCALARS.keys() & values.keys():
                if values[name] is not None:
                    tf.summary.scalar(SCALARS[name], values[name])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        for writer in (self._events or {}).values():
            writer.close()


def _event_writer(folder: Path):
    import tensorflow as tf

    return tf.summary.create_file_writer(str(folder))


def _forget_after(folder: Path, step: int) -> None:
    """Tell TensorBoard that what it has read of later steps is to be made again: a START, in a file of its own that
    it reads after those that are there."""
    import tensorflow as tf

    files = sorted(folder.glob("events.out.tfevents.*"))
    if not files:
        return
    now = time.time()
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    events = [
        tf.compat.v1.Event(wall_time=now, file_version="brain.Event:2"),
        # Of a folder's STARTs the first is taken for its beginning and forgets nothing; there may have been none.
        *[tf.compat.v1.Event(wall_time=now, step=step + 1, session_log=start)] * 2,
    ]
    with tf.io.TFRecordWriter(f"{files[-1]}.start") as file:
        for event in events:
            file.write(event.SerializeToString())


def _drop_after(path: Path, step: int) -> None:
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue  # cut by a kill
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    temporary.replace(path)
