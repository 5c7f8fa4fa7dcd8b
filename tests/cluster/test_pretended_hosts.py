"""The pretended hosts are what they claim to be, come down whatever happens, and stock launchers run on them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pretended_hosts import missing_for_hosts, pretended_hosts
from pretended_machine import TimeLimit

pytestmark = pytest.mark.timeout(400)
# TensorFlow's import takes longer on one rank than on another; Horovod's default is 30 s.
PATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "300"}
PREFIX = str(Path(sys.executable).parent.parent)
QUICK = ["-o", "ConnectTimeout=2"]


def ranks(output: str) -> list[dict]:
    """The JSON lines that the programs print, by rank; launchers put "[rank]<stdout>:" before them."""
    lines = [json.loads(line[line.index("{") :]) for line in output.splitlines() if '"rank"' in line]
    return sorted(lines, key=lambda line: line["rank"])


def places(output: str) -> list[tuple]:
    return [(r["rank"], r["size"], r["host"], r["local_rank"], r["local_size"], r["cross_rank"]) for r in ranks(output)]


def by_blocks(hosts: dict[str, int]) -> list[tuple]:
    """The right answer of ``places`` where hosts are filled in order."""
    expected = []
    for cross_rank, (host, slots) in enumerate(hosts.items()):
        for local_rank in range(slots):
            expected.append((len(expected), sum(hosts.values()), host, local_rank, slots, cross_rank))
    return expected


def machine_state() -> dict[str, object]:
    """What a careless fixture would leave on the machine itself."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {
        "interfaces": [line.split(": ")[1] for line in links],
        "mounts": Path("/proc/self/mounts").read_text(),
        "named namespaces": sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else [],
        "names": Path("/etc/hosts").read_text(),
        "host name": os.uname().nodename,
        "ssh": sorted(os.listdir(home)) if (home := Path.home() / ".ssh").is_dir() else [],
    }


# Being hosts.


def test_each_host_has_its_own_name_address_shm_and_processes(two_hosts):
    show = "hostname; ip -br -4 addr show eth0; touch /dev/shm/$(hostname); ls /dev/shm; ls /proc | grep -c '^[0-9]'"
    for number, name in enumerate(two_hosts.names):
        host, address, shm, processes = two_hosts.run(name, ["sh", "-c", show], 20).checked().stdout.splitlines()
        assert (host, shm) == (name, name)
        assert address.split()[2] == f"10.77.0.{11 + number}/24" == f"{two_hosts.address(name)}/24"
        assert int(processes) < 10


@pytest.mark.parametrize("user", ["root", "trainer"])
def test_ssh_to_the_other_host_and_to_itself(two_hosts, user):
    for target in ("host1", "host2"):
        done = two_hosts.run("host1", ["ssh", target, "hostname; whoami; pwd"], 20, user=user).checked()
        assert done.stdout.split() == [target, user, f"/mnt/{user}"]
        assert done.stderr == ""


def test_ssh_has_the_short_path_of_a_session_without_login(two_hosts):
    """Why ``mpirun`` needs --prefix: the environment's bin folder is not on the PATH of a remote command."""
    path = two_hosts.run("host1", ["ssh", "host2", "echo $PATH"], 20).checked().stdout.strip().split(":")
    assert str(Path(sys.executable).parent) not in path


def test_home_and_folders_are_shared(two_hosts, tmp_path):
    write = f"echo here > {tmp_path}/file; echo home > ~/file"
    two_hosts.run("host1", ["ssh", "host2", write], 20).checked()
    assert two_hosts.run("host1", ["sh", "-c", f"cat {tmp_path}/file ~/file"], 20).stdout.split() == ["here", "home"]


def test_run_lays_env_over_that_of_the_tests(two_hosts, monkeypatch):
    monkeypatch.setenv("FROM_TESTS", "1")
    monkeypatch.setenv("TO_REMOVE", "1")
    show = "echo $FROM_TESTS $MORE ${TO_REMOVE-removed}; command -v python3"
    done = two_hosts.run("host1", ["sh", "-c", show], 20, env={"MORE": "2", "TO_REMOVE": None})
    assert done.stdout.splitlines()[0] == "1 2 removed"
    assert Path(done.stdout.splitlines()[1]).parent == Path(sys.executable).parent


def test_status_of_the_command_is_kept(two_hosts):
    assert two_hosts.run("host1", ["sh", "-c", "exit 7"], 20).returncode == 7
    assert two_hosts.run("host1", ["sh", "-c", "kill -9 $$"], 20).returncode == -9


def test_two_clusters_with_the_same_names_do_not_meet(make_hosts):
    one, two = make_hosts({"host1": 1, "host2": 1}), make_hosts({"host1": 1, "host2": 1})
    for number, hosts in enumerate((one, two)):
        hosts.run("host1", ["ssh", "host2", f"echo {number} > /dev/shm/number"], 20).checked()
    for number, hosts in enumerate((one, two)):
        assert hosts.run("host2", ["cat", "/dev/shm/number"], 20).stdout == f"{number}\n"


