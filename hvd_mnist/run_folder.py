"""The run folder: what rank 0 writes about a run. The schema is in docs/run-folder.md.

config.json  metrics.jsonl  summary.json  tensorboard/  checkpoints/  logs/rank-N.log
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from hvd_mnist.errors import HvdMnistError

SCHEMA = 1


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
        if run is None:
            return
        path = run / "metrics.jsonl"
        if path.exists():
            _drop_after(path, from_step)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        if tensorboard:
            self._events = {kind: _event_writer(run / "tensorboard" / kind) for kind in ("train", "validation")}

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
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    tf.summary.scalar(name, value)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        for writer in (self._events or {}).values():
            writer.close()


def _event_writer(folder: Path):
    import tensorflow as tf

    return tf.summary.create_file_writer(str(folder))


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
