"""``manifest.json``: what a checkpoint holds, and whether it still holds it. Standard library only.

A manifest is written last, so a folder without one was never finished. It carries the size and sha256 of every other
file, a digest of itself, and for each variable its path, shape, dtype and a digest of its value: the last one proves
after a restore that Keras put back every value, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.checkpoint.variables import Fingerprint, Variable
from hvd_mnist.errors import CheckpointError

FORMAT = 1
MODEL, STATE, MANIFEST = "model.keras", "state.json", "manifest.json"
MAX_MANIFEST_BYTES = 16 << 20  # about 80 000 variables
MAX_STATE_BYTES = 64 << 20
STEP_FOLDER = re.compile(r"step-(\d{8,18})(\.old)?")
_CHUNK = 1 << 20


def step_folder(step: int) -> str:
    """Name of the checkpoint folder of one step: ``step-00000469``."""
    return f"step-{step:08d}"


@dataclass(frozen=True)
class FileEntry:
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class Metric:
    name: str
    mode: str  # "max" or "min": which end is better
    value: float | None  # None where the value was not finite


@dataclass(frozen=True)
class Manifest:
    """A parsed manifest. ``saved_at`` is ISO 8601 in UTC; ``versions`` maps a package to its version."""

    step: int
    saved_at: str
    versions: dict[str, str]
    files: dict[str, FileEntry]
    fingerprint: Fingerprint
    metric: Metric | None = None

    @property
    def size(self) -> int:
        """Bytes of all files that the manifest names."""
        return sum(entry.size for entry in self.files.values())


@dataclass(frozen=True)
class Verdict:
    """Whether a checkpoint is complete; ``reason`` says what is wrong ("" when nothing), ``manifest`` what it holds."""

    ok: bool
    reason: str = ""
    manifest: Manifest | None = None


def to_bytes(manifest: Manifest) -> bytes:
    """The file's content: JSON that ends in a digest of the rest."""
    metric = manifest.metric
    body = {
        "format": FORMAT,
        "step": manifest.step,
        "saved_at": manifest.saved_at,
        "versions": manifest.versions,
        "metric": metric and {"name": metric.name, "mode": metric.mode, "value": metric.value},
        "files": {name: {"size": e.size, "sha256": e.sha256} for name, e in manifest.files.items()},
        "optimizer": manifest.fingerprint.optimizer,
        "weights": [_variable_json(v) for v in manifest.fingerprint.weights],
        "seeds": [_variable_json(v) for v in manifest.fingerprint.seeds],
        "slots": [_variable_json(v) for v in manifest.fingerprint.slots],
    }
    return json.dumps({**body, "digest": _digest(body)}, indent=1).encode()


def _variable_json(variable: Variable) -> list:
    plain = [variable.path, list(variable.shape), variable.dtype, variable.digest]
    return plain if variable.value is None else [*plain, list(variable.value)]


def _digest(body: dict) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse(content: bytes) -> Manifest:
    """A manifest from the bytes of its file.

    Raises:
        CheckpointError: it is too long, no JSON, of a newer format, changed, or lacks something. Nothing else.
    """
    if len(content) > MAX_MANIFEST_BYTES:
        raise CheckpointError(f"manifest is {len(content)} bytes long, more than {MAX_MANIFEST_BYTES}")
    try:
        body = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"manifest is no JSON: {str(error)[:120] or type(error).__name__}") from None
    if not isinstance(body, dict):
        raise CheckpointError(f"manifest holds a {type(body).__name__}, expected an object")
    version = _take(body, "format", int)
    if version > FORMAT:
        raise CheckpointError(
            f"written by a newer hvd_mnist (manifest format {version}, this one reads up to {FORMAT})",
            hint="update hvd_mnist",
        )
    if version < 1:
        raise CheckpointError(f"manifest: format {version} does not exist")
    claimed = _take(body, "digest", str)
    try:
        found = _digest({key: value for key, value in body.items() if key != "digest"})
    except (ValueError, RecursionError):  # a lone surrogate, or nesting that the parser took and the writer does not
        found = None
    if claimed != found:
        raise CheckpointError("manifest was changed after it was written (its own digest does not match)")
    return Manifest(
        step=_count(_take(body, "step", int), "step"),
        saved_at=_take(body, "saved_at", str),
        versions={_printable(name): _printable(str(v)) for name, v in _take(body, "versions", dict).items()},
        files=_files(_take(body, "files", dict)),
        fingerprint=Fingerprint(
            weights=_variables(body, "weights"),
            seeds=_variables(body, "seeds"),
            optimizer=_take(body, "optimizer", (str, type(None))),
            slots=_variables(body, "slots"),
        ),
        metric=_metric(_take(body, "metric", (dict, type(None)))),
    )


