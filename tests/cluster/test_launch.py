"""Launch on two hosts over real ssh: horovodrun as it comes, and hvd-mnist launch with each launcher.

Where a test is about launching, the ranks run a few lines of shell: importing TensorFlow would cost most of its time.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(500)
ROOT = Path(__file__).parents[2]
HVD_MNIST = [sys.executable, "-m", "hvd_mnist"]
LAUNCH = [*HVD_MNIST, "launch"]
SAY = 'echo "rank ${HOROVOD_RANK-}${OMPI_COMM_WORLD_RANK-} on $(hostname) in $(pwd)"'
TRAIN = ["train", "--data", "sample", "--model", "mlp", "--batch-size", "16"]


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """The package under test on every host, and the data that this machine has, since hosts have no network."""
    from hvd_mnist.data import sources

    sources.load("sample")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)  # where launch writes runs/
    monkeypatch.setenv("HVD_MNIST_CACHE", str(sources.cache_folder().parent))


def launch(hosts, *words, timeout=100, **how):
    return hosts.run("host1", [*LAUNCH, *words], timeout, **how)


def assert_trained(run: Path, places: list[tuple[str, int]], steps: int) -> None:
    """All ranks where they belong, by their own logs; replicas proven equal, by the summary."""
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["world_size"], summary["steps"]) == (len(places), steps)
    assert [rank["host"] for rank in summary["ranks"]] == [host for host, _ in places]
    proof = summary["proof"]
    assert proof["held"] and proof["first_step_gradients"] and proof["comparisons"] >= 1
    for rank, (host, local_rank) in enumerate(places):
        log = (run / "logs" / f"rank-{rank}.log").read_text()
        assert f"rank {rank} of {len(places)}, local rank {local_rank}, host {host}," in log


FOUR_AND_FOUR = [(host, local_rank) for host in ("host1", "host2") for local_rank in range(4)]


def test_horovodrun_as_it_comes_trains_on_two_hosts(make_hosts, tmp_path):
    """horovodrun -np 8 -H host1:4,host2:4 hvd-mnist train ...

    Without --gloo, horovodrun takes MPI, whose daemon must be on the PATH of an ssh session: ~/.bashrc puts it there.
    """
    hosts = make_hosts({"host1": 4, "host2": 4})
    prefix = Path(sys.executable).parent.parent
    on_path = f"export PATH={prefix}/bin:$PATH OPAL_PREFIX={prefix}\n"
    (hosts.folder / "homes" / "root" / ".bashrc").write_text(on_path)
    run = ["--steps", "3", "--run-dir", str(tmp_path / "run")]
    patience = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "300"}  # eight imports on few cores end far apart
    words = ["horovodrun", "-np", "8", "-H", "host1:4,host2:4", *HVD_MNIST, *TRAIN, *run]
    hosts.run("host1", words, 400, env=patience).checked()
    assert_trained(tmp_path / "run", FOUR_AND_FOUR, 3)


def test_launch_trains_on_two_hosts(make_hosts, tmp_path):
    """hvd-mnist launch -np 8 -H host1:4,host2:4 -- train ..."""
    hosts = make_hosts({"host1": 4, "host2": 4})
    run = ["--steps", "3", "--run-dir", str(tmp_path / "run")]
    done = launch(hosts, "-np", "8", "-H", "host1:4,host2:4", "--", *TRAIN, *run, timeout=400).checked()
    assert_trained(tmp_path / "run", FOUR_AND_FOUR, 3)
    assert "replicas proven equal" in done.stdout
    assert "replicas proven equal" in (tmp_path / "run" / "logs" / "rank-0.out.log").read_text()


@pytest.mark.parametrize(
    ("launcher", "hosts_text", "places"),
    [
        (["--launcher", "mpirun"], "host1:2,host2:2", [("host1", 0), ("host1", 1), ("host2", 0)]),
        (["--backend", "mpi"], "host1:1,host2:2", [("host1", 0), ("host2", 0)]),
    ],
)
def test_launch_trains_over_mpi(two_hosts, tmp_path, launcher, hosts_text, places):
    run = ["--steps", "3", "--run-dir", str(tmp_path / "run")]
    words = [*launcher, "-np", str(len(places)), "-H", hosts_text, "--", *TRAIN, *run]
    launch(two_hosts, *words, timeout=300).checked()
    assert_trained(tmp_path / "run", places, 3)


def test_horovodrun_gets_what_launch_promises(two_hosts, tmp_path):
    """Fewer ranks than slots, a folder with a space and a ';', no secret on any host, one variable by name."""
    folder = tmp_path / "a b; touch wrong"
    folder.mkdir()
    program = f'{SAY}; env; ps -e -o args | grep -c "[d]o not tell"'
    secrets = {"HF_TOKEN": "do not tell", "CUDA_VISIBLE_DEVICES": "3", "MODE": "x  y"}
    words = ["-np", "2", "-H", "host1:1,host2:2", "-x", "MODE", "--log-dir", str(tmp_path / "logs")]
    done = launch(two_hosts, *words, "--", "sh", "-c", f"{program}; true", cwd=folder, env=secrets).checked()
    for rank in (0, 1):
        said = (tmp_path / "logs" / f"rank-{rank}.out.log").read_text().splitlines()
        assert said[0] == f"rank {rank} on host{rank + 1} in {folder}"
        assert said[-1] == "0" and "do not tell" not in "".join(said)
        assert "MODE=x  y" in said and "NCCL_SOCKET_IFNAME=eth0" in said
        assert not any(line.startswith("CUDA_VISIBLE_DEVICES=") for line in said)
    assert "Traceback" not in done.stderr and not list(tmp_path.rglob("wrong"))


def test_horovodrun_checks_host_keys(two_hosts, tmp_path):
    """Even without launch's own look at the hosts: what --dry-run prints is run by hand."""
    text = launch(two_hosts, "-H", "host1:1,host2:1", "--dry-run", "--", "true").checked().stdout
    (tmp_path / "pasted.sh").write_text(text)
    with two_hosts.unknown("host2"):
        done = two_hosts.run("host1", ["bash", tmp_path / "pasted.sh"], 100)
    assert done.returncode != 0 and "Host key verification failed" in done.stdout + done.stderr


