"""Run the folder ``checks`` on every rank of real jobs: two and four ranks, Gloo and MPI, and a world of one."""

import re
import sys
from pathlib import Path

import pytest

from tests.parallel.ranks import LAUNCHERS, run

CHECKS = Path(__file__).parent / "checks"
JOBS = [("alone", 1)] + [(launcher, 2) for launcher in LAUNCHERS] + [("gloo", 4), ("mpirun", 4)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("launcher, np", JOBS, ids=[f"{launcher}-{np}" for launcher, np in JOBS])
def test_checks(launcher, np):
    # -x: when a check fails on one rank alone, that rank must end, or the others would wait for it.
    pytest_on_each_rank = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=short"]
    files = [str(path) for path in sorted(CHECKS.glob("check_*.py"))]
    ended = run([*pytest_on_each_rank, *files], launcher=launcher, np=np, timeout=850)
    ended.assert_ok()
    reports = re.findall(rf"rank (\d+) of {np}: (\d+) checks, status 0", ended.output)
    assert sorted(int(rank) for rank, _ in reports) == list(range(np)), ended.output[-3000:]
    assert len({count for _, count in reports}) == 1, "ranks ran different checks"
