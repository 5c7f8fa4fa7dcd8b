"""Throw mutated bytes at every reader that takes a file or a text from outside.

    python -m tests.fuzz --seconds 60                all readers, a minute each, guided by coverage (atheris)
    python -m tests.fuzz --reader idx --inputs 5000

A reader may return or raise an HvdMnistError; anything else is a finding, as is an input that takes more than
SECONDS of CPU time or more than MEMORY. The suite runs a few hundred inputs of each (tests/test_fuzz.py).
Where atheris (a coverage-guided fuzzer; `pip install atheris`) is absent, mutations are drawn blindly.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import pickle
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SECONDS = 10  # of CPU time for one input
MEMORY = 512 << 20  # bytes of address space above what the process has when it starts to read
LIES = [
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\0" * 4,
    b"\x80" * 8,
    b"(x9999999)",
    b"[1-99999999]",
    b"\r\n",
    b"\0",
    b"[" * 500,
]


@dataclass(frozen=True)
class Reader:
    read: Callable[[bytes], object]
    seeds: list[bytes]


def hosts_text(content: bytes):
    from hvd_mnist.cluster.hostfile import parse_hosts

    return parse_hosts(content.decode("utf-8", "replace"))


def hostfile(content: bytes):
    from hvd_mnist.cluster.hostfile import read_hostfile

    return read_hostfile(_file(content))


def slurm(content: bytes):
    from hvd_mnist.cluster.hostfile import parse_slurm

    nodes, _, tasks = content.decode("utf-8", "replace").partition("|")
    return parse_slurm(nodes, tasks)


def manifest(content: bytes):
    from hvd_mnist.checkpoint.manifest import parse

    return parse(content)


def manifest_with_a_right_digest(content: bytes):
    """The digest is no secret: whoever can write the file can write a right one."""
    from hvd_mnist.checkpoint import manifest as module

    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        body = json.loads(content)
        body.pop("digest", None)
        content = json.dumps({**body, "digest": module._digest(body)}).encode()
    return module.parse(content)


def idx(content: bytes):
    from hvd_mnist.data.files import read_idx

    return read_idx(_file(content))


def packed_idx(content: bytes):
    return idx(gzip.compress(content, 1))


def npz(content: bytes):
    from hvd_mnist.data.files import read_npz

    return read_npz(_file(content))


def stored_npz(content: bytes):
    from hvd_mnist.data.files import digest
    from hvd_mnist.data.stored import Stored, store_npz

    arrays = store_npz(_file(content)) or {}
    return [digest(images) for images in arrays.values() if isinstance(images, Stored)]


def packed_pickle(content: bytes):
    from hvd_mnist.data.download import unpickle_arrays

    return unpickle_arrays(content)


def arrays_pickle(content: bytes):
    return packed_pickle(gzip.compress(content, 1))


_scratch = os.memfd_create("fuzz")  # a file in memory: thousands a second


def _file(content: bytes) -> Path:
    os.ftruncate(_scratch, 0)
    os.pwrite(_scratch, content, 0)
    return Path(f"/proc/self/fd/{_scratch}")


def readers() -> dict[str, Reader]:
    import numpy as np

    from hvd_mnist.checkpoint.manifest import FileEntry, Manifest, Metric, to_bytes
    from hvd_mnist.checkpoint.variables import Fingerprint, Variable

    root = Path(__file__).resolve().parents[1]
    examples = [path.read_bytes() for path in sorted((root / "hostfiles").iterdir())]
    weight = Variable("dense/kernel", (3, 2), "float32", "00" * 32, None)
    written = to_bytes(
        Manifest(
            step=7,
            saved_at="2026-01-01T00:00:00+00:00",
            versions={"keras": "3"},
            files={name: FileEntry(3, "11" * 32) for name in ("model.keras", "state.json")},
            fingerprint=Fingerprint((weight,), (), "adam", (weight,)),
            metric=Metric("test_accuracy", "max", 0.5),
        )
    )
    labels = b"\0\0\x08\x01" + struct.pack(">I", 9) + bytes(9)
    images = b"\0\0\x08\x03" + struct.pack(">III", 2, 3, 4) + bytes(24)
    arrays = {name: np.zeros((4, 2), np.uint8) for name in ("x_train", "y_train", "x_test", "y_test")}
    plain, deflated, pictures = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(plain, **arrays)
    np.savez_compressed(deflated, **arrays)
    np.savez(pictures, **arrays | {name: np.zeros((4, 2, 3), np.uint8) for name in ("x_train", "x_test")})
    pickles = [pickle.dumps([(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))], level) for level in (3, 4, 5)]
    texts = [b"h1:4,h2:4", b"gpu[01-04]:4,cpu-[1,3-5]", b"user@host:2,[fd00::1]:4", b"n1 slots=4 max_slots=8 # x"]
    return {
        "hosts": Reader(hosts_text, texts),
        "hostfile": Reader(hostfile, examples + texts),
        "slurm": Reader(slurm, [b"n[1-3],m7|4(x2),2,1", b"rack[1-2]n[3-4]|1(x4)", b"n1|8"]),
        "manifest": Reader(manifest, [written]),
        "manifest-right-digest": Reader(manifest_with_a_right_digest, [written]),
        "idx": Reader(idx, [labels, images, gzip.compress(images)]),
        "idx-in-gzip": Reader(packed_idx, [labels, images]),
        "npz": Reader(npz, [plain.getvalue(), deflated.getvalue()]),
        "stored-npz": Reader(stored_npz, [pictures.getvalue()]),
        "pickle": Reader(arrays_pickle, pickles),
        "pickle-in-gzip": Reader(packed_pickle, [gzip.compress(one) for one in pickles]),
    }


def mutate(draw: random.Random, seeds: list[bytes]) -> bytes:
    """A seed with one to eight parts flipped, cut out, doubled, or replaced by a lie or a part of another seed."""
    content = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, 8)):
        at = draw.randint(0, len(content))
        length = draw.choice((1, 1, 4, 8, draw.randint(0, 200)))
        kind = draw.randrange(5)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del content[at : at + length]
        elif kind == 2:
            content[at:at] = content[at : at + length] * draw.randint(1, 50)
        elif kind == 3:
            lie = draw.choice(LIES)
            content[at : at + draw.choice((0, len(lie)))] = lie
        else:
            other = draw.choice(seeds)
            start = draw.randint(0, len(other))
            content[at : at + length] = other[start : start + length]
    return bytes(content)


def judge(reader: Reader, content: bytes) -> str:
    """ "read" or "refused".

    Raises:
        AssertionError: a finding: the wrong kind of error, too many lines, or too much CPU time.
    """
    from hvd_mnist.errors import HvdMnistError

    begin = time.process_time()
    try:
        reader.read(content)
        answer = "read"
    except HvdMnistError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000, f"no one-line error: {error}"
        answer = "refused"
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    spent = time.process_time() - begin
    assert spent < SECONDS, f"one input took {spent:.0f} s of CPU time"
    return answer


def limit_memory() -> None:
    """From here on an allocation beyond MEMORY is a MemoryError, and a reader must refuse before it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    ceiling = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, resource.getrlimit(resource.RLIMIT_AS)[1]))


