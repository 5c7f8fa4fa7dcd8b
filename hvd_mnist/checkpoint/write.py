"""Write a checkpoint: whole or not at all, whatever happens in between.

A save goes through these states; a kill or a power cut in any of them leaves every older checkpoint readable:

1. ``.tmp-step-N-HOST-PID/`` is filled: the model, the state, last the manifest; each file is fsynced.
2. It is renamed to ``step-N/``. A folder of that name (the same step after a resume) steps aside to ``step-N.old``
   first, which readers take for the checkpoint of step N until the new one is there.
3. ``best.json`` is replaced. 4. What is too many is renamed to ``.tmp-removed-...`` and then deleted.
"""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from hvd_mnist import __version__
from hvd_mnist.checkpoint.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    MAX_STATE_BYTES,
    MODEL,
    STATE,
    FileEntry,
    Manifest,
    Metric,
    sha256_of,
    step_folder,
    to_bytes,
    verify,
)
from hvd_mnist.checkpoint.read import best, candidates
from hvd_mnist.checkpoint.variables import fingerprint
from hvd_mnist.errors import CheckpointError

BEST = "best.json"
_FOREIGN_LEFTOVER_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Saved:
    path: Path
    seconds: float  # wall time of the whole save, fsync and pruning included
    bytes: int


def save(
    folder: Path,
    model,
    state: dict,
    *,
    step: int,
    keep: int = 3,
    metric: float | None = None,
    metric_name: str = "test_accuracy",
    mode: str = "max",
    during: Callable[[], None] | None = None,
) -> Saved:
    """Write ``folder/step-NNNNNNNN`` and drop what is too many.

    Args:
        folder: ``RUN/checkpoints``; made if it is not there.
        model: a built Keras model; its optimizer is saved with it.
        state: anything that JSON can hold (numpy scalars too): step in epoch, seed, base rate, counters.
        step: the optimizer steps done so far. The same step may be saved again: it replaces the older one.
        keep: this many newest complete checkpoints stay, and the best one besides.
        metric: the value by which a checkpoint is best (None: not measured; NaN never is).
        mode: "max" or "min".
        during: called when the folder is half filled: the place to test what a failure there leaves behind.

    Raises:
        CheckpointError: ``state`` is no JSON, the disk is full, the folder cannot be written, ... Nothing half-written
            is left, older checkpoints are as they were.
    """
    started = time.perf_counter()
    folder = Path(folder)
    if keep < 1 or step < 0 or mode not in ("max", "min"):
        raise CheckpointError(
            f"cannot save: keep={keep}, step={step}, mode={mode!r}; expected keep >= 1, step >= 0, max|min"
        )
    content = _state_bytes(state)
    target = folder / step_folder(step)
    temporary = folder / _temporary_name(target.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        temporary.mkdir()
        model.save(temporary / MODEL)
        if during is not None:
            during()
        manifest = _fill(temporary, model, content, step, _metric(metric, metric_name, mode))
        _into_place(temporary, target)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, Exception) and not isinstance(error, CheckpointError):
            raise _cannot_write(target, error) from error
        raise
    try:
        _point_at_best(folder)
        _prune(folder, keep, target)
    except OSError as error:
        raise CheckpointError(f"step {step} is saved, but the folder could not be tidied: {_why(error)}") from error
    return Saved(target, time.perf_counter() - started, manifest.size)


