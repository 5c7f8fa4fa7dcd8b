"""What launch would run, and why: golden text for every launcher and MPI, and each refusal in one line.

A golden file that changes on purpose is accepted with: HVD_MNIST_ACCEPT=1 python -m pytest tests/test_launch_plan.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_mnist.cluster.hostfile import filter_hosts, parse_hostfile, parse_hosts, parse_slurm
from hvd_mnist.cluster.placement import place
from hvd_mnist.errors import EnvironmentUnfit, LaunchError, UsageError
from hvd_mnist.launch import show, ssh
from hvd_mnist.launch.job import Elastic, Job, Mpi, Route, Site, Ssh
from hvd_mnist.launch.plan import choose_launcher, plan

GOLDEN = Path(__file__).parent / "golden" / "launch"
ROOT = Path(__file__).parents[1]
ENVIRON = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/ann",
    "LANG": "en_US.UTF-8",
    "NCCL_DEBUG": "INFO",
    "AWS_SECRET_ACCESS_KEY": "do not tell",
    "EDITOR": "vi",
}
SLURM = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_CPUS_PER_TASK": "8",
}
MPIS = {
    "openmpi-4": Mpi("/opt/ompi/bin/mpirun", "openmpi-4", "4.1.8"),
    "openmpi-5": Mpi("/opt/ompi/bin/mpirun", "openmpi-5", "5.0.11"),
    "mpich": Mpi("/opt/mpich/bin/mpirun", "mpich", "5.0.2"),
    "intel": Mpi("/opt/impi/bin/mpirun", "intel", "2021.18.1"),
}
ROUTE = Route("eth0", "10.0.0.0/24", "the route to h2 (10.0.0.2)")


def a_site(mpi="openmpi-4", **over) -> Site:
    site = Site(
        python="/venv/bin/python",
        cwd="/home/ann/mnist",
        environ=ENVIRON,
        local=frozenset({"h1", "localhost"}),
        horovodrun="/venv/bin/horovodrun",
        srun="/usr/bin/srun",
        mpi=lambda: MPIS[mpi],
        route=lambda: ROUTE,
    )
    return replace(site, **over)


def a_job(hosts="h1:4,h2:4", np=None, spread=False, **over) -> Job:
    hosts = parse_hosts(hosts) if isinstance(hosts, str) else hosts
    words = ("/venv/bin/python", "-m", "hvd_mnist", "train", "--epochs", "3")
    return Job(**{"words": words, "placement": place(hosts, np, spread), "notes": hosts.notes, **over})


ELASTIC = Elastic("/home/ann/my hosts.sh", start=2, least=1, most=4, reset_limit=10, cooldown=(10, 300))
IN_SLURM = {"environ": {**ENVIRON, **SLURM}, "in_slurm": True, "local": frozenset()}
HALF = filter_hosts(parse_hosts("h1:4,h2:4"), exclude="h2:0,1")
CASES = {
    "one-rank-here": (a_job("localhost:1"), a_site()),
    "horovodrun-here": (a_job("localhost:2"), a_site()),
    "horovodrun-two-hosts": (a_job(), a_site()),
    "horovodrun-fewer-ranks-than-slots": (a_job(np=2), a_site()),
    "horovodrun-spread": (a_job(np=6, spread=True), a_site()),
    "horovodrun-host-named-twice": (a_job("h1:2,h2:4,h1:2"), a_site()),
    "horovodrun-some-gpus": (a_job(HALF), a_site()),
    "horovodrun-user-port-key": (a_job("h1:1,ann@h2:1", ssh=Ssh(None, 2222, "/home/ann/my key")), a_site()),
    "horovodrun-secret": (a_job(exports=("AWS_SECRET_ACCESS_KEY", "MODE=a b")), a_site()),
    "horovodrun-folder-with-a-space": (a_job(), a_site(cwd="/home/ann/my mnist; x")),
    "horovodrun-elastic": (a_job("h1:1,h2:1", elastic=ELASTIC), a_site()),
    "horovodrun-elastic-here": (a_job("localhost:2", elastic=replace(ELASTIC, most=None)), a_site(route=None)),
    "horovodrun-mpi": (a_job(backend="mpi"), a_site(is_root=True)),
    "openmpi-4-here": (a_job("localhost:2", launcher="mpirun"), a_site()),
    "openmpi-4-root": (a_job(launcher="mpirun"), a_site(is_root=True)),
    "openmpi-4-user-port": (a_job("h1:1,ann@h2:1", launcher="mpirun", ssh=Ssh(None, 2222)), a_site()),
    "openmpi-5": (a_job(launcher="mpirun", np=6), a_site("openmpi-5", is_root=True)),
    "mpich": (a_job(launcher="mpirun", np=6), a_site("mpich")),
    "intel": (a_job(launcher="mpirun"), a_site("intel")),
    "no-subnet-shared": (a_job(launcher="mpirun"), a_site(route=lambda: replace(ROUTE, subnet=None))),
    "srun": (a_job(parse_slurm("node[1-2]", "2(x2)"), hosts_from="slurm"), a_site(**IN_SLURM)),
    "srun-unequal-allocation": (a_job(parse_slurm("node[1-2]", "3,1"), hosts_from="slurm"), a_site(**IN_SLURM)),
    "mpirun-in-slurm": (
        a_job(parse_slurm("node[1-2]", "2(x2)"), hosts_from="slurm", launcher="mpirun"),
        a_site(**IN_SLURM),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_dry_run_is_as_recorded(name, monkeypatch):
    job, site = CASES[name]
    monkeypatch.setattr(ssh, "WRAPPER", Path("/venv/hvd_mnist/launch/checked_ssh/ssh"))
    text = show.as_text(plan(job, site))
    path = GOLDEN / f"{name}.sh"
    if os.environ.get("HVD_MNIST_ACCEPT"):
        path.write_text(text)
    assert text == path.read_text(), f"accept with HVD_MNIST_ACCEPT=1, or undo the change: {path.name}"
    assert "do not tell" not in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.sh")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_json_says_the_same_as_the_text(name):
    command = plan(*CASES[name])
    told = json.loads(show.as_json(command))
    assert told["argv"] == list(command.argv) and told["shell"] == show.as_shell(command)
    assert [row["rank"] for row in told["placement"]] == list(range(told["size"]))
    assert "do not tell" not in json.dumps(told)


def option(command, name):
    return command.argv[command.argv.index(name) + 1]


@pytest.mark.parametrize(
    ("hosts", "np", "expected"),
    [
        ("a:4,b:4", 2, "a:2"),
        ("a:4,b:4", 5, "a:4,b:1"),
        ("a:2,a:2", None, "a:4"),
        ("a:2,b:1,a:2", None, "a:4,b:1"),
    ],
)
def test_hosts_given_to_a_launcher_hold_exactly_the_ranks(hosts, np, expected):
    for launcher in ("horovodrun", "mpirun"):
        job = a_job(hosts, np, launcher=launcher)
        command = plan(job, a_site(local=frozenset()))
        assert option(command, "-H") == expected
        assert option(command, "-np") == str(job.size)


def test_comments_of_a_host_file_do_not_reach_horovodrun():
    hosts = parse_hostfile("# ours\n\nh1 slots=2 # a\r\nh2 slots=1\n", "hosts")
    assert option(plan(a_job(hosts), a_site()), "-H") == "h1:2,h2:1"


@pytest.mark.parametrize(
    ("job", "site", "expected"),
    [
        (a_job("localhost:1"), a_site(), "alone"),
        (a_job("h2:1"), a_site(), "horovodrun"),
        (a_job("localhost:2"), a_site(), "horovodrun"),
        (a_job("localhost:2", launcher="local"), a_site(horovodrun=None), "mpirun"),
        (a_job(backend="mpi"), a_site(), "horovodrun"),
        (a_job(hosts_from="slurm"), a_site(**IN_SLURM), "srun"),
        (a_job(hosts_from="slurm"), a_site(**{**IN_SLURM, "srun": None}), "horovodrun"),
        (a_job(), a_site(**IN_SLURM), "horovodrun"),  # hosts that were typed need not be the allocation's
    ],
)
def test_choice_of_the_launcher(job, site, expected):
    launcher, because = choose_launcher(job, site)
    assert launcher == expected and because


@pytest.mark.parametrize(
    ("job", "site", "kind", "found", "hint"),
    [
        (a_job(words=()), a_site(), UsageError, "no program", "-- train"),
        (a_job(words=("h2:4", "train")), a_site(), UsageError, "'h2:4' looks like a host", "commas"),
        (a_job(words=("my.py",)), a_site(), UsageError, "my.py is no program", "python my.py"),
        (a_job("h1:2", launcher="srun"), a_site(), LaunchError, "outside a Slurm allocation", "salloc -n 2"),
        (a_job(launcher="local"), a_site(), LaunchError, "h2 is another host", "leave out"),
        (a_job(launcher="horovodrun"), a_site(horovodrun=None), EnvironmentUnfit, "no horovodrun", "build-horovod"),
        (a_job("h1:1,[fd00::1]:1"), a_site(), LaunchError, "fd00::1", "/etc/hosts"),
        (a_job("h1:1,[fd00::1]:1", launcher="mpirun"), a_site(), LaunchError, "fd00::1", "/etc/hosts"),
        (a_job("ann@h2:1,bob@h3:1"), a_site(), LaunchError, "h2: ann, h3: bob", "~/.ssh/config"),
        (a_job(launcher="srun", elastic=ELASTIC), a_site(), LaunchError, "horovodrun over Gloo", "--max-restarts"),
        (a_job(backend="mpi", elastic=ELASTIC), a_site(), LaunchError, "--backend mpi", "--max-restarts"),
        (a_job(backend="mpi"), a_site("openmpi-5"), LaunchError, "openmpi-5 5.0.11", "--launcher mpirun"),
        (a_job(np=5, launcher="mpirun"), a_site("intel"), LaunchError, "h1: 4, h2: 1", "--spread"),
        (a_job(launcher="mpirun", prefix="/my mpi"), a_site(), LaunchError, "space", "horovodrun"),
        (a_job(exports=("NOT_SET",)), a_site(), UsageError, "no such variable", "-x NOT_SET=VALUE"),
        (
            a_job(parse_slurm("node[1-2]", "4(x2)"), np=5, hosts_from="slurm", launcher="srun"),
            a_site(**IN_SLURM),
            LaunchError,
            "node1: 4, node2: 1",
            "--spread",
        ),
    ],
)
def test_what_cannot_be_run_is_one_line(job, site, kind, found, hint):
    with pytest.raises(kind) as error:
        plan(job, site)
    assert found in error.value.message and hint in error.value.hint
    assert "\n" not in str(error.value)


def test_routes_are_not_asked_for_where_nobody_needs_them():
    def no_route():
        raise AssertionError("asked for a route")

    plan(a_job("localhost:2"), a_site(route=no_route))
    plan(a_job(parse_slurm("node[1-2]", "1(x2)"), hosts_from="slurm"), a_site(**IN_SLURM, route=no_route))


def test_placement_of_many_ranks_is_shown_by_host():
    text = show.as_text(plan(a_job("h[1-40]:4"), a_site()))
    assert "# h1    0-3      4 of 4" in text and len(text.splitlines()) < 70


# The command line.

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras", "horovod", "numpy", "rich", "mpi4py", "jinja2"):
            raise AssertionError(name + " was imported")
sys.meta_path.insert(0, Block())
from hvd_mnist.cli import main
main()
"""


