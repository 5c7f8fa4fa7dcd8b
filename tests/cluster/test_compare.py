"""The law of traffic on four hosts: a parameter server carries N models a step, a rank of the ring 2 (N - 1) / N."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hvd_mnist.data import sources

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(900)


def test_bytes_by_the_law_on_four_hosts(make_hosts, tmp_path, monkeypatch):
    sources.load("sample")  # once, before hosts that have no network
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HVD_MNIST_CACHE", str(sources.cache_folder().parent))
    hosts = make_hosts({f"host{number}": 1 for number in range(1, 5)})
    words = ["--systems", "ps-sync,ring", "-np", "3", "-H", ",".join(hosts.names), "--repeats", "1"]
    work = ["--data", "sample", "--model", "small", "--global-batch", "96", "--warm-up", "2", "--steps", "10"]
    told = tmp_path / "compare.json"
    done = hosts.run(
        "host1",
        [sys.executable, "-m", "hvd_mnist", "bench", "compare", *words, *work, "--folder", str(tmp_path / "runs"),
         "--json", str(told)],
        timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(told.read_text())
    assert found["bytes_from"] == "interfaces"
    assert max(found["weight_differences"].values()) < 1e-5
    model = 4 * 161_066
    server, ring = (found["systems"][name]["tasks"] for name in ("ps-sync", "ring"))
    for way in ("sent", "received"):
        assert server["ps:0"][way]["median"] == pytest.approx(3 * model, rel=0.1)
        assert all(server[f"worker:{n}"][way]["median"] == pytest.approx(model, rel=0.1) for n in range(3))
        assert all(ring[f"rank:{n}"][way]["median"] == pytest.approx(4 / 3 * model, rel=0.1) for n in range(3))
