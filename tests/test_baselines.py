"""The arithmetic and the words of the older ways of training; the systems themselves run in tests/parallel."""

from __future__ import annotations

import contextlib
import math
import socket
import subprocess
import sys
import types
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_mnist.baselines import KNOBS, tasks
from hvd_mnist.baselines.course import prepare
from hvd_mnist.baselines.ps_mode import Mode
from hvd_mnist.baselines.ring import launch_words, slots
from hvd_mnist.baselines.shards import PLACEMENTS, bytes_by_ps, place_shards
from hvd_mnist.config import TrainConfig
from hvd_mnist.errors import LaunchError, PeerLost, UsageError

CNN = [(3, 3, 1, 32), (32,), (3, 3, 32, 64), (64,), (9216, 128), (128,), (128, 10), (10,)]
SHAPES = st.lists(st.lists(st.integers(1, 40), max_size=3).map(tuple), min_size=1, max_size=8)


# ---- Where variables are


@given(SHAPES, st.integers(1, 5), st.sampled_from(PLACEMENTS), st.integers(4, 4000))
def test_every_row_is_on_one_ps(shapes, ps, placement, largest):
    shards = place_shards(shapes, ps, placement, largest)
    for number, shape in enumerate(shapes):
        parts = [shard for shard in shards if shard.variable == number]
        rows = shape[0] if shape else 1
        assert [row for part in parts for row in range(part.first, part.stop)] == list(range(rows))
        assert len(parts) <= max(1, min(ps, rows)) and all(0 <= part.ps < ps for part in parts)
        assert sum(part.bytes for part in parts) == 4 * math.prod(shape)
    assert sum(bytes_by_ps(shards, ps)) == 4 * sum(math.prod(shape) for shape in shapes)


def test_round_robin_deals_in_order_and_by_size_evens_out():
    dealt = place_shards(CNN, 2, "round-robin", 1 << 30)
    assert [shard.ps for shard in dealt] == [0, 1, 0, 1, 0, 1, 0, 1]
    whole = bytes_by_ps(place_shards(CNN, 2, "by-size", 1 << 30), 2)
    assert sorted(whole) == [80_936, 4 * 9216 * 128]  # the one large variable decides
    even = bytes_by_ps(place_shards(CNN, 2, "by-size", 1 << 20), 2)
    assert abs(even[0] - even[1]) < 0.02 * sum(even)  # cut in two, it does not


# ---- The order of execution


def test_order_by_counts():
    from hvd_mnist.baselines.explain import critical_path, run_by_counts

    graph = {"x": set(), "w": set(), "matmul": {"x", "w"}, "b": set(), "add": {"matmul", "b"}, "loss": {"add"}}
    order = run_by_counts(graph)
    assert order.names == ["x", "w", "b", "matmul", "add", "loss"]
    assert order.queue == [3, 2, 2, 1, 1, 1]
    assert order.wave == {"x": 0, "w": 0, "b": 0, "matmul": 1, "add": 2, "loss": 3}
    path, cost = critical_path(graph, {"b": 9.0, "matmul": 4.0, "loss": 1.0})
    assert path == ["b", "add", "loss"] and cost == 10.0
    with pytest.raises(ValueError, match="a cycle: \\['a', 'b'\\]"):
        run_by_counts({"a": {"b"}, "b": {"a"}})


@given(st.integers(1, 30).flatmap(lambda n: st.lists(st.sets(st.integers(0, n - 1)), min_size=n, max_size=n)))
def test_nothing_runs_before_what_it_waits_for(edges):
    from hvd_mnist.baselines.explain import critical_path, run_by_counts

    graph = {str(node): {str(other) for other in needed if other < node} for node, needed in enumerate(edges)}
    order = run_by_counts(graph)
    place = {name: number for number, name in enumerate(order.names)}
    assert place.keys() == graph.keys()
    assert all(place[other] < place[name] for name, needed in graph.items() for other in needed)
    path, cost = critical_path(graph, dict.fromkeys(graph, 1.0))
    assert cost == len(path) == 1 + max(order.wave.values())


def test_staleness():
    pytest.importorskip("tensorflow")
    from hvd_mnist.baselines.parameter_server import staleness

    assert staleness([]) is None
    assert staleness([0, 2, 1, 5]) == {"mean": 2.0, "median": 2, "largest": 5, "n": 4}


FAILED = """Graph execution error:

From /job:ps/replica:0/task:1:
failed to connect to all addresses; last error: Connection refused
Additional GRPC error information from remote target /job:ps/replica:0/task:1 while calling /RunGraph:"""