def others_can_use(path: Path) -> bool:
    """Every folder down to ``path`` lets any user through; a Python below /root does not."""
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in path.resolve().parents)


# A user other than root takes part where this Python and this checkout can be read by others.
USERS = ["root"] + (["trainer"] if others_can_use(Path(sys.executable)) and others_can_use(Path(__file__)) else [])


@pytest.mark.parametrize("user", USERS)
def test_mpirun_as_root_and_not(two_hosts, user):
    words = ["-H", "host1:1,host2:2", "--launcher", "mpirun", "--prefix-output", "--", "sh", "-c", SAY]
    home = f"/mnt/{user}"
    shown = launch(two_hosts, "--dry-run", *words, user=user, cwd=home).checked().stdout
    assert ("--allow-run-as-root" in shown) == (user == "root")
    done = launch(two_hosts, *words, user=user, cwd=home).checked()
    expected = [f"[{r}] rank {r} on {host} in {home}" for r, host in enumerate(("host1", "host2", "host2"))]
    assert sorted(done.stdout.splitlines()) == expected


def test_a_host_that_cannot_be_used_is_one_line(two_hosts):
    words = ["-H", two_hosts.dash_h, "--launcher", "mpirun", "--", "sh", "-c", SAY]

    def refused(expected, *more):
        done = launch(two_hosts, *more, *words, timeout=60)
        assert done.returncode == 6, done.stdout + done.stderr
        assert re.fullmatch(f"hvd-mnist: error: [^\n]*{expected}[^\n]*\n", done.stderr), done.stderr

    with two_hosts.refusing_key("host2"):
        refused(r"host2: it refuses the login .*-> ssh-copy-id host2")
    with two_hosts.unknown("host2"):
        refused(r"host2: its host key is not known.*-> ssh host2 once")
    with two_hosts.other_host_key("host2"):
        refused(r"host2: its host key (is not known|has changed)")
    with two_hosts.without_sshd("host2"):
        refused(r"host2: nothing listens on port 22.*Connection refused")
    with two_hosts.unplugged("host2"):
        refused(r"host2: no answer: it is down.*-> ping host2")
    with two_hosts.wrong_interface():
        refused(r"--network-interface docker1: this machine has .*docker0", "--network-interface", "docker1")
    words[1] = "host1:2,host2:1"
    refused(r"-np 4 needs 4 slots, but host1:2,host2:1 has 3", "-np", "4")


