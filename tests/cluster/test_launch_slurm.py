"""Slurm: srun without MPI, launch inside an allocation, sbatch with mpirun, and plain python that must not wait."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pretended_hosts import job_environment

from hvd_mnist.cluster.hostfile import parse_hosts
from hvd_mnist.cluster.placement import place
from hvd_mnist.launch.job import Job
from hvd_mnist.launch.render import render

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).parents[2]
HVD_MNIST = [sys.executable, "-m", "hvd_mnist"]
LAUNCH = [*HVD_MNIST, "launch"]
TRAIN = ["train", "--data", "sample", "--model", "mlp", "--batch-size", "16", "--steps", "3", "--run-dir"]
SAY = 'echo "task $SLURM_PROCID on $(hostname)"'


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path, slurm):
    """The package under test on every node, the data of this machine; afterwards no job and no process is left."""
    from hvd_mnist.data import sources

    sources.load("sample")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)  # where launch writes runs/
    monkeypatch.setenv("HVD_MNIST_CACHE", str(sources.cache_folder().parent))
    yield
    slurm.wait_until_idle(30)
    assert slurm.hosts.leftovers() == []


def trained(run: Path) -> tuple:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["proof"]["held"]
    return summary["world_size"], summary["backend"], [rank["host"] for rank in summary["ranks"]]


def test_srun_trains_without_mpi(slurm, tmp_path):
    """srun -N2 -n3 hvd-mnist train ...: two tasks on one node and one on the other."""
    slurm.run(["srun", "-N2", "-n3", *HVD_MNIST, *TRAIN, tmp_path / "run"], 300).checked()
    assert trained(tmp_path / "run") == (3, "Gloo", ["node1", "node1", "node2"])


def test_the_rendered_job_file_trains(slurm, tmp_path):
    """sbatch of `launch --to slurm`, which starts srun by launch inside the allocation."""
    job = Job(words=(*TRAIN, str(tmp_path / "run")), placement=place(parse_hosts("a:1,b:1")))
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "activate").write_text(f'export PATH="{bin_folder}:$PATH"\n')
    (bin_folder / "hvd-mnist").write_text(f'#!/bin/sh\nexec {" ".join(HVD_MNIST)} "$@"\n')
    (bin_folder / "hvd-mnist").chmod(0o755)
    environ = job_environment({"VENV": str(tmp_path / "venv")})
    status, output = slurm.sbatch(render(job, "slurm").replace("%x-%j.log", "job.out"), tmp_path, 300, env=environ)
    assert status == "0:0", output
    assert trained(tmp_path / "run") == (2, "Gloo", ["node1", "node2"])
    assert "replicas proven equal" in (tmp_path / "run" / "logs" / "rank-0.out.log").read_text()


def test_sbatch_with_mpirun_trains(slurm, tmp_path):
    words = [*LAUNCH, "--launcher", "mpirun", "--", *TRAIN, str(tmp_path / "run")]
    script = f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1\n{' '.join(words)}\n"
    status, output = slurm.sbatch(script, tmp_path, 300, env=job_environment({}))
    assert status == "0:0", output
    assert trained(tmp_path / "run") == (2, "MPI", ["node1", "node2"])


def test_plain_python_inside_salloc_is_one_process(slurm, tmp_path):
    """Nothing has started the other task: one process trains, and waits for nobody."""
    slurm.run(["salloc", "-N1", "-n2", *HVD_MNIST, *TRAIN, tmp_path / "run"], 200).checked()
    assert trained(tmp_path / "run")[0] == 1
    told = slurm.run(["salloc", "-N1", "-n2", *HVD_MNIST, "whoami"], 60).checked().stdout
    assert "rank 0 of 1" in told and "nothing has started the others" in told


def test_launch_in_an_allocation_uses_srun(slurm, tmp_path):
    words = ["salloc", "-N2", "-n4", *LAUNCH, "--prefix-output", "--log-dir", tmp_path, "--", "sh", "-c", SAY]
    done = slurm.run(words, 60).checked()
    expected = [f"[{task}] task {task} on {'node2' if task == 3 else 'node1'}" for task in range(4)]
    assert sorted(done.stdout.splitlines()) == expected


def test_the_status_of_a_task_is_that_of_launch(slurm, tmp_path):
    program = f"{SAY}; [ $SLURM_PROCID = 1 ] && kill -9 $$; sleep 1000"
    words = ["salloc", "-N2", "-n2", "--ntasks-per-node=1", *LAUNCH, "--log-dir", tmp_path, "--", "sh", "-c", program]
    done = slurm.run(words, 60)
    assert done.returncode == 137
    assert "rank 1 on node2 was ended by signal 9" in done.stderr


def test_srun_outside_an_allocation_says_what_to_type(slurm):
    done = slurm.run([*LAUNCH, "--launcher", "srun", "-np", "4", "-H", "node1:4", "--", "true"], 60)
    assert done.returncode == 6 and "salloc -n 4" in done.stderr
