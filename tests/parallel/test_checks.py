"""Run the folder ``checks`` on every rank of real jobs: two and four ranks, Gloo and MPI, and a world of one."""

import re
import sys
from pathlib import Path

import pytest

from tests.parallel.ranks import run

CHECKS = Path(__file__).parent / "checks"
# Every check runs alone and on two ranks over Gloo, nearly every one over MPI; four ranks, and horovodrun in its MPI
# mode, run those in which the number of ranks or the launcher can matter. Two cores start all of them.
SOME = (
    "(equals_plain and adam) or sparse or compression or whole or same_start or weighted or collectives or process_set"
)
JOBS = [
    ("alone", 1, ""),
    ("gloo", 2, ""),
    ("mpirun", 2, "not combinations"),
    ("mpi", 2, SOME),
    ("gloo", 4, SOME),
    ("mpirun", 4, SOME),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("launcher, np, chosen", JOBS, ids=[f"{launcher}-{np}" for launcher, np, _ in JOBS])
def test_checks(launcher, np, chosen):
    # -x: when a check fails on one rank alone, that rank must end, or the others would wait for it.
    pytest_on_each_rank = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=short"]
    files = [str(path) for path in sorted(CHECKS.glob("check_*.py"))]
    ended = run([*pytest_on_each_rank, *files, "-k", chosen], launcher=launcher, np=np, timeout=850)
    ended.assert_ok()
    reports = re.findall(rf"rank (\d+) of {np}: (\d+) checks, status 0", ended.output)
    assert sorted(int(rank) for rank, _ in reports) == list(range(np)), ended.output[-3000:]
    assert len({count for _, count in reports}) == 1, "ranks ran different checks"
