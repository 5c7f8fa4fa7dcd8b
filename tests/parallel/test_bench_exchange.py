"""``hvd-mnist bench allreduce`` with real ranks: every backend, right answers, the table, the file, the gate."""

import json
import re
import sys

import pytest

from tests.parallel.ranks import run


def bench(*words, timeout=280):
    return run([sys.executable, "-m", "hvd_mnist", "bench", *words], timeout=timeout)


def test_allreduce_over_every_backend(tmp_path):
    backends = ["horovod-gloo", "horovod-mpi", "mpi", "parameter-server"]
    sizes = ["--min-bytes", "4", "--max-bytes", "64K", "--factor", "128", "--tensors", "3"]
    few = ["--iterations", "3", "--warmup", "1", "--rounds", "1"]
    out = ["--json", str(tmp_path / "rows.json"), "--plot", str(tmp_path / "rows.png"), "--min-busbw", "1000000"]
    ended = bench("allreduce", "-np", "2", "--backends", ",".join(backends), *sizes, *few, *out)
    assert ended.status == 8 and "below the floor of 1e+06" in ended.output.splitlines()[-1], ended.output
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written["complete"] and [row["backend"] for row in written["rows"]] == [
        b for b in backends for _ in (1, 2, 3)
    ]
    assert {(row["ranks"], row["tensors"], row["wrong"], row["n"]) for row in written["rows"]} == {(2, 3, 0, 3)}
    assert [row["bytes"] for row in written["rows"][:3]] == [12, 504, 65532]  # whole elements of three equal tensors
    assert "#wrong" in ended.output and (tmp_path / "rows.png").stat().st_size > 5000


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["allreduce", "allgather", "broadcast"])
def test_half_precision(op, dtype):
    words = ["-np", "2", "--backends", "horovod-gloo", "--dtype", dtype, "--min-bytes", "2K", "--max-bytes", "2K"]
    ended = bench(op, *words, "--iterations", "2", "--rounds", "1", "--json", "-")
    ended.assert_ok()
    (row,) = json.loads(ended.output[ended.output.index("{") :])["rows"]
    assert (row["op"], row["dtype"], row["wrong"]) == (op, dtype, 0)
    assert row["bytes"] == (4096 if op == "allgather" else 2048)


LATE = """
import time
import numpy as np
from hvd_mnist.bench.exchange_ranks import Horovod
exchange = Horovod("allreduce")
act, read = exchange.prepared([np.arange(8.0)], "float32")
act()
if exchange.rank == 1:
    time.sleep(3)
print(f"rank {exchange.rank} says {act():.6f} s", flush=True)
exchange.leave()
"""


def test_the_time_of_an_exchange_begins_with_the_tensors_and_ends_with_the_sums():
    ended = run([sys.executable, "-c", LATE], launcher="gloo", np=2)
    ended.assert_ok()
    seconds = {int(rank): float(said) for rank, said in re.findall(r"rank (\d) says ([\d.]+) s", ended.output)}
    assert set(seconds) == {0, 1}
    assert seconds[0] > 2 and 0 < seconds[1] < seconds[0], f"rank 0 waited 3 s for rank 1: {seconds}"
