"""``hvd-mnist bench compare`` on four pretended hosts whose links are limited: the law in bytes and in seconds.

    python -m tests.cluster.check_compare                              as root; some 10 minutes on 2 cores
    python -m tests.cluster.check_compare --rate 100 --systems single,ps-sync,ring --steps 10

One ps (or the client) on host1, three hosts that compute; all four are this machine, whose cores they share. Words
after ``--`` go to ``bench compare`` as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from pretended_hosts import missing_for_hosts, pretended_hosts

from hvd_mnist.data import sources

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 3600  # seconds


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.check_compare", description=__doc__.split("\n")[0])
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s of each host's link, each way; default 200")
    parser.add_argument("--systems", default="single,in-graph,ps-sync,ps-async,ring")
    parser.add_argument("--folder", help="where runs and plots go; default a new one")
    parser.add_argument("more", nargs="*", help="words for bench compare")
    asked = parser.parse_args(argv)
    if missing := missing_for_hosts():
        parser.error(missing)
    sources.load("sample")  # once, before hosts that have no network
    cache = {"PYTHONPATH": str(ROOT), "HVD_MNIST_CACHE": str(sources.cache_folder().parent)}
    folder = Path(asked.folder or tempfile.mkdtemp(prefix="check-compare-")) / "compare"
    names = [f"host{number}" for number in range(1, 5)]
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-")))
        hosts = stack.enter_context(pretended_hosts(dict.fromkeys(names, 1), place))
        for name in names:
            stack.enter_context(hosts.slow_link(name, f"{asked.rate}mbit"))
        words = ["--systems", asked.systems, "-np", "3", "-H", ",".join(names), "--link", str(asked.rate)]
        work = ["--data", "sample", "--model", "cnn", "--global-batch", "96", "--warm-up", "2", "--steps", "10"]
        done = hosts.run(
            "host1",
            [sys.executable, "-m", "hvd_mnist", "bench", "compare", *words, *work, "--repeats", "3", *asked.more,
             "--folder", str(folder)],
            timeout=LIMIT, env=cache,
        )  # fmt: skip
    print(done.stdout, done.stderr, sep="\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