def launch(*words, code=None, **environ):
    start = ["-c", code] if code else ["-m", "hvd_mnist"]
    return subprocess.run(
        [sys.executable, *start, "launch", *words],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
    )


@pytest.mark.parametrize("how", [("--dry-run",), ("--dry-run", "--json"), ("--help",)])
def test_dry_run_imports_nothing_heavy(how):
    done = launch("-np", "2", "-H", "localhost:2", *how, "--", "train", code=BLOCKED)
    assert done.returncode == 0, done.stderr
    assert "horovodrun" in done.stdout or "mpirun" in done.stdout


def test_train_is_run_by_this_python():
    done = launch("-np", "1", "-H", "localhost", "--dry-run", "--", "train", "--epochs", "7")
    assert done.stdout.rstrip().endswith(f"{sys.executable} -m hvd_mnist train --epochs 7")


@pytest.mark.parametrize(
    ("words", "status", "found"),
    [
        (["-np", "4", "-H", "a:1,b:1", "--", "train"], 6, "-np 4 needs 4 slots, but a:1,b:1 has 2"),
        (["-H", "a:4", "b:4", "--", "train"], 2, "'b:4' looks like a host"),
        (["-H", "a:1", "--hostfile", "f", "--", "train"], 2, "exclude one another"),
        (["--hostfile", "/none", "--", "train"], 6, "/none: No such file"),
        (["-H", "a:", "--", "train"], 6, "-H:1:3: slots: nothing"),
        (["--json", "--", "train"], 2, "--json without --dry-run"),
        (["--min-np", "1", "--", "train"], 2, "--min-np without --host-discovery-script"),
        (["--max-restarts", "1", "-np", "1", "--", "train"], 2, "--max-restarts without --run-dir"),
        (["--host-discovery-script", "/none", "--", "train"], 2, "/none: no program that can be run"),
        (["--host-discovery-script", "/bin/false", "--", "x"], 6, "/bin/false ended with status 1"),
        (["--host-discovery-script", "/bin/true", "--", "x"], 6, "/bin/true names no host"),
        (["--host-discovery-script", "/bin/true", "--", "train"], 2, "-- train --elastic"),
        (["--host-discovery-script", "/bin/true", "--min-np", "3", "-np", "2", "--", "x"], 2, "-np 2 does not lie"),
        (["--host-discovery-script", "/bin/true", "--cooldown", "9", "3", "--", "x"], 2, "expected LOW HIGH"),
        (["--network-interface", "nope0", "-H", "203.0.113.7:1", "--", "train"], 6, "nope0: this machine has"),
    ],
)
def test_bad_input_is_one_line_and_a_status(words, status, found):
    done = launch(*words)
    assert done.returncode == status and found in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