def test_two_networks(make_hosts):
    hosts = make_hosts({"host1": 1, "host2": 1}, {"eth0": "10.77.0", "ib0": "10.78.0"})
    assert hosts.address("host2", "ib0") == "10.78.0.12"
    done = hosts.run("host1", ["ssh", "-o", "HostKeyAlias=host2", "10.78.0.12", "hostname; echo $SSH_CONNECTION"], 20)
    assert done.checked().stdout.split()[:2] == ["host2", "10.78.0.11"]


# What can go wrong with them.


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("unplugged", r"timed out"),
        ("without_sshd", r"Connection refused"),
        ("refusing_key", r"Permission denied \(publickey\)"),
        ("unknown", r"Host key verification failed"),
        ("other_host_key", r"REMOTE HOST IDENTIFICATION HAS CHANGED"),
    ],
)
def test_a_fault_of_host2_and_its_end(two_hosts, fault, message):
    with getattr(two_hosts, fault)("host2"):
        failed = two_hosts.run("host1", ["ssh", *QUICK, "host2", "true"], 30)
        assert failed.returncode == 255
        assert re.search(message, failed.stderr), failed.stderr
    assert two_hosts.run("host1", ["ssh", *QUICK, "host2", "hostname"], 30).checked().stdout == "host2\n"


def test_a_host_without_power_and_back(two_hosts):
    two_hosts.power_off("host2")
    assert two_hosts.run("host1", ["ssh", *QUICK, "host2", "true"], 30).returncode == 255
    two_hosts.power_on("host2")
    assert two_hosts.run("host1", ["ssh", *QUICK, "host2", "hostname"], 30).checked().stdout == "host2\n"


def test_a_host_dies_in_mid_run(two_hosts):
    alive = ["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2"]
    job = two_hosts.start("host1", ["ssh", *alive, "host2", "echo begun; exec sleep 1000"])
    job.wait_for_output("begun", 20)
    [sleeping] = [process for process in two_hosts.processes("host2") if process.name() == "sleep"]
    two_hosts.power_off("host2")
    assert not sleeping.is_running()
    assert job.wait(30).returncode == 255


def test_a_slow_link_is_slow(two_hosts):
    def seconds() -> float:
        return two_hosts.run("host1", ["ssh", "host2", "head -c 2000000 /dev/urandom"], 60).checked().seconds

    free = seconds()
    with two_hosts.slow_link("host2", "8mbit"):
        slowed = seconds()
    assert slowed > 1.8  # 2 MB at 1 MB/s, less what the bucket holds
    assert free < slowed and seconds() < slowed


def test_a_wrong_interface_on_every_host(two_hosts):
    def addresses(name: str) -> list[str]:
        return two_hosts.run(name, ["ip", "-br", "-4", "addr"], 20).checked().stdout.split()

    with two_hosts.wrong_interface("docker0", "172.17.0.1/16"):
        assert all("172.17.0.1/16" in addresses(name) for name in two_hosts.names)
    assert not any("docker0" in addresses(name) for name in two_hosts.names)


def test_a_host_with_another_tensorflow(two_hosts):
    ask = "import importlib.metadata as m; print(m.version(m.packages_distributions()['tensorflow'][0]))"
    before = two_hosts.run("host1", [sys.executable, "-c", ask], 30).checked().stdout
    with two_hosts.stub_package("host2", "tensorflow", "2.18.0"):
        both = f"{ask}; import tensorflow; print(tensorflow.__version__)"
        over_ssh = two_hosts.run("host1", ["ssh", "host2", f'{sys.executable} -c "{both}"'], 30).checked()
        assert over_ssh.stdout == "2.18.0\n2.18.0\n"
        assert two_hosts.run("host1", [sys.executable, "-c", ask], 30).checked().stdout == before
    assert two_hosts.run("host2", [sys.executable, "-c", ask], 30).checked().stdout == before


# Coming down.


def test_past_its_limit_a_command_is_killed_on_all_hosts(two_hosts):
    began = time.monotonic()
    with pytest.raises(TimeLimit, match=r"over 2 s: sh(.|\n)*said"):
        two_hosts.run("host1", ["sh", "-c", "echo said; setsid sleep 1000 & ssh host2 'sleep 1000; true'"], timeout=2)
    assert time.monotonic() - began < 30
    assert two_hosts.leftovers(grace=0) == []


def test_an_orphan_is_seen(two_hosts):
    two_hosts.run("host1", ["ssh", "host2", "setsid sleep 1000 > /dev/null 2>&1 < /dev/null &"], 20).checked()
    assert two_hosts.leftovers(grace=0.5) == ["host2: sleep 1000"]
    two_hosts.kill_jobs()