def test_docker0_is_never_chosen(two_hosts):
    with two_hosts.wrong_interface():
        words = ["-H", two_hosts.dash_h, "--launcher", "mpirun"]
        told = json.loads(launch(two_hosts, *words, "--dry-run", "--json", "--", "true").checked().stdout)
        assert told["argv"][told["argv"].index("btl_tcp_if_include") + 1] == "10.77.0.0/24"
        done = launch(two_hosts, *words, "--", "sh", "-c", SAY).checked()
        assert done.stdout.count("on host2") == 2
        # Asked for all the same, it fails within a limit, and the network is named as a cause.
        failed = launch(two_hosts, *words, "--network-interface", "docker0", "--", "true", timeout=100)
        assert failed.returncode == 6 and "network" in failed.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_on_any_host(two_hosts, number):
    words = ["-H", two_hosts.dash_h, "--launcher", "mpirun", "--", "sh", "-c", f"{SAY}; sleep 1000"]
    job = two_hosts.start("host1", [*LAUNCH, *words])
    job.wait_for_output("rank 3", 60)
    job.send_signal(number)
    done = job.wait(60)
    assert done.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert two_hosts.leftovers(15) == []


def test_a_killed_launch_leaves_nothing_under_horovodrun(two_hosts):
    job = two_hosts.start("host1", [*LAUNCH, "-H", "host1:1,host2:2", "--", "sh", "-c", f"{SAY}; sleep 1000"])
    job.wait_for_output("rank 2", 100)
    job.send_signal(signal.SIGKILL)
    job.wait(60)
    assert two_hosts.leftovers(20) == []


@pytest.mark.parametrize("launcher", [["--launcher", "mpirun"], []])
def test_the_status_of_a_rank_killed_on_the_other_host(two_hosts, launcher):
    program = f"{SAY}; [ $(hostname) = host2 ] && kill -9 $$; sleep 1000"
    done = launch(two_hosts, *launcher, "-H", "host1:1,host2:1", "--", "sh", "-c", program)
    assert done.returncode == 137
    *tail, last = done.stderr.splitlines()
    assert last.startswith("hvd-mnist: error: rank 1 on host2 was ended by signal 9")
    assert any(line.startswith("[1] ") for line in tail)


def test_a_host_that_dies_in_mid_training(two_hosts, tmp_path):
    run = ["--steps", "1000000", "--run-dir", str(tmp_path / "run")]
    job = two_hosts.start("host1", [*LAUNCH, "-H", "host1:1,host2:1", "--", *TRAIN, *run])
    job.wait_for_output(r"gradients +averaged over 2 ranks", 200)
    two_hosts.power_off("host2")
    done = job.wait(120)
    assert done.returncode == 201, done.stderr
    assert re.search(r"error: lost host2|error: rank 0 on host1 ended with status 201", done.stderr.splitlines()[-1])


def test_a_host_that_goes_silent_is_noticed(two_hosts):
    """No cable, no goodbye: ssh and Open MPI notice by themselves, long before TCP would."""
    words = ["-H", two_hosts.dash_h, "--launcher", "mpirun", "--", "sh", "-c", f"{SAY}; sleep 1000"]
    job = two_hosts.start("host1", [*LAUNCH, *words])
    job.wait_for_output("rank 3", 60)
    with two_hosts.unplugged("host2"):
        done = job.wait(90)
    assert done.returncode == 201 and "lost host2 in mid-job" in done.stderr.splitlines()[-1]
    assert two_hosts.leftovers(60) == []


def test_the_allow_list_keeps_environment_small(two_hosts):
    """What a rank of mpirun sees is the same on both hosts."""
    words = ["-H", "host1:1,host2:1", "--launcher", "mpirun", "--log-dir", "/mnt/root/logs", "--", "env"]
    launch(two_hosts, *words, env={"HF_TOKEN": "do not tell"}).checked()
    seen = []
    for rank in (0, 1):
        text = two_hosts.run("host1", ["cat", f"/mnt/root/logs/rank-{rank}.out.log"], 20).checked().stdout
        assert "do not tell" not in text
        names = {line.partition("=")[0] for line in text.splitlines()}
        seen.append(
            {name for name in names if not name.startswith(("OMPI_", "PMIX_", "ORTE_", "SSH_", "XDG_", "HFI_"))}
        )
    same = seen[0] & seen[1]
    assert {"PATH", "PYTHONPATH", "HVD_MNIST_CACHE"} <= same
    by_session = {"SHLVL", "_", "MAIL", "OLDPWD", "PWD", "MOTD_SHOWN", "HOME", "LOGNAME", "SHELL", "USER"}
    by_prefix = {"OPAL_PREFIX", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}
    assert seen[0] ^ seen[1] <= by_session | by_prefix
