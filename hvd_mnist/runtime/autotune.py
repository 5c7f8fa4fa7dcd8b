"""Horovod's own search for its cycle time and fusion threshold: asked for before it starts, its answer read back.

Horovod tries 21 pairs, each for 50 steps, after 3 times 50 steps that it does not look at, and keeps the pair that
moved most bytes a second. A number that is set in the environment stays as it is. So do, here, the response cache (on)
and the hierarchical allgather (off): it would search all over again for each of their values.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.errors import UsageError

TUNED = ("HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD")
KEPT = {"HOROVOD_CACHE_CAPACITY": "1024", "HOROVOD_HIERARCHICAL_ALLGATHER": "0"}  # Horovod's own defaults
SCORES_A_SAMPLE = 5  # ParameterManager::SAMPLES: each over HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE steps


def request(rank: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Ask Horovod to tune; call it before Horovod starts, on every rank.

    Raises:
        UsageError: both numbers are set, so that nothing is left to tune.
    """
    if all(name in environ for name in TUNED):
        raise UsageError(f"--autotune with {' and '.join(TUNED)} set: nothing is left to tune", f"unset {TUNED[0]}")
    environ["HOROVOD_AUTOTUNE"] = "1"
    for name, value in KEPT.items():
        environ.setdefault(name, value)
    if rank == 0 and "HOROVOD_AUTOTUNE_LOG" not in environ:
        descriptor, environ["HOROVOD_AUTOTUNE_LOG"] = tempfile.mkstemp(prefix="hvd-mnist-autotune-", suffix=".csv")
        os.close(descriptor)


def is_on(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether Horovod was, or will be, asked to tune: by us, or by ``horovodrun --autotune``."""
    try:
        return int(environ.get("HOROVOD_AUTOTUNE", "0")) > 0
    except ValueError:
        return False


def samples(environ: Mapping[str, str] = os.environ) -> int:
    """How many pairs are tried."""
    return int(environ.get("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "20")) + 1


def steps(environ: Mapping[str, str] = os.environ) -> int:
    """Training steps until it has settled."""
    warmups = int(environ.get("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "3"))
    of_each = int(environ.get("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "10"))
    return (warmups + samples(environ)) * SCORES_A_SAMPLE * of_each


@dataclass(frozen=True)
class Tuned:
    """What the search found.

    Attributes:
        settled: it is over, and Horovod goes on with these; else these are the best so far, and it still changes them.
        tried: pairs that were measured.
        cycle_time_ms, fusion_threshold_bytes: the best pair.
        bytes_per_second: what was exchanged with it, by the wall clock, the computing between exchanges included.
    """

    settled: bool
    tried: int
    cycle_time_ms: float
    fusion_threshold_bytes: int
    bytes_per_second: float


def read(text: str, environ: Mapping[str, str] = os.environ) -> Tuned | None:
    """The answer in Horovod's log, CSV, which ends with the best pair once more when it has settled; None: none yet."""
    rows = []
    for row in csv.DictReader(text.splitlines(), skipinitialspace=True):
        try:
            pair = float(row["cycle_time_ms"]), round(float(row["tensor_fusion_threshold"]) * 2**20)
            rows.append((float(row["score"]), *pair))  # bytes a microsecond
        except (KeyError, TypeError, ValueError):  # a line that is being written
            continue
    if not rows:
        return None
    settled = len(rows) > samples(environ)
    score, cycle, threshold = rows[-1] if settled else max(rows)
    return Tuned(settled, len(rows) - settled, cycle, threshold, score * 1e6)


def words(found: Tuned | None, steps_made: int, environ: Mapping[str, str] = os.environ) -> str:
    """What to tell the user, and what to type next time."""
    wanted = f"it takes about {steps(environ)} steps, this run made {steps_made}"
    if found is None:
        return f"autotune: no pair was tried; {wanted}"
    names = {TUNED[0]: f"{found.cycle_time_ms:.3g}", TUNED[1]: str(found.fusion_threshold_bytes)}
    typed = " ".join(f"{name}={value}" for name, value in names.items() if name not in environ)
    if not found.settled:
        return (
            f"autotune: not settled, {found.tried} of {samples(environ)} pairs tried ({wanted}); best so far: {typed}"
        )
    return (
        f"autotune: settled on a cycle of {found.cycle_time_ms:.3g} ms and a fusion threshold of "
        f"{found.fusion_threshold_bytes / 2**20:.3g} MiB; to have them from the start: {typed}"
    )


def collect(target: Path, environ: Mapping[str, str] = os.environ) -> Tuned | None:
    """On rank 0, before Horovod stops: read the log, and keep a copy of it in the run folder."""
    log = Path(environ["HOROVOD_AUTOTUNE_LOG"])
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
        target.write_text(text, encoding="utf-8")
    except OSError:
        return None
    if log.name.startswith("hvd-mnist-autotune-"):
        log.unlink(missing_ok=True)  # Horovod, if it still writes, writes on into what has no name
    return read(text, environ)
