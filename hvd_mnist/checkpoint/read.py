"""Find checkpoints: which there are, the newest complete one, the best one. Loads neither Keras nor TensorFlow."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.checkpoint.manifest import (
    MANIFEST,
    MAX_STATE_BYTES,
    MODEL,
    STATE,
    STEP_FOLDER,
    Manifest,
    read_bounded,
    verify,
)
from hvd_mnist.checkpoint.variables import Fingerprint
from hvd_mnist.errors import CheckpointError

FOLDER = "checkpoints"  # in a run folder


@dataclass(frozen=True)
class Candidate:
    """A folder that is named like a checkpoint; nothing in it has been looked at."""

    path: Path
    step: int


@dataclass(frozen=True)
class Found:
    """A checkpoint whose manifest holds true."""

    path: Path
    step: int
    manifest: Manifest


def say_on_stderr(line: str) -> None:
    print(f"hvd-mnist: {line}", file=sys.stderr)


def candidates(folder: Path | str) -> list[Candidate]:
    """All checkpoint folders in ``RUN/checkpoints``, newest (highest step) first; [] where there is none.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    found = []
    try:
        for path in Path(folder).iterdir():
            if (name := STEP_FOLDER.fullmatch(path.name)) and path.is_dir():
                found.append((int(name[1]), name[2] is None, path))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot list {folder}: {error.strerror or error}") from error
    # Of the same step, the one that is not called .old: it is the newer.
    return [Candidate(path, step) for step, _, path in sorted(found, key=lambda one: one[:2], reverse=True)]


def latest(
    folder: Path | str,
    notify: Callable[[str], None] = say_on_stderr,
    fingerprint: Fingerprint | None = None,
) -> Found | None:
    """The newest complete checkpoint in ``RUN/checkpoints``; None where there is no checkpoint at all.

    Args:
        notify: gets one line for each newer checkpoint that was passed over, and why.
        fingerprint: of the model that is to take it (``fingerprint(model)``); another model's are passed over.

    Raises:
        CheckpointError: there are checkpoints, and none can be used. To begin anew among them would be a silent loss.
    """
    tried = candidates(folder)
    first_reason = ""
    for candidate in tried:
        verdict = verify(candidate.path)
        reason = verdict.reason
        if verdict.ok and fingerprint is not None:
            different = verdict.manifest.fingerprint.difference(fingerprint)
            reason = f"written by another model, {different}" if different else ""
        if not reason:
            return Found(candidate.path, candidate.step, verdict.manifest)
        first_reason = first_reason or f"{candidate.path.name}: {reason}"
        notify(f"skipped checkpoint {candidate.path}: {reason}")
    if tried:
        raise CheckpointError(
            f"none of {len(tried)} checkpoints in {folder} can be used; {first_reason}",
            hint=f"see: hvd-mnist checkpoint verify {folder}; to begin anew, use another --run-dir",
        )
    return None


def best(folder: Path | str) -> Found | None:
    """The checkpoint with the best metric, by the manifests (sizes are checked, hashes are not); None if none has one.

    Where checkpoints carry different metrics, the newest one says which counts. Of equals the earliest is best.
    """
    measured = []
    for candidate in candidates(folder):
        verdict = verify(candidate.path, hashes=False)
        if verdict.ok and verdict.manifest.metric and verdict.manifest.metric.value is not None:
            measured.append(Found(candidate.path, candidate.step, verdict.manifest))
    if not measured:
        return None
    leading = measured[0].manifest.metric
    sign = 1 if leading.mode == "max" else -1
    same = [m for m in measured if (m.manifest.metric.name, m.manifest.metric.mode) == (leading.name, leading.mode)]
    return max(same, key=lambda one: (sign * one.manifest.metric.value, -one.step))


def checkpoints_folder(run: Path | str) -> Path:
    """``RUN/checkpoints`` for a run folder; the folder itself where it already is that one."""
    run = Path(run)
    return run / FOLDER if (run / FOLDER).is_dir() else run


def find(path: Path | str, notify: Callable[[str], None] = say_on_stderr, *, prefer_best: bool = True) -> Found:
    """One complete checkpoint by what a person types: a checkpoint folder, or a run folder (best, else newest).

    Raises:
        CheckpointError: there is none, or the one that was named is broken.
    """
    path = Path(path)
    if STEP_FOLDER.fullmatch(path.name) or (path / MANIFEST).is_file() or (path / MODEL).is_file():
        verdict = verify(path)
        if not verdict.ok:
            raise CheckpointError(f"checkpoint {path}: {verdict.reason}")
        return Found(path, verdict.manifest.step, verdict.manifest)
    if not path.is_dir():
        raise CheckpointError(f"no checkpoint at {path}: no such folder")
    folder = checkpoints_folder(path)
    if prefer_best and (chosen := best(folder)):
        verdict = verify(chosen.path)
        if verdict.ok:
            return chosen
        notify(f"skipped the best checkpoint {chosen.path}: {verdict.reason}")
    if found := latest(folder, notify):
        return found
    raise CheckpointError(f"no checkpoint in {folder}: expected folders step-NNNNNNNN")


def load_state(path: Path | str) -> dict:
    """``state.json`` of a checkpoint folder.

    Raises:
        CheckpointError: it is missing, too long, or no JSON object.
    """
    file = Path(path) / STATE
    try:
        state = json.loads(read_bounded(file, MAX_STATE_BYTES))
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is no JSON: {str(error)[:120]}") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{file} holds a {type(state).__name__}, expected an object")
    return state
