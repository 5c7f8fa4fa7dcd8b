"""Fixtures of tests on several hosts. Where hosts cannot be pretended a test is skipped, with what to install."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

# Tests are no package: this folder is put on the path for pretended_hosts and pretended_slurm.
sys.path.insert(0, str(Path(__file__).parent))

from pretended_hosts import PretendedHosts, missing_for_hosts, pretended_hosts
from pretended_slurm import PretendedSlurm, missing_for_slurm, pretended_slurm


@pytest.fixture(scope="session")
def programs() -> Path:
    """Folder of the small programs that tests launch."""
    return Path(__file__).parent / "programs"


@pytest.fixture
def make_hosts(tmp_path: Path) -> Iterator[Callable[..., PretendedHosts]]:
    """``make_hosts({"host1": 2, "host2": 2})``: hosts that live until the test's end and must be idle by then."""
    if reason := missing_for_hosts():
        pytest.skip(reason)
    made: list[PretendedHosts] = []
    with contextlib.ExitStack() as stack:

        def make(slots: Mapping[str, int], networks: Mapping[str, str] | None = None) -> PretendedHosts:
            made.append(stack.enter_context(pretended_hosts(slots, tmp_path / f"cluster-{len(made)}", networks)))
            return made[-1]

        yield make
        left = [line for hosts in made for line in hosts.leftovers()]
        assert not left, f"the test's jobs left processes behind: {left}"


@pytest.fixture
def two_hosts(make_hosts) -> PretendedHosts:
    """host1 and host2, two slots each."""
    return make_hosts({"host1": 2, "host2": 2})


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PretendedSlurm]:
    """Slurm on node1 and node2, four CPUs each; shared by the tests of one file."""
    if reason := missing_for_hosts() or missing_for_slurm():
        pytest.skip(reason)
    with pretended_slurm({"node1": 4, "node2": 4}, tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
