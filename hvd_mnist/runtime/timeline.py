"""Horovod's timeline: asked for before Horovod starts, its file checked first and readable afterwards.

Rank 0 alone writes the file (docs/timeline.md). All ranks must ask for one all the same: with a timeline they exchange
more bits in each cycle.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import MutableMapping
from pathlib import Path

from hvd_mnist.errors import HvdMnistError, UsageError

NAME = "timeline.json"  # where a folder is given


def request(path: str, rank: int, environ: MutableMapping[str, str] = os.environ) -> UsageError | None:
    """Ask Horovod for a timeline; call it before Horovod starts, on every rank.

    Returns:
        What is wrong with the path, on rank 0, which looks; then Horovod is asked for a timeline without a file, so
        that all ranks still start alike and can fail together.
    """
    file, wrong = Path(path).absolute(), None
    if rank == 0:
        try:
            file = checked(path)
        except UsageError as error:
            wrong = error
    environ["HOROVOD_TIMELINE"] = "DYNAMIC" if wrong else str(file)
    return wrong


def confirm(refused: UsageError | None) -> None:
    """Raise what ``request`` returned, once all ranks can hear of it."""
    if refused is not None:
        raise refused


def checked(path: str) -> Path:
    """The file to write, absolute; its folder is there and it can be written. An older timeline is written over.

    Raises:
        UsageError: no folder can be made there, nothing can be written there, or the file is something else.
    """
    file = Path(path).absolute()
    if file.is_dir():
        file = file / NAME
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab+") as opened:
            opened.seek(0)
            first = opened.read(1)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise UsageError(f"--timeline {path}: cannot write {file}: {reason}", "--timeline FILE") from None
    if first not in (b"", b"["):
        raise UsageError(f"--timeline {path}: {file} is there and is no timeline; it stays", "--timeline OTHER-FILE")
    return file


def events_in(text: str, name: str) -> tuple[list[dict], int]:
    """The events of a timeline, whole or cut off.

    Args:
        text: the file; a list in JSON that may lack its end, where its writer was killed.
        name: of the file, for the error.

    Returns:
        The events, and how many characters at the end were left out since they are no whole event.

    Raises:
        UsageError: it is no list of JSON objects.
    """
    with contextlib.suppress(ValueError):
        events = json.loads(text)
        if isinstance(events, list) and all(isinstance(event, dict) for event in events):
            return events, 0
    if text.strip() and not text.lstrip().startswith("["):
        raise UsageError(f"{name} is no timeline: expected a list of events, found {text.lstrip()[:20]!r}")
    decoder, events, at = json.JSONDecoder(), [], text.find("[") + 1
    while True:
        while at < len(text) and text[at] in ", \r\n\t":
            at += 1
        if text[at : at + 1] != "{":
            break
        try:
            event, at = decoder.raw_decode(text, at)
        except ValueError:
            break
        events.append(event)
    return events, len(text[at:].strip().removeprefix("]"))


def read(path: Path) -> tuple[list[dict], int]:
    """``events_in`` a file.

    Raises:
        UsageError: it cannot be read, or is no timeline.
    """
    try:
        return events_in(Path(path).read_text(encoding="utf-8", errors="replace"), str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "a file that train --timeline FILE wrote") from None


def write(events: list[dict], path: Path) -> None:
    """Valid JSON, one event a line; whole or not at all.

    Raises:
        HvdMnistError: it cannot be written.
    """
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        temporary.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise HvdMnistError(f"cannot write {path}: {error.strerror}") from None


def finish(path: Path) -> str:
    """After Horovod has stopped, on rank 0: make the file valid JSON where it is not; what it holds, in a line.

    What is wrong is said too, and not raised: the training is done.
    """
    try:
        events, cut = read(path)
        with path.open("rb") as file:
            file.seek(-min(2, path.stat().st_size), os.SEEK_END)
            closed = file.read().rstrip().endswith(b"]")
        if events and not closed:
            write(events, path)
    except OSError as error:
        return f"no timeline: {path}: {error.strerror}"
    except HvdMnistError as error:
        return f"no timeline: {error}"
    if not events:
        return f"timeline {path} is empty: nothing was exchanged"
    left_out = f", {cut} characters of an unfinished one left out" if cut else ""
    return f"timeline {path}: {len(events)} events{left_out}; hvd-mnist bench timeline {path}"