def _state_bytes(state: dict) -> bytes:
    def plain(value):
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
            return value.item()
        raise TypeError(f"a {type(value).__name__}")

    if not isinstance(state, dict):
        raise CheckpointError(f"cannot save: the state is a {type(state).__name__}, expected a dict")
    try:
        content = json.dumps(state, indent=1, default=plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot save: the state holds what JSON cannot: {error}") from None
    if len(content) > MAX_STATE_BYTES:
        raise CheckpointError(f"cannot save: the state takes {len(content)} bytes, more than {MAX_STATE_BYTES}")
    return content


def _metric(value: float | None, name: str, mode: str) -> Metric | None:
    if value is None:
        return None
    return Metric(name, mode, float(value) if math.isfinite(value) else None)


def _fill(temporary: Path, model, state: bytes, step: int, metric: Metric | None) -> Manifest:
    """Everything beside the model's own file."""
    (temporary / STATE).write_bytes(state)
    manifest = Manifest(
        step=step,
        saved_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions=_versions(),
        files={name: _entry(temporary / name) for name in (MODEL, STATE)},
        fingerprint=fingerprint(model, digests=True),
        metric=metric,
    )
    content = to_bytes(manifest)
    if len(content) > MAX_MANIFEST_BYTES:
        raise CheckpointError(f"cannot save: this model's manifest takes more than {MAX_MANIFEST_BYTES} bytes")
    (temporary / MANIFEST).write_bytes(content)
    for path in (temporary / MANIFEST, temporary):
        _fsync(path)
    return manifest


def _entry(path: Path) -> FileEntry:
    with open(path, "rb") as file:
        entry = FileEntry(os.fstat(file.fileno()).st_size, sha256_of(file))
        os.fsync(file.fileno())
    return entry


def _versions() -> dict[str, str]:
    loaded = {name: sys.modules.get(name) for name in ("keras", "tensorflow")}
    versions = {name: module.__version__ for name, module in loaded.items() if module is not None}
    return {"hvd_mnist": __version__, "python": platform.python_version(), **versions}


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; their rename is as good as it gets there.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


def _into_place(temporary: Path, target: Path) -> None:
    aside = target.with_name(target.name + ".old")
    if target.exists():
        if aside.exists():  # the sweep left it: the one in place is broken
            _remove(target)
        else:
            target.rename(aside)
    temporary.rename(target)
    _fsync(target.parent)
    if aside.exists():
        _remove(aside)


def _point_at_best(folder: Path) -> None:
    chosen = best(folder)
    if chosen is None:
        return
    metric = chosen.manifest.metric
    content = {
        "checkpoint": chosen.path.name,
        "step": chosen.step,
        "metric": {"name": metric.name, "mode": metric.mode, "value": metric.value},
    }
    temporary = folder / _temporary_name(BEST)
    try:
        with open(temporary, "w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(folder / BEST)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _prune(folder: Path, keep: int, written: Path) -> None:
    chosen = best(folder)
    spared = {written, chosen.path if chosen else written}
    complete = 0
    for candidate in candidates(folder):  # newest first
        if complete >= keep and candidate.path not in spared:
            _remove(candidate.path)
        elif verify(candidate.path, hashes=False).ok:  # a broken one must not take the place of a good one
            complete += 1


def _remove(path: Path) -> None:
    # Renamed first: a kill while files are being deleted must not leave a half-empty checkpoint.
    doomed = path.with_name(_temporary_name(f"removed-{path.name}"))
    path.rename(doomed)
    shutil.rmtree(doomed)


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())


def _temporary_name(name: str) -> str:
    return f".tmp-{name}-{_host()}-{os.getpid()}"


def _sweep(folder: Path) -> None:
    """Delete what killed saves left: temporaries of dead processes of this host, day-old ones of other hosts."""
    for leftover in folder.glob(".tmp-*"):
        if _is_abandoned(leftover):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)
    for aside in folder.glob("step-*.old"):
        if verify(aside.with_name(aside.name[: -len(".old")]), hashes=False).ok:
            _remove(aside)


def _is_abandoned(leftover: Path) -> bool:
    owner = re.fullmatch(r"\.tmp-.+-([A-Za-z0-9._]+)-(\d+)", leftover.name)
    if owner and owner[1] == _host():
        if int(owner[2]) == os.getpid():
            return True  # saves of one process come one after the other
        try:
            os.kill(int(owner[2]), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False
        return False
    try:
        return time.time() - leftover.lstat().st_mtime > _FOREIGN_LEFTOVER_SECONDS
    except FileNotFoundError:
        return False


def _cannot_write(target: Path, error: Exception) -> CheckpointError:
    why = _why(error)
    number = _errno(error)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return CheckpointError(f"cannot write {target}: {why}", hint="free space there, or use another --run-dir")
    if number in (errno.EROFS, errno.EACCES, errno.EPERM):
        return CheckpointError(f"cannot write {target}: {why}", hint="use a --run-dir that you may write in")
    return CheckpointError(f"cannot write {target}: {why}")


def _why(error: BaseException) -> str:
    number = _errno(error)
    if number is None:
        first_line = next(iter(str(error).splitlines()), "")
        return f"{type(error).__name__}: {first_line[:200]}"
    return f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"


def _errno(error: BaseException) -> int | None:
    """The system's error number behind an exception: its own, or of what it was raised from, or as h5py spells it."""
    for link in _chain(error):
        if isinstance(link, OSError) and link.errno:
            return link.errno
        if spelled := re.search(r"errno = (\d+)", str(link)):
            return int(spelled[1])
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
