"""A run folder, read for people: what is there is shown, what is missing is said to be missing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_mnist.errors import DataError

MOST_BYTES = 1 << 28  # of a metrics.jsonl, and of the other files: longer ones are not ours


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        config: config.json; {} where it is missing.
        summary: summary.json; None where the run did not finish.
        lines: of metrics.jsonl, in the order written.
        checkpoints: one row for each folder under checkpoints/: name, step, bytes, accuracy (or None), best (bool).
        digits: digits.json, what ``hvd-mnist report --digits`` found; None where nobody asked.
        notes: what a reader should know about these files.
    """

    name: str
    folder: Path
    config: dict
    summary: dict | None
    lines: list[dict]
    checkpoints: list[dict]
    digits: dict | None
    notes: list[str]

    def of_kind(self, kind: str) -> list[dict]:
        """The lines of one kind: step, epoch, evaluation, checkpoint, reset."""
        return [line for line in self.lines if line["kind"] == kind]


def read(folder: str | Path, name: str | None = None) -> Run:
    """Read a run folder, of a finished run or of one that is still going on.

    Raises:
        DataError: no run folder, or a file in it that cannot be understood: names file and line.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such run folder", "hvd-mnist train --run-dir RUN makes one")
    config, summary = _object(folder / "config.json"), _object(folder / "summary.json")
    metrics = folder / "metrics.jsonl"
    if config is None and summary is None and not metrics.exists():
        raise DataError(
            f"{folder}: not a run folder: no config.json, metrics.jsonl or summary.json in it",
            "name the folder that hvd-mnist train printed",
        )
    notes = [] if summary is not None else ["no summary.json: the run has not finished (or was ended before it could)"]
    lines, cut = read_metrics(metrics) if metrics.exists() else ([], "no metrics.jsonl: there are no curves")
    notes += [cut] if cut else []
    return Run(
        name or folder.resolve().name,
        folder,
        config or {},
        summary,
        lines,
        _checkpoints(folder / "checkpoints"),
        _object(folder / "digits.json"),
        notes,
    )


def read_metrics(path: Path) -> tuple[list[dict], str]:
    """(lines of a metrics.jsonl, a note or ""). A last line that was cut by the end of the writer is left out.

    Raises:
        DataError: any other line that is no record; names file and line.
    """
    texts = _text(path).split("\n")
    rest = texts.pop()  # "" after a whole line
    lines = []
    for number, text in enumerate(texts, 1):
        if text.strip():
            lines.append(_record(path, number, text))
    if not rest.strip():
        return lines, ""
    try:
        return [*lines, _record(path, len(texts) + 1, rest)], ""
    except DataError:
        return lines, f"{path.name}: the last line ({len(texts) + 1}) is cut; it is left out"


def _record(path: Path, number: int, text: str) -> dict:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}:{number}: no JSON: {error}", "one JSON object a line (docs/run-folder.md)") from None
    wanted = {"kind": str, "step": (int, float), "time": (int, float)}
    wrong = not isinstance(found, dict) or [key for key, kind in wanted.items() if not isinstance(found.get(key), kind)]
    if wrong:
        missing = "no object" if wrong is True else f"no {wrong[0]}"
        raise DataError(f"{path}:{number}: {missing} in it", "each line has kind, step and time (docs/run-folder.md)")
    return found


def _object(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is no such file."""
    if not path.exists():
        return None
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise DataError(f"{path}: no JSON: {error}", "it is written whole or not at all: has it been edited?") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: holds a {type(found).__name__}, expected an object")
    return found


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(f"{path}: {path.stat().st_size} bytes, more than {MOST_BYTES}: is it ours?")
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def _checkpoints(folder: Path) -> list[dict]:
    best = (_object(folder / "best.json") or {}).get("checkpoint")
    rows = []
    for path in sorted(folder.glob("step-*")):
        manifest = _object(path / "manifest.json")
        if manifest is None:
            continue  # a save that was interrupted
        metric = manifest.get("metric") or {}
        rows.append(
            {
                "name": path.name,
                "step": manifest.get("step"),
                "saved_at": manifest.get("saved_at"),
                "bytes": sum(file.get("size", 0) for file in (manifest.get("files") or {}).values()),
                "accuracy": metric.get("value"),
                "best": path.name == best,
            }
        )
    return rows
