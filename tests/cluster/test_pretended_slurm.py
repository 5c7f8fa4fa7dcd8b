"""The pretended Slurm does what Slurm does, and Horovod runs in it with stock tools: mpirun, and srun without MPI."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest
from pretended_hosts import job_environment
from pretended_slurm import pretended_slurm

pytestmark = pytest.mark.timeout(400)


def ranks(output: str) -> list[dict]:
    """The JSON lines that the programs print, by rank."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda line: line["rank"])


@pytest.fixture(autouse=True)
def idle_again(slurm):
    """No test leaves a job or a process behind."""
    yield
    slurm.wait_until_idle(30)
    assert slurm.hosts.leftovers() == []


def test_nodes_are_idle(slurm):
    lines = slurm.run(["sinfo", "--noheader", "--Node", "--format=%N %T %c"], 20).checked().stdout
    assert lines.splitlines() == ["node1 idle 4", "node2 idle 4"]


def test_srun_runs_tasks_on_both_nodes(slurm):
    show = 'echo "$(hostname) $SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURM_STEP_TASKS_PER_NODE"'
    words = ["srun", "-N2", "-n4", "--ntasks-per-node=2", "sh", "-c", show]
    done = slurm.run(words, 30).checked()
    expected = ["node1 0/4 0 2(x2)", "node1 1/4 1 2(x2)", "node2 2/4 0 2(x2)", "node2 3/4 1 2(x2)"]
    assert sorted(done.stdout.splitlines()) == expected


def test_four_tasks_on_two_nodes_may_be_three_and_one(slurm):
    """What ``-N2 -n4`` alone gives: a program that expects equal parts is wrong."""
    done = slurm.run(["srun", "-N2", "-n4", "printenv", "SLURM_STEP_TASKS_PER_NODE"], 30).checked()
    assert done.stdout.splitlines() == ["3,1"] * 4


def test_sbatch_waits_and_has_the_status_of_the_job(slurm, tmp_path):
    script = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1\nsrun hostname\nexit 3\n"
    status, output = slurm.sbatch(script, tmp_path, timeout=60)
    assert status == "3:0"
    assert sorted(output.split()) == ["node1", "node2"]


def test_salloc_runs_its_command_once(slurm):
    """The trap for plain ``python`` inside an allocation: two tasks asked for, one process started."""
    done = slurm.run(["salloc", "-N1", "-n2", "sh", "-c", "echo $SLURM_NTASKS ${SLURM_PROCID-unset}"], 30).checked()
    assert done.stdout.split() == ["2", "unset"]


def test_a_command_over_its_limit_is_killed_with_its_tasks(slurm):
    with pytest.raises(AssertionError, match=r"over 3 s: srun"):
        slurm.run(["srun", "-N2", "-n2", "sleep", "1000"], timeout=3)
    slurm.cancel_all()


def test_mpirun_inside_salloc_starts_as_many_ranks_as_tasks(slurm, programs):
    job = ["mpirun", "--allow-run-as-root", sys.executable, programs / "meet_ranks.py"]
    found = ranks(slurm.run(["salloc", "-N1", "-n2", *job], 200).checked().stdout)
    assert [(r["rank"], r["local_rank"], r["size"], r["controller"]) for r in found] == [
        (0, 0, 2, "mpi"),
        (1, 1, 2, "mpi"),
    ]


def test_mpirun_inside_sbatch_uses_all_nodes(slurm, programs, tmp_path):
    prefix = Path(sys.executable).parent.parent
    script = (
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2\n"
        f"mpirun --allow-run-as-root --prefix {prefix} {sys.executable} {programs}/meet_ranks.py\n"
    )
    status, output = slurm.sbatch(script, tmp_path, timeout=200, env=job_environment({}))
    assert status == "0:0", output
    places = [(r["rank"], r["host"], r["local_rank"], r["cross_rank"]) for r in ranks(output)]
    assert places == [(0, "node1", 0, 0), (1, "node1", 1, 0), (2, "node2", 0, 1), (3, "node2", 1, 1)]


def test_srun_without_mpi_meets_over_gloo_and_sums(slurm, programs):
    task = [sys.executable, programs / "under_srun.py", programs / "sum_ranks.py"]
    done = slurm.run(["srun", "-N2", "-n4", "--ntasks-per-node=2", *task], 350).checked()
    found = ranks(done.stdout)
    places = [(r["rank"], r["host"], r["local_rank"], r["cross_rank"], r["sum"]) for r in found]
    assert places == [(0, "node1", 0, 0, 6), (1, "node1", 1, 0, 6), (2, "node2", 0, 1, 6), (3, "node2", 1, 1, 6)]
    assert {r["controller"] for r in found} == {"gloo"}


def test_srun_without_mpi_with_unequal_nodes(slurm, programs):
    task = [sys.executable, programs / "under_srun.py", programs / "meet_ranks.py"]
    found = ranks(slurm.run(["srun", "-N2", "-n4", *task], 200).checked().stdout)
    assert [(r["host"], r["local_rank"], r["local_size"]) for r in found] == [
        ("node1", 0, 3),
        ("node1", 1, 3),
        ("node1", 2, 3),
        ("node2", 0, 1),
    ]
    assert [(r["cross_rank"], r["cross_size"]) for r in found] == [(0, 2), (0, 1), (0, 1), (1, 2)]


def test_two_clusters_at_once_and_nothing_left(slurm, tmp_path):
    """A second cluster with the same names and ports beside the first; then no process of it is left."""
    with pretended_slurm({"node1": 2, "node2": 2}, tmp_path) as other:
        mine = [process for machine in other.hosts._machines.values() for process in machine.processes()]
        assert len(mine) >= 7  # two each of sshd, munged and slurmd, and slurmctld
        assert other.run(["srun", "-N2", "-n2", "hostname"], 30).checked().stdout.split().count("node2") == 1
        assert slurm.run(["srun", "-N2", "-n2", "hostname"], 30).checked().stdout.split().count("node2") == 1
    assert psutil.wait_procs(mine, timeout=5)[1] == []
