"""Where a rank's memory goes: what each act of the trainer adds, and the most it takes for a moment.

    horovodrun --gloo -np 2 python -m hvd_mnist.bench.memory --model cnn --steps 20

Runs the trainer itself and reads the kernel's counts (Linux) after each act. Rank 0, the one that writes checkpoints
too, prints one JSON object. In MiB:

    resident    pages of this process in memory, those that it shares included
    share       the same, a page that k processes map counted as 1/k of one (PSS)
    private     of the resident ones, those that are no file's: heap, arrays, stacks
    most        the largest `resident` since the act before
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.runtime import world

# What is told apart: (in words, module, the function in it whose end ends the act).
ACTS = (
    ("Horovod's start", "hvd_mnist.runtime.world", "join"),
    ("data", "hvd_mnist.data.sources", "load"),
    ("model", "hvd_mnist.models", "build"),
    ("the optimizer's variables", "hvd_mnist.trainer", "restore"),
    ("the same start on every rank", "hvd_mnist.keras.callbacks", "BroadcastGlobalVariablesCallback.broadcast"),
    ("steps", "keras", "Model.fit"),
    ("evaluation", "hvd_mnist.evaluate", "Evaluator.__call__"),
    ("save", "hvd_mnist.training_callbacks", "Checkpoints.save"),
)


@dataclass(frozen=True)
class Row:
    """Memory after an act, in MiB; the fields as in this module's docstring."""

    act: str
    resident: float
    share: float
    private: float
    most: float


def read(act: str, rollup: str, status: str) -> Row:
    """One row from the texts of /proc/self/smaps_rollup and /proc/self/status."""
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", rollup + status, re.MULTILINE)}
    resident, share, private, most = (round(kib[name] / 1024, 1) for name in ("Rss", "Pss", "Anonymous", "VmHWM"))
    return Row(act, resident, share, private, most)


class Marks:
    """Rows, one after each act; the kernel's mark of the highest water is put back each time."""

    def __init__(self):
        self.rows: list[Row] = []

    def mark(self, act: str) -> None:
        proc = Path("/proc/self")
        row = read(act, (proc / "smaps_rollup").read_text(), (proc / "status").read_text())
        if self.rows and self.rows[-1].act == act:  # the same act once more
            row = dataclasses.replace(row, most=max(row.most, self.rows.pop().most))
        self.rows.append(row)
        (proc / "clear_refs").write_text("5")

    def after(self, act: str, module: str, name: str) -> None:
        """Mark ``act`` whenever that function has returned."""
        owner = importlib.import_module(module)
        *classes, last = name.split(".")
        for each in classes:
            owner = getattr(owner, each)
        function = getattr(owner, last)

        @functools.wraps(function)
        def marked(*arguments, **settings):
            result = function(*arguments, **settings)
            self.mark(act)
            return result

        setattr(owner, last, marked)


def measure(config) -> list[Row]:
    """Train with ``config`` and say what each act took on this rank."""
    marks = Marks()
    marks.mark("Python")
    world.prepare_environment()
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    marks.mark("import TensorFlow and Keras")
    import horovod.tensorflow  # noqa: F401

    import hvd_mnist.keras  # noqa: F401
    from hvd_mnist.trainer import train

    marks.mark("import Horovod and the trainer")
    for act in ACTS:
        marks.after(*act)
    train(config)
    marks.mark("end")
    return marks.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--run-dir", help="keep the run's folder here; default runs/...")
    asked = parser.parse_args()
    from hvd_mnist.config import TrainConfig

    rows = measure(TrainConfig(**vars(asked), tensorboard=False, log_level="warning"))
    if world.prepare_environment().rank == 0:
        print(json.dumps({"rows": [dataclasses.asdict(row) for row in rows]}, indent=1))


if __name__ == "__main__":
    main()
