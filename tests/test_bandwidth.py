import json

import numpy as np
import pytest

from hvd_mnist.bench import exchange, exchange_ranks
from hvd_mnist.bench.bandwidth import Row, best_busbw, bus_factor, bytes_of, cells, merged, sizes
from hvd_mnist.commands import bench_exchange
from hvd_mnist.errors import BelowFloor, HvdMnistError, UsageError


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("allreduce", 2, 1.0),
        ("allreduce", 8, 1.75),
        ("allgather", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("allreduce", 1, 0.0),
    ],
)
def test_bus_factor(op, ranks, factor):
    assert bus_factor(op, ranks) == factor


@pytest.mark.parametrize(("text", "count"), [("4", 4), ("64K", 65536), ("1m", 1 << 20), ("2GiB", 2 << 30), ("8B", 8)])
def test_bytes_of(text, count):
    assert bytes_of(text) == count


@pytest.mark.parametrize("text", ["", "0", "-4", "4T", "4.5M", "9" * 20])
def test_bytes_of_what_is_no_size(text):
    with pytest.raises(UsageError, match="expected a number of bytes"):
        bytes_of(text)


def test_sizes():
    assert sizes(4, 64, 4) == [4, 16, 64]
    assert sizes(5, 5, 2) == [5]
    for wrong in ((8, 4, 2), (4, 8, 1)):
        with pytest.raises(UsageError, match="expected least <= most"):
            sizes(*wrong)


def row(backend="mpi", seconds=(1e-3, 3e-3, 2e-3), size=1_000_000, wrong=0, cpu=1e-3):
    return Row(backend, "allreduce", "float32", 1, size, 4, seconds, cpu, wrong)


def test_a_row_in_the_terms_of_nccl_tests():
    one = row()
    assert one.algbw == pytest.approx(0.5) and one.busbw == pytest.approx(0.75)  # 1 MB in 2 ms, times 2 * 3 / 4
    said = one.as_json()
    assert (said["min_us"], said["median_us"], said["n"]) == (1000, 2000, 3)
    assert cells(one)[:5] == ["mpi", "1000000", "1", "float32", "3"]


def test_rounds_are_put_together():
    parts = [row(seconds=(1.0,), cpu=1.0), row("horovod-gloo"), row(seconds=(3.0,), wrong=2, cpu=3.0)]
    together = merged(parts)
    assert [each.backend for each in together] == ["mpi", "horovod-gloo"]
    assert together[0].seconds == (1.0, 3.0) and together[0].wrong == 2 and together[0].cpu_seconds == 2.0


def test_the_gate():
    rows = [row(size=1000), row()]
    exchange.hold_to(rows, 0.7, "mpi")
    with pytest.raises(BelowFloor, match="mpi reached a bus bandwidth of 0.750 GB/s, below the floor of 0.8") as error:
        exchange.hold_to(rows, 0.8, "mpi")
    assert error.value.exit_status == 8
    assert best_busbw(rows, "horovod-mpi") == 0


class OneRank:
    """A collective over one rank that may spoil an element."""

    rank, size, cycle_ms = 0, 1, 0.0

    def __init__(self, spoiled):
        self.spoiled = spoiled

    def prepared(self, arrays, dtype):
        answers = [array.copy() for array in arrays]
        answers[0].reshape(-1)[: self.spoiled] += 1
        return (lambda: 0.25), (lambda: answers)

    def gather(self, line):
        return line[None]


@pytest.mark.parametrize("spoiled", [0, 1, 3])
def test_every_element_is_looked_at(spoiled):
    asked = {"backend": "x", "op": "allreduce", "dtype": "float32", "iterations": 2, "warmup": 0}
    line = exchange_ranks.measure(OneRank(spoiled), [[5], [2, 2]], asked)
    assert line["wrong"] == spoiled and line["bytes"] == 36 and line["tensors"] == 2 and line["seconds"] == [0.25, 0.25]


def test_a_wrong_element_is_an_error_and_no_speed(monkeypatch):
    line = json.dumps({**row(wrong=3).__dict__, "seconds": [1.0]})

    def acted(command, log_dir, timeout):
        folder = log_dir.removesuffix("/logs")
        with open(f"{folder}/rows.jsonl", "a") as file:
            file.write(line + "\n")
        return 0

    monkeypatch.setattr("hvd_mnist.launch.run.run", acted)
    monkeypatch.setattr(exchange, "commands", lambda *_: {"mpi": None})
    sweep = exchange.Sweep("allreduce", ("mpi",), (4,), None, 1, "float32", 1, 0, 1)
    with pytest.raises(HvdMnistError, match="mpi: 3 wrong elements in a allreduce of 1000000 bytes"):
        exchange.run(sweep, None, 2, 5, print, None)


@pytest.mark.parametrize("op", ["allreduce", "broadcast", "allgather"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_exact_answer_differs_from_every_ranks_own_values(op, dtype):
    own = [exchange_ranks.values(op, 100, rank, dtype) for rank in range(3)]
    answer = exchange_ranks.exact(op, 100, 3, dtype)
    assert answer.size == (300 if op == "allgather" else 100)
    assert not any(answer.size == one.size and np.array_equal(answer, one) for one in own[1:])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "float16"}, "--dtype float16 over mpi"),
        ({"backends": ("parameter-server",), "op": "broadcast"}, "a parameter server does no broadcast"),
    ],
)
def test_what_a_backend_cannot_do_is_said_before_anything_starts(change, says):
    plain = {
        "op": "allreduce", "backends": ("mpi",), "sizes": (4,), "shapes": None, "tensors": 1, "dtype": "float32",
        "iterations": 1, "warmup": 0, "rounds": 1,
    }  # fmt: skip
    with pytest.raises(UsageError, match=says):
        exchange.check(exchange.Sweep(**{**plain, **change}))


def test_the_command_the_launchers_and_the_ranks_know_the_same_backends():
    assert list(exchange.LAUNCHER) == list(exchange_ranks.BACKENDS) == list(bench_exchange.BACKENDS)
