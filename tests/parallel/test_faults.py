"""A small part of the fault matrix: each kind, each moment and each launcher once, and four ranks.

The whole of it is a command, ``python -m tests.parallel.fault_matrix``; docs/faults.md has its result.
"""

import pytest

from hvd_mnist.faults import KINDS, MOMENTS, WITHOUT_SENSE
from tests.parallel.fault_matrix import LAUNCHERS, Cell, Matrix, cells, shown

pytestmark = pytest.mark.timeout(900)  # two or three jobs each, on a machine that may be busy

CELLS = [
    Cell("raise", "step", "gloo", 2),
    Cell("kill", "save", "mpirun", 2),
    Cell("hang", "step", "gloo", 2),
    Cell("exit", "evaluate", "mpirun", 2),
    Cell("segv", "step", "mpirun", 2),
    Cell("slow", "step", "mpirun", 2),
    Cell("nan", "step", "mpirun", 2),
    Cell("diverge", "save", "mpirun", 2),
    Cell("disk-full", "save", "gloo", 2),
    Cell("skip-collective", "step", "mpirun", 2),
    Cell("data-error", "start", "mpi", 2),
    Cell("kill", "evaluate", "mpirun", 4),
]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    return Matrix(tmp_path_factory.mktemp("faults"))


def test_the_cells_cover_the_matrix():
    assert {cell.kind for cell in CELLS} == set(KINDS)
    assert {cell.moment for cell in CELLS} == set(MOMENTS)
    assert {cell.launcher for cell in CELLS} == set(LAUNCHERS)
    assert {cell.np for cell in CELLS} == {2, 4}
    whole = cells(KINDS, MOMENTS, LAUNCHERS, (2, 4))
    assert set(CELLS) <= set(whole)
    assert len(whole) == (len(KINDS) * len(MOMENTS) - len(WITHOUT_SENSE)) * len(LAUNCHERS) * 2


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_the_job_ends_says_why_and_goes_on(cell, matrix):
    outcome = matrix.run(cell)
    print(shown(outcome))
    assert not outcome.wrong, f"{outcome.wrong}\n{outcome.output[-5000:]}"
