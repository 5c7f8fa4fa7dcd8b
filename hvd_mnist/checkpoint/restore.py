"""Put a checkpoint back: into a model that is there (to go on training), or as a new model (to use it).

Neither runs code from the file. ``restore_into`` reads arrays only; ``load_model`` builds Keras's own and registered
classes only, with Keras's safe mode on.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hvd_mnist.checkpoint.manifest import MODEL, verify
from hvd_mnist.checkpoint.read import Found, find, load_state, say_on_stderr
from hvd_mnist.checkpoint.variables import fingerprint, seed_states
from hvd_mnist.errors import CheckpointError

_MAX_CONFIG_BYTES = 64 << 20


def restore_into(model, path: Path | str | Found) -> dict:
    """Load weights, seed generators and optimizer of a checkpoint into a built and compiled model.

    The optimizer is built first if it is not. Afterwards every value is compared with the digest that was taken when
    the checkpoint was written, so what Keras passes over (it only warns about an optimizer that does not fit, and
    never writes the states of seed generators) is restored here or is an error.

    Args:
        path: a checkpoint folder, or what ``latest`` found.

    Returns:
        The trainer's ``state``.

    Raises:
        CheckpointError: the checkpoint is broken or of another model (nothing has been loaded then), or a value did
            not come back as it was (the model is then unusable).
    """
    path = path.path if isinstance(path, Found) else Path(path)
    verdict = verify(path)
    if not verdict.ok:
        raise CheckpointError(f"checkpoint {path}: {verdict.reason}")
    saved = verdict.manifest.fingerprint
    optimizer = getattr(model, "optimizer", None)  # a model that was never compiled lacks the attribute
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    if different := saved.difference(fingerprint(model)):
        raise CheckpointError(f"checkpoint {path} is of another model; {different}")
    state = load_state(path)
    try:
        with zipfile.ZipFile(path / MODEL) as archive:
            assets = [name for name in archive.namelist() if name.startswith("assets/")]
        if assets:
            raise CheckpointError(
                f"checkpoint {path} holds layer assets ({assets[0]}), which cannot be put into a model that is there",
                hint="use load_model",
            )
        model.load_weights(path / MODEL)
        for variable, seed in zip(seed_states(model), saved.seeds, strict=True):
            _assign_seed(variable, seed)
    except CheckpointError:
        raise
    except Exception as error:  # whatever zipfile, h5py or Keras make of it
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {_first_line(error)}") from error
    if changed := fingerprint(model, digests=True).changed(saved):
        raise CheckpointError(f"checkpoint {path}: {changed} did not come back as it was saved")
    return state


def _assign_seed(variable, seed) -> None:
    import numpy as np

    variable.assign(np.array(seed.value, dtype=seed.dtype).reshape(seed.shape))


def load_model(path: Path | str, *, compile: bool = False, notify: Callable[[str], None] = say_on_stderr):
    """A new Keras model from a run folder (its best checkpoint, else its newest), a checkpoint folder or a .keras file.

    Args:
        compile: also restore loss, metrics and optimizer. Prediction and counting need none of them.
        notify: gets a line when a run folder's best or newest checkpoint is broken and another one is taken.

    Raises:
        CheckpointError: there is none, it is broken, or it asks for code: a Lambda, a class that is not registered.
    """
    path = Path(path)
    saved = None
    if path.suffix == ".keras" and path.is_file():
        file = path
    else:
        found = find(path, notify)
        file, saved = found.path / MODEL, found.manifest.fingerprint
    try:
        import keras

        own_layers = {} if compile else _own_layers()
        _refuse_damage(file)
        _refuse_code(file, compile, own_layers)
        model = keras.saving.load_model(file, custom_objects=own_layers, compile=compile, safe_mode=True)
        model = _with_layers_of_keras(model, *own_layers.values())
    except CheckpointError:
        raise
    except Exception as error:  # whatever zipfile, h5py or Keras make of it
        raise CheckpointError(f"{file} cannot be loaded: {_first_line(error)}") from error
    if saved:
        loaded = fingerprint(model, digests=True)
        for here, there in zip(loaded.weights, saved.weights, strict=True):
            if here.digest != there.digest:
                raise CheckpointError(f"{file}: {there.path} did not come back as it was saved")
    return model


def _own_layers() -> dict[str, type]:
    """Layers of hvd_mnist.keras that predict as one of Keras does, by the name in the file. A stand-in has the
    class's name, by which Keras finds its weights, and needs no Horovod. It is not for training."""
    import keras

    stand_in = type("SyncBatchNormalization", (keras.layers.BatchNormalization,), {})
    return {"hvd_mnist>SyncBatchNormalization": stand_in}


def _with_layers_of_keras(model, *stand_ins: type):
    """``model`` with Keras' own layers in place of stand-ins: what is saved of it needs nothing of ours."""
    import keras

    if not any(isinstance(layer, stand_ins) for layer in model._flatten_layers()):
        return model

    def plain(layer):
        kind = keras.layers.BatchNormalization if isinstance(layer, stand_ins) else type(layer)
        return kind.from_config(layer.get_config())

    replaced = keras.models.clone_model(model, clone_function=plain)
    replaced.set_weights(model.get_weights())
    return replaced


def _refuse_damage(file: Path) -> None:
    # Keras reads around a bad checksum inside the archive, and would hand back wrong weights.
    with zipfile.ZipFile(file) as archive:
        if bad := archive.testzip():
            raise CheckpointError(f"{file} has been changed: {bad} does not match its checksum")


def _refuse_code(file: Path, compiled: bool, own_layers: dict[str, type]) -> None:
    """One clear sentence for what Keras's safe mode would refuse with a page: code, and classes nobody registered."""
    import keras

    with zipfile.ZipFile(file) as archive:
        if archive.getinfo("config.json").file_size > _MAX_CONFIG_BYTES:
            raise CheckpointError(f"{file}: config.json is longer than {_MAX_CONFIG_BYTES} bytes")
        config = json.loads(archive.read("config.json"))
    if isinstance(config, dict) and not compiled:
        config.pop("compile_config", None)
    registered = keras.saving.get_registered_object
    for part in _parts(config):
        name, module = part["class_name"], part.get("module")
        if name == "__lambda__":
            raise CheckpointError(f"{file} asks for a Lambda with Python code of its own; nothing was run")
        known = registered(part.get("registered_name"), own_layers) or registered(name, own_layers)
        root = str(module).split(".", 1)[0]
        if module is not None and root not in ("keras", "builtins") and not known:
            raise CheckpointError(
                f"{file} asks for {module}.{name}, which is not registered here; nothing was run",
                hint="import the module that defines it with @keras.saving.register_keras_serializable()",
            )
        if module is None and part.get("registered_name") and not known and part["registered_name"] != name:
            raise CheckpointError(
                f"{file} asks for {part['registered_name']}, which is not registered here; nothing was run",
                hint="import the module that defines it with @keras.saving.register_keras_serializable()",
            )


def _parts(config) -> Iterator[dict]:
    """Every object that a Keras configuration asks for, at any depth."""
    waiting = [config]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(part.get("class_name"), str):
                yield part
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {line[:200]}"