@pytest.fixture
def a_worker():
    """A worker without a graph, whose calls fail ``failures`` times; two sockets listen as its ps tasks."""
    pytest.importorskip("tensorflow")
    from hvd_mnist.baselines.parameter_server import Worker

    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(2)]

        def made(failures: int, limit: float = 30.0):
            worker = object.__new__(Worker)
            worker.cluster = {"ps": [f"localhost:{one.getsockname()[1]}" for one in listening]}
            worker.limit, worker.clock, worker.step, worker.saved = limit, contextlib.nullcontext(), 3, lambda: "resume"
            worker.failures, worker.sessions, worker.listening = failures, 0, listening

            def run(what, feed, options):
                import tensorflow as tf

                worker.failures -= 1
                if worker.failures >= 0:
                    raise tf.errors.UnavailableError(None, None, FAILED)
                return what

            def connect():
                worker.sessions, worker.session = worker.sessions + 1, types.SimpleNamespace(run=run)

            worker.connect = connect
            connect()
            return worker

        yield made


def test_what_may_be_done_twice_is_tried_again_in_a_new_session(a_worker):
    worker = a_worker(failures=2)
    assert worker.run("fill", twice=True) == "fill" and worker.sessions == 3
    worker = a_worker(failures=1)
    broke = r"connection to ps 1 at localhost:\d+ broke at step 3 \(failed to connect to all addresses; .* -> resume"
    with pytest.raises(PeerLost, match=broke):
        worker.run("push")
    assert worker.sessions == 1, "gradients are never handed in twice"
    with pytest.raises(PeerLost, match=broke):
        a_worker(failures=1000, limit=1.0).run("fill", twice=True)


def test_a_ps_that_accepts_no_connection_is_lost_and_not_tried_again(a_worker):
    worker = a_worker(failures=1000)
    worker.listening[1].close()
    lost = r"ps 1 at localhost:\d+ was lost at step 3 \(failed to connect .*\), and its variables with it -> resume"
    with pytest.raises(PeerLost, match=lost):
        worker.run("fill", twice=True)
    assert worker.sessions == 1


def test_a_call_that_does_not_return_ends_at_its_limit():
    text = """
import time
from hvd_mnist.baselines import tasks
from hvd_mnist.errors import PeerLost
limit = tasks.Limit(0.5, lambda: PeerLost("ps 1 was lost"))
with limit:
    pass
time.sleep(1.5)
print("a block that has ended is not timed", flush=True)
with limit:
    time.sleep(60)
"""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stderr) == (201, "hvd-mnist: error: ps 1 was lost\n")
    assert ended.stdout == "a block that has ended is not timed\n"


@pytest.mark.parametrize("name", ["explain", "ring", "tasks"])
def test_examples_in_the_text(name):
    import doctest
    import importlib

    done = doctest.testmod(importlib.import_module(f"hvd_mnist.baselines.{name}"))
    assert done.attempted and not done.failed


# ---- Clusters


def test_addresses():
    assert tasks.read_addresses("--ps-hosts", " a:1, b:65535,") == ["a:1", "b:65535"]
    assert tasks.read_addresses("--ps-hosts", None) == []
    for text, said in [
        ("a:2222,b", "--ps-hosts entry 1 is 'b': expected host:port"),
        ("a:0", "entry 0 is 'a:0'"),
        (":22", "entry 0 is ':22'"),
        ("a b:22", "entry 0 is 'a b:22'"),
        ("a:2222,a:2222", "--ps-hosts has a:2222 twice"),
    ]:
        with pytest.raises(UsageError, match=said):
            tasks.read_addresses("--ps-hosts", text)


@pytest.mark.parametrize(
    "cluster, job, index, said",
    [
        ({"ps": [], "worker": ["a:1"]}, "ps", 0, "--job-name ps: the cluster has no such task -> --ps-hosts"),
        ({"ps": ["a:1"], "worker": ["a:2"]}, "worker", 1, "--task-index 1: --worker-hosts has tasks 0 to 0"),
        ({"ps": ["a:1"], "worker": ["a:2", "a:1"]}, "ps", 0, "a:1 is given to ps 0 and to worker 1"),
    ],
)
def test_wrong_clusters(cluster, job, index, said):
    with pytest.raises(UsageError, match=said):
        tasks.check_task(cluster, job, index)


