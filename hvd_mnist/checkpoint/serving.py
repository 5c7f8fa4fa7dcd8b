"""Export a checkpoint for serving: the model alone, and proof that it works where Horovod cannot be imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.checkpoint.manifest import MODEL
from hvd_mnist.checkpoint.read import find, say_on_stderr
from hvd_mnist.checkpoint.restore import load_model
from hvd_mnist.errors import CheckpointError

_CHECK_SECONDS = 300.0
_EXAMPLES = 4
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6  # same CPU, same kernels; SavedModel may fuse them otherwise

# Runs in a child process: the file must need nothing of ours.
_CHECK = """
import sys
sys.modules["horovod"] = sys.modules["hvd_mnist"] = None  # from here on an import of either fails
import numpy as np
exported, given, wanted = sys.argv[1:]
inputs = [array for _, array in sorted(np.load(given).items())]
if exported.endswith(".keras"):
    import keras
    model = keras.saving.load_model(exported)
    assert getattr(model, "optimizer", None) is None, "the exported model has an optimizer"
    call = model
else:
    import tensorflow as tf
    loaded = tf.saved_model.load(exported)  # kept: it owns the variables
    call = loaded.serve
outputs = call(inputs[0] if len(inputs) == 1 else inputs)
import tensorflow as tf
np.savez(wanted, *[np.asarray(output) for output in tf.nest.flatten(outputs)])
"""


@dataclass(frozen=True)
class Exported:
    path: Path
    bytes: int
    difference: float  # largest absolute difference of outputs between the checkpoint and the exported model


def export(checkpoint: Path | str, out: Path | str, *, notify: Callable[[str], None] = say_on_stderr) -> Exported:
    """Write the model of a checkpoint without optimizer, loss or metrics.

    Args:
        checkpoint: a run folder (best, else newest), a checkpoint folder or a .keras file.
        out: a name that ends in ``.keras`` gives a Keras file, any other a SavedModel folder for TF Serving.

    Raises:
        CheckpointError: ``out`` exists or cannot be written, or the written model does not load or answers
            differently in a process that cannot import Horovod. Nothing is left at ``out`` then.
    """
    out = Path(out)
    if out.exists():
        raise CheckpointError(f"{out} exists", hint="choose another name, or remove it")
    source = Path(checkpoint)
    if not (source.suffix == ".keras" and source.is_file()):
        source = find(source, notify).path / MODEL
    model = load_model(source)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-export-", dir=out.parent) as scratch:
            written = Path(scratch) / out.name
            if out.suffix == ".keras":
                model.save(written)
            else:
                model.export(written, verbose=False)
            difference = _check(model, written, Path(scratch))
            size = sum(file.stat().st_size for file in [written, *written.rglob("*")] if file.is_file())
            shutil.move(written, out)
    except OSError as error:
        raise CheckpointError(f"cannot export to {out}: {error.strerror or error}") from error
    return Exported(out, size, difference)


def _check(model, written: Path, scratch: Path) -> float:
    import keras
    import numpy as np

    inputs = _random_inputs(model)
    np.savez(scratch / "inputs.npz", **{f"{i:03d}": array for i, array in enumerate(inputs)})
    with keras.device("cpu:0"):
        expected = keras.tree.flatten(model(inputs[0] if len(inputs) == 1 else inputs))
    command = [sys.executable, "-c", _CHECK, written, scratch / "inputs.npz", scratch / "outputs.npz"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        raise CheckpointError(f"the exported model did not load within {_CHECK_SECONDS:.0f} s; not exported") from None
    if child.returncode != 0:
        last = next(reversed(child.stderr.strip().splitlines()), f"status {child.returncode}")
        raise CheckpointError(
            f"not exported: the model does not load where Horovod and hvd_mnist are absent: {last[:300]}"
        )
    with np.load(scratch / "outputs.npz") as answers:
        outputs = [answers[name] for name in answers.files]
    largest = 0.0
    for here, there in zip(expected, outputs, strict=True):
        here = np.asarray(here)
        if here.shape != there.shape or not np.allclose(here, there, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True):
            raise CheckpointError("the exported model answers differently from the checkpoint; not exported")
        largest = max(largest, float(np.max(np.abs(here - there))))
    return largest


def _random_inputs(model) -> list:
    import numpy as np

    if not getattr(model, "inputs", None):
        raise CheckpointError("this model does not say what its inputs are (a subclassed model); it cannot be exported")
    random = np.random.default_rng(0)
    arrays = []
    for spec in model.inputs:
        shape = [_EXAMPLES, *(size or 8 for size in spec.shape[1:])]
        if "float" in spec.dtype:
            arrays.append(random.random(shape).astype(spec.dtype))
        else:
            arrays.append(random.integers(0, 2, shape).astype(spec.dtype))
    return arrays