def _take(body: dict, key: str, kind):
    if key not in body:
        raise CheckpointError(f"manifest lacks {key!r}")
    value = body[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CheckpointError(f"manifest: {key!r} is a {type(value).__name__}")
    return _printable(value) if isinstance(value, str) else value


def _printable(text: str) -> str:
    if not text.isprintable():  # it will be shown on a terminal
        raise CheckpointError(f"manifest holds a text with control characters: {text!r:.80}")
    return text


def _count(value: int, what: str) -> int:
    if not 0 <= value < 1 << 63:
        raise CheckpointError(f"manifest: {what} is out of range")
    return value


def _files(entries: dict) -> dict[str, FileEntry]:
    if set(entries) != {MODEL, STATE}:  # also keeps every path inside the checkpoint's folder
        raise CheckpointError(f"manifest names the files {sorted(entries)!r:.120}, expected {[MODEL, STATE]}")
    files = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise CheckpointError(f"manifest: the entry of {name} is a {type(entry).__name__}")
        size = _count(_take(entry, "size", int), f"size of {name}")
        files[name] = FileEntry(size, _take(entry, "sha256", str))
    return files


def _variables(body: dict, key: str) -> tuple[Variable, ...]:
    def whole(numbers) -> bool:
        return isinstance(numbers, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)

    variables = []
    for row in _take(body, key, list):
        if not (isinstance(row, list) and len(row) in (4, 5) and whole(row[1]) and (len(row) == 4 or whole(row[4]))):
            raise CheckpointError(f"manifest: {key!r} has a row that is no variable: {row!r:.80}")
        path, shape, dtype, digest = row[:4]
        if not all(isinstance(text, str) for text in (path, dtype, digest)):
            raise CheckpointError(f"manifest: {key!r} has a row that is no variable: {row!r:.80}")
        variables.append(
            Variable(_printable(path), tuple(shape), dtype, digest, tuple(row[4]) if len(row) == 5 else None)
        )
    return tuple(variables)


def _metric(entry: dict | None) -> Metric | None:
    if entry is None:
        return None
    mode, value = _take(entry, "mode", str), _take(entry, "value", (int, float, type(None)))
    if mode not in ("max", "min"):
        raise CheckpointError(f"manifest: metric mode {mode!r:.40}, expected 'max' or 'min'")
    if value is not None and not abs(value) < float("inf"):
        raise CheckpointError("manifest: the metric is not finite")
    try:
        return Metric(_take(entry, "name", str), mode, None if value is None else float(value))
    except OverflowError:
        raise CheckpointError("manifest: the metric is out of range") from None


def verify(path: Path | str, *, hashes: bool = True) -> Verdict:
    """Is this checkpoint folder complete and unchanged? Never raises for anything that lies on the disk.

    Args:
        path: a checkpoint folder.
        hashes: read every file and compare its sha256; False compares sizes only, which costs nothing.
    """
    path = Path(path)
    try:
        manifest = parse(read_bounded(path / MANIFEST, MAX_MANIFEST_BYTES))
        name = STEP_FOLDER.fullmatch(path.name)
        if name and int(name[1]) != manifest.step:
            return Verdict(False, f"{MANIFEST} is of step {manifest.step}")
        for file, entry in manifest.files.items():
            if reason := _file_is_bad(path / file, entry, hashes):
                return Verdict(False, reason, manifest)
    except CheckpointError as error:
        return Verdict(False, str(error))
    except FileNotFoundError as error:
        missing = Path(error.filename or path).name
        if not path.is_dir():
            return Verdict(False, "no such folder")
        why = " (its save did not finish, or it was removed)" if missing == MANIFEST else ""
        return Verdict(False, f"{missing} is missing{why}")
    except OSError as error:
        return Verdict(False, f"{error.filename or path}: {error.strerror or error}")
    return Verdict(True, "", manifest)


def _file_is_bad(path: Path, entry: FileEntry, hashes: bool) -> str | None:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry.size:
            return f"{path.name} has {size} bytes, expected {entry.size}"
        if hashes and sha256_of(file) != entry.sha256:
            return f"{path.name} has been changed (sha256 does not match)"
    return None


def sha256_of(file) -> str:
    """sha256 of an open file, from its present position on."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def open_regular(path: Path):
    """Open a regular file for reading. A pipe or a device of that name would hang or never end: CheckpointError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CheckpointError(f"{path.name} is no regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bounded(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; CheckpointError when it is longer."""
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise CheckpointError(f"{path.name} is longer than {limit} bytes")
    return content
