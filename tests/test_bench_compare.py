"""The laws of traffic, and what a comparison makes of its samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_mnist.bench.compare import Comparison, sample, spread, summarize
from hvd_mnist.bench.compare_report import beside_law, step_times, why_off
from hvd_mnist.bench.laws import batch_bytes, bytes_per_step, link_seconds
from hvd_mnist.errors import UsageError
from hvd_mnist.runtime import traffic

SYSTEMS = ("single", "towers", "in-graph", "ps-sync", "ps-async", "ring")


@given(st.sampled_from(SYSTEMS), st.integers(1, 9), st.lists(st.integers(1, 10**6), min_size=1, max_size=4))
def test_what_is_sent_is_received(system, replicas, parts):
    law = bytes_per_step(system, sum(parts), replicas, ps_bytes=parts, batch=100)
    sent, received = (sum(task[way] for task in law.values()) for way in (0, 1))
    assert sent == pytest.approx(received)


def test_laws():
    assert bytes_per_step("ring", 900, 3) == {f"rank:{n}": (1200, 1200) for n in range(3)}
    law = bytes_per_step("ps-sync", 900, 3, ps_bytes=[500, 400])
    assert law["ps:0"] == (1500, 1500) and law["ps:1"] == (1200, 1200) and law["worker:2"] == (900, 900)
    assert bytes_per_step("in-graph", 900, 3, batch=10)["chief:0"] == (2730, 2700)
    assert batch_bytes(2) == 2 * (28 * 28 * 4 + 8)
    assert link_seconds("ring", {"rank:0": (1e6, 1e6)}, 8.0) == 1.0
    assert link_seconds("ps-sync", law | {"ps:0": (1e6, 1e6)}, 8.0) == 2.0  # first out, then in
    assert link_seconds("ps-async", law | {"ps:0": (1e6, 1e6)}, 8.0) == 1.0  # at the same time, for different workers


def summary(steps, sent, seconds, cpu):
    counts = {"sockets_sent": sent, "sockets_received": 2 * sent, "interfaces_sent": 0, "interfaces_received": 0}
    task = {"rank": 0, "traffic": counts, "peak_memory_mib": 500.0}
    return {
        "steps": steps,
        "global_batch": 64,
        "train_seconds": seconds,
        "cpu_seconds": cpu,
        "ranks": [task],
        "parameters": 10,
        "folder": "f",
    }


def test_a_sample_is_the_difference_of_two_runs():
    what = Comparison(systems=["ring"], replicas=2, global_batch=128)
    found = sample(what, "ring", summary(4, 1000, 10.0, 5.0), summary(24, 5000, 30.0, 10.12))
    assert found["images_per_second"] == 64.0  # 20 steps of 64 images in 20 s
    assert found["cpu_ms_per_image"] == pytest.approx(4.0)
    assert found["tasks"]["rank:0"]["sent"] == 400 and found["tasks"]["rank:0"]["received"] == 800  # per 128 images
    assert found["busiest_share"] is None or found["busiest_share"] == 1.0
    told = summarize(what, "ring", [found, found])
    assert told["tasks"]["rank:0"]["law_sent"] == 40 and told["images_per_second"]["n"] == 2
    # A run that took no time that the clock could tell gives no speed, and no wrong one.
    assert sample(what, "ring", summary(4, 0, 10.0, 5.0), summary(24, 0, 10.0, 5.0))["images_per_second"] is None


def test_spread_and_marks():
    assert spread([3.0, None, 1.0, 2.0]) == {"median": 2.0, "least": 1.0, "most": 3.0, "n": 3}
    assert spread([None]) is None
    assert beside_law(1100, 1000) == "1 (+10%)" and beside_law(1300, 1000) == "1 (+30% !)" and beside_law(5, 0) == "-"


def test_words():
    what = Comparison(systems=["ring"], replicas=3, ps=1, hosts=["a", "b", "c", "d"], global_batch=96)
    assert what.words("ring") == ["baseline", "ring", "-np", "3", "-H", "b,c,d"]
    assert what.words("ps-async")[:3] == ["baseline", "parameter-server", "--async"]
    assert what.words("ps-async")[-2:] == ["-H", "a,b,c,d"]
    assert what.rounds("ps-async", 10) == 30 and what.rounds("ring", 10) == 10
    with pytest.raises(UsageError, match="--global-batch 128 does not divide by 3"):
        Comparison(systems=["ring"], replicas=3)
    with pytest.raises(UsageError, match="-H names 1 host for 2 replicas"):
        Comparison(systems=["ring"], hosts=["a"])


def test_the_kernel_counts_our_sockets():
    import socket

    before = traffic.counters()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as mine:
        other, _ = server.accept()
        with other:
            mine.sendall(bytes(50_000))
            got = 0
            while got < 50_000:
                got += len(other.recv(65536))
            found = traffic.since(before)
    assert found["sockets_sent"] == found["sockets_received"] == 50_000


def test_interfaces_without_the_loopback():
    lines = ["Inter-| Receive", " face |bytes", "    lo: 9 1 0 0 0 0 0 0 9 1", "  eth0: 100 1 0 0 0 0 0 0 7 1"]
    text = "\n".join([*lines, "  eth1:5 1 0 0 0 0 0 0 3 1"])
    assert traffic._interfaces(text) == (10, 105)


def measured(cpu_ms_per_image, step_seconds, link=None):
    return {
        "cpu_ms_per_image": {"median": cpu_ms_per_image},
        "step_seconds": {"median": step_seconds},
        "link_seconds_by_law": link,
    }


def test_a_step_is_computing_and_link_and_what_is_off_has_a_reason():
    systems = {"single": measured(2.0, 0.11), "ring": measured(2.4, 0.35, 0.2), "ps-sync": measured(2.0, 0.25, 0.2)}
    result = {"settings": {"global_batch": 100}, "cores": 2, "systems": systems}
    times = step_times(result)
    ring = times["ring"]
    assert (ring["compute"], ring["link"], ring["predicted"]) == pytest.approx((0.1, 0.2, 0.3))
    assert (ring["extra_cpu"], ring["rest"]) == pytest.approx((0.02, 0.03))
    assert why_off(ring) == (
        "+0.050 s off: +0.020 s are CPU time above one device's; "
        "0.030 s are neither CPU time nor the link's bytes: waiting, latency, idle cores"
    )
    assert "0.050 s of the link or of the work went on at the same time" in why_off(times["ps-sync"])
    for time in times.values():
        assert time["predicted"] + time["extra_cpu"] + time["rest"] == pytest.approx(time["measured"])
    assert step_times(result | {"systems": {"ring": systems["ring"]}}) == {}
    assert step_times(result | {"systems": {"single": measured(-0.1, 0.1)}}) == {}