def blindly(name: str, inputs: int, seed: int = 0) -> dict[str, int]:
    """Judge so many mutated inputs; how many were read and how many refused."""
    reader, draw, answers = readers()[name], random.Random(seed), {"read": 0, "refused": 0}
    for number in range(inputs):
        content = mutate(draw, reader.seeds)
        try:
            answers[judge(reader, content)] += 1
        except AssertionError as finding:
            raise AssertionError(f"{name}, input {number}: {finding}; content {content[:2000]!r}") from finding
    return answers


def guided(name: str, seconds: int) -> None:
    """Let atheris look for new branches; it ends this process."""
    import atheris

    with atheris.instrument_imports(include=["hvd_mnist", "hostlist"]):
        reader = readers()[name]
        with contextlib.suppress(Exception):
            reader.read(reader.seeds[0])  # imports what it needs
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(reader.seeds):
            Path(corpus, f"seed{number}").write_bytes(seed)
        limit_memory()
        options = [
            f"-max_total_time={seconds}",
            "-rss_limit_mb=0",
            "-max_len=4096",
            "-timeout=60",
            "-print_final_stats=1",
        ]
        atheris.Setup([sys.argv[0], *options, corpus], lambda content: judge(reader, content) and None)
        atheris.Fuzz()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--reader", action="append", help="one reader (again for more); all by default")
    options.add_argument("--seconds", type=int, default=0, help="coverage-guided, for so long per reader")
    options.add_argument("--inputs", type=int, default=2000, help="blind mutations per reader, without --seconds")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        guided(given.reader[0], given.seconds)
        return 0
    found = 0
    for name in given.reader or readers():
        if given.seconds:
            command = [sys.executable, "-m", "tests.fuzz", "--child", "--reader", name, "--seconds", str(given.seconds)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=given.seconds + 120)
            tried = [
                line.split(":")[-1].strip() for line in done.stderr.splitlines() if "number_of_executed_units" in line
            ]
            print(
                f"{name:24} {tried[0] if tried else '?':>9} inputs  {'ok' if done.returncode == 0 else 'FOUND'}",
                flush=True,
            )
            if done.returncode != 0:
                found += 1
                print(done.stderr[-3000:])
        else:
            print(f"{name:24} {blindly(name, given.inputs)}", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