def test_ctrl_c_reaches_the_command_and_not_only_nsenter(two_hosts):
    for to_group in (False, True):
        job = two_hosts.start(
            "host1", ["bash", "-c", "trap 'echo caught; exit 3' INT; echo set; while :; do sleep 0.1; done"]
        )
        job.wait_for_output("set", 20)
        job.send_signal(signal.SIGINT, to_group=to_group)
        done = job.wait(20)
        assert (done.returncode, done.stdout) == (3, "set\ncaught\n")


@pytest.mark.parametrize("ending", [None, RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_on_the_machine(tmp_path, ending):
    if reason := missing_for_hosts():
        pytest.skip(reason)
    before = machine_state()
    with contextlib.suppress(*[ending] if ending else []), pretended_hosts({"host1": 1, "host2": 1}, tmp_path) as hosts:
        hosts.start("host1", ["ssh", "host2", "echo begun; sleep 1000"]).wait_for_output("begun", 20)
        mine = [process for machine in hosts._machines.values() for process in machine.processes()]
        mine += [psutil.Process(machine.pid) for machine in hosts._machines.values()]
        assert len(mine) >= 2 + 3 + 3  # listeners; process 1s; ssh, its session and sleep
        assert machine_state() == before
        if ending:
            raise ending
    assert psutil.wait_procs(mine, timeout=5)[1] == []
    assert machine_state() == before


def test_nothing_is_left_when_the_tests_are_killed(tmp_path):
    if reason := missing_for_hosts():
        pytest.skip(reason)
    before = machine_state()
    program = (
        f"import sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from pretended_hosts import pretended_hosts\n"
        f"with pretended_hosts({{'host1': 1, 'host2': 1}}, Path({str(tmp_path)!r})) as hosts:\n"
        "    hosts.start('host1', ['ssh', 'host2', 'echo begun; sleep 1000']).wait_for_output('begun', 20)\n"
        "    every = [m.pid for m in hosts._machines.values()]\n"
        "    every += [p.pid for m in hosts._machines.values() for p in m.processes()]\n"
        "    print(*every, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as tests:
        mine = [psutil.Process(int(pid)) for pid in tests.stdout.readline().split()]
        assert len(mine) >= 8 and all(process.is_running() for process in mine)
        tests.kill()
    assert psutil.wait_procs(mine, timeout=10)[1] == []
    assert machine_state() == before


# Stock launchers.


def test_horovodrun_gloo_sums_over_two_hosts(two_hosts, programs):
    job = ["horovodrun", "--gloo", "-np", "4", "-H", two_hosts.dash_h, sys.executable, programs / "sum_ranks.py"]
    done = two_hosts.run("host1", job, 380, env=PATIENT).checked()
    assert places(done.stdout) == by_blocks(two_hosts.slots)
    assert {(r["sum"], r["controller"]) for r in ranks(done.stdout)} == {(6.0, "gloo")}


def test_horovodrun_mpi_meets_over_two_hosts(two_hosts, programs):
    job = ["horovodrun", "--mpi", f"--mpi-args=--prefix {PREFIX}", "-np", "4", "-H", two_hosts.dash_h]
    done = two_hosts.run("host1", [*job, sys.executable, programs / "meet_ranks.py"], 300).checked()
    assert places(done.stdout) == by_blocks(two_hosts.slots)
    assert {r["controller"] for r in ranks(done.stdout)} == {"mpi"}


def test_mpirun_sums_over_two_hosts(two_hosts, programs):
    job = ["mpirun", "--allow-run-as-root", "--prefix", PREFIX, "-np", "4", "-H", two_hosts.dash_h]
    done = two_hosts.run("host1", [*job, sys.executable, programs / "sum_ranks.py"], 380).checked()
    assert places(done.stdout) == by_blocks(two_hosts.slots)
    assert {(r["sum"], r["controller"]) for r in ranks(done.stdout)} == {(6.0, "mpi")}


def test_mpirun_without_prefix_finds_no_orted(two_hosts, programs):
    job = ["mpirun", "--allow-run-as-root", "-np", "4", "-H", two_hosts.dash_h]
    failed = two_hosts.run("host1", [*job, sys.executable, programs / "meet_ranks.py"], 100)
    assert failed.returncode != 0
    assert "orted: command not found" in failed.stdout + failed.stderr


def test_horovodrun_eight_ranks_on_two_hosts_of_four_slots(make_hosts, programs):
    hosts = make_hosts({"host1": 4, "host2": 4})
    assert hosts.dash_h == "host1:4,host2:4"
    job = ["horovodrun", "--gloo", "-np", "8", "-H", hosts.dash_h, sys.executable, programs / "meet_ranks.py"]
    done = hosts.run("host1", job, 380, env=PATIENT).checked()
    assert places(done.stdout) == by_blocks({"host1": 4, "host2": 4})
