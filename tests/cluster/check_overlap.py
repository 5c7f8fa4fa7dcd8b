"""What it gains that gradients travel while others are computed: one group against several, over a limited link.

    python -m tests.cluster.check_overlap                     as root; two pretended hosts, some 5 minutes
    python -m tests.cluster.check_overlap --rates 1gbit --groups 1,2,4

The trainer's step of the cnn (``bench.overhead``), one rank a host, in turn. docs/performance.md has what was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from pretended_hosts import PretendedHosts, missing_for_hosts, pretended_hosts

from hvd_mnist.bench.targets import json_in
from hvd_mnist.console import Console, library_defaults

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 400  # seconds of one job


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.check_overlap", description=__doc__.split("\n")[0])
    parser.add_argument("--rates", default="100mbit,1gbit", help="of each host's link, each way (tc's words)")
    parser.add_argument("--groups", default="1,2", help="of gradients that travel together")
    parser.add_argument("--threads", default="2", help="of a rank; one alone computes to the end before it exchanges")
    parser.add_argument("--blocks", default="4", help="of 8 steps each, in a job")
    parser.add_argument("--repeats", type=int, default=2)
    words = parser.parse_args()
    if reason := missing_for_hosts():
        parser.exit(3, f"{reason}\n")
    rows = []
    with tempfile.TemporaryDirectory(prefix="hvd-mnist-overlap-") as folder, contextlib.ExitStack() as stack:
        hosts = stack.enter_context(pretended_hosts({"host1": 1, "host2": 1}, Path(folder)))
        for rate in words.rates.split(","):
            with contextlib.ExitStack() as links:
                for name in hosts.names:
                    links.enter_context(hosts.slow_link(name, rate, "64kb", "1s"))
                    setting = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"
                    hosts.run(name, ["sh", "-c", setting], timeout=10).checked()
                rows += measure(hosts, rate, words)
    Console().table("a step", rows, ("link", "groups", "wall ms, median (each job)", "CPU ms a rank (each job)"))


def measure(hosts: PretendedHosts, rate: str, words: argparse.Namespace) -> list[tuple[str, ...]]:
    found: dict[str, list[tuple[float, float]]] = {groups: [] for groups in words.groups.split(",")}
    for repeat in range(words.repeats):
        for groups in list(found)[:: 1 if repeat % 2 == 0 else -1]:
            sizes = ["--steps", "8", "--blocks", words.blocks, "--threads", words.threads, "--groups", groups]
            step = [sys.executable, "-m", "hvd_mnist.bench.overhead", "--sides", "ours", *sizes]
            command = ["horovodrun", "--gloo", "-np", "2", "-H", "host1:1,host2:1", *step]
            environment = {"PYTHONPATH": str(ROOT), **library_defaults()}
            told = json_in(hosts.run("host1", command, timeout=LIMIT, env=environment).checked().stdout)
            found[groups].append((told["wall"]["ours"]["ms"], told["cpu"]["ours"]["ms"]))
            print(f"{rate}, groups {groups}: {told['wall']['ours']['ms']} ms", file=sys.stderr, flush=True)
    rows = []
    for groups, pairs in found.items():
        columns = [
            f"{statistics.median(each):.0f} ({', '.join(f'{value:.0f}' for value in each)})"
            for each in zip(*pairs, strict=True)
        ]
        rows.append((rate, groups, *columns))
    return rows


if __name__ == "__main__":
    main()