def test_placing_tasks():
    assert tasks.place({"ps": 1, "worker": 2}, ["a", "b"], {}) == {"ps": ["a:23400"], "worker": ["b:23401", "a:23402"]}
    fixed = tasks.place({"chief": 1, "worker": 2}, ["a", "b"], {"chief": "me"})
    assert fixed == {"chief": ["me:23400"], "worker": ["a:23401", "b:23402"]}
    here = tasks.place({"ps": 2, "worker": 2}, [], {})
    addresses = here["ps"] + here["worker"]
    assert len(set(addresses)) == 4 and all(a.startswith("localhost:") for a in addresses)


def test_ports():
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(
            LaunchError, match=f"ps 0 cannot listen on {address}: Address already in use -> another port"
        ):
            tasks.check_port("ps 0", address)
        tasks.wait_for({"ps": [address]}, ["ps"], 5)
    tasks.check_port("ps 0", address)
    with pytest.raises(LaunchError, match=f"ps 0 at {address} did not come up in 0.1 s"):
        tasks.wait_for({"ps": [address]}, ["ps"], 0.1)


# ---- Settings


def test_settings_travel():
    from click.testing import CliRunner

    from hvd_mnist.commands import baseline, options

    config = TrainConfig(model="cnn", steps=7, dropout=False, learning_rate=0.5, tensorboard=False, threads=2)
    words = tasks.knob_words(config, KNOBS)
    seen = []

    @baseline.baseline.command("told")
    @baseline.knobs
    @options.click.pass_context
    def told(ctx, **_):
        seen.append(options.config_from(ctx)[0])

    try:
        done = CliRunner().invoke(baseline.baseline, ["told", *words])
    finally:
        del baseline.baseline.commands["told"]
    assert done.exit_code == 0, done.output
    assert seen == [config]


def test_a_rate_that_nothing_would_lower_is_refused():
    with pytest.raises(UsageError, match="--schedule plateau: only train"):
        prepare(TrainConfig(schedule="plateau"), 2)
    with pytest.raises(UsageError, match="the older ways train small, cnn and mlp"):
        prepare(TrainConfig(model="mine:build"), 2)


def test_modes():
    assert Mode(slow=(1, 0.5), synchronous=False).words()[-2:] == ["--slow-worker", "1:0.5"]
    Mode(backup=1).check(2)
    for mode, said in [
        (Mode(synchronous=False, backup=1), "--backup-workers 1 with --async"),
        (Mode(backup=2), "--backup-workers 2 of 2 workers"),
        (Mode(slow=(2, 1.0)), "--slow-worker 2: there are workers 0 to 1"),
    ]:
        with pytest.raises(UsageError, match=said):
            mode.check(2)


def test_ring_words():
    assert slots(5, ["a", "b"]) == "a:3,b:2" and slots(1, ["a", "b"]) == "a:1"
    words = launch_words(TrainConfig(steps=3), 4, ["a", "b"])
    assert words == ["launch", "-np", "4", "-H", "a:2,b:2", "--", "train", "--steps", "3"]


# ---- What crosses between devices


def test_crossings():
    tf = pytest.importorskip("tensorflow")
    from hvd_mnist.baselines.explain import crossings

    with tf.Graph().as_default() as graph:
        with tf.device("/device:CPU:0"):
            weights = tf.zeros((10, 5))
        for tower in (1, 2):
            with tf.device(f"/device:CPU:{tower}"):
                once = weights + 1.0
                _ = weights * once  # needs it again: sent once all the same
    found = crossings(graph.get_operations())
    assert Counter(one["to"] for one in found) == {"/device:CPU:1": 1, "/device:CPU:2": 1}
    assert all(one["bytes"] == 200 and one["from"] == "/device:CPU:0" for one in found)


# ---- The guide and its Chinese twin


def guide_commands(name):
    import re
    from pathlib import Path

    text = (Path(__file__).resolve().parents[1] / "docs" / name).read_text(encoding="utf-8").replace(" \\\n", " ")
    lines = re.findall(r"^    (hvd-mnist .*)$|`(hvd-mnist [^`]*)`", text, re.M)
    return [" ".join(re.split(r" {4,}(?!-)", block or inline)[0].split()) for block, inline in lines]


def test_both_guides_have_the_same_commands_and_each_is_understood():
    import re

    from click.testing import CliRunner

    from hvd_mnist.cli import cli

    commands = guide_commands("from-parameter-server-to-ring.md")
    assert commands == guide_commands("from-parameter-server-to-ring.zh-CN.md") and len(commands) > 20
    for command in set(commands):
        words = re.sub(r"\bH:", "host:", command).split()[1:]
        told = CliRunner().invoke(cli, [*words, "--help"])  # parsed up to --help, which ends it
        assert told.exit_code == 0, f"{command}\n{told.output}"
        assert all(word.split("=")[0] in told.output for word in words if word.startswith("-")), command
