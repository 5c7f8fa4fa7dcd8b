"""The doctor over real ssh: hosts that are well, and every way in which one of them can be ill."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parent.parent.parent
LIMIT = 400  # of a command; machines of tests are slow, and TensorFlow is imported on each host


def doctor(*words: str) -> list[str]:
    return [sys.executable, "-m", "hvd_mnist", "doctor", *words]


def examine(hosts, *words: str) -> tuple[int, dict, str]:
    """(status, the JSON object, standard error) of the doctor on host1."""
    done = hosts.run("host1", doctor("--json", "--timeout", "150", *words), LIMIT, env={"PYTHONPATH": str(ROOT)})
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def states(report: dict, name: str) -> dict[str, str]:
    return {check["host"]: check["state"] for check in report["checks"] if check["name"] == name}


def found(report: dict, name: str, host: str = "") -> str:
    [text] = [check["found"] for check in report["checks"] if (check["name"], check["host"]) == (name, host)]
    return text


def test_two_hosts_that_are_well_and_sum_for_real(two_hosts):
    """With a docker0 on both, of the same address: nothing must go that way."""
    with two_hosts.wrong_interface():
        status, report, errors = examine(two_hosts, "-H", two_hosts.dash_h, "--run")
    failed = [check for check in report["checks"] if check["state"] == "fail"]
    assert (status, failed) == (0, []), errors
    both = {"host1": "ok", "host2": "ok"}
    for name in ("reachable", "tensorflow", "keras", "horovod", "horovod build", "slots", "clock", "ports"):
        assert states(report, name) == both, name
    assert states(report, "allreduce") == both
    assert found(report, "allreduce across hosts").startswith("right sum over 2 ranks")
    assert found(report, "common network") == "10.77.0.0/24 (eth0)"
    assert [each["facts"]["hostname"] for each in report["hosts"]] == ["host1", "host2"]
    assert [each["ranks"] for each in report["hosts"]] == [2, 2]
    assert report["differences"] == []
    assert {states(report, name)[""] for name in ("ranks", "same versions", "same code")} == {"ok"}


def test_every_ill_host_is_named_with_its_illness_while_the_well_one_is_looked_at(make_hosts, tmp_path):
    hosts = make_hosts({f"host{number}": 1 for number in range(1, 9)})
    empty = tmp_path / "empty"
    empty.mkdir()
    with contextlib.ExitStack() as ill:
        ill.enter_context(hosts.unplugged("host2"))
        ill.enter_context(hosts.refusing_key("host3"))
        ill.enter_context(hosts.other_host_key("host4"))
        ill.enter_context(hosts.without_sshd("host5"))
        ill.enter_context(hosts.unknown("host6"))
        ill.enter_context(hosts.bound("host7", empty, sys.prefix))
        ill.enter_context(hosts.bound("host8", empty, ROOT / "hvd_mnist"))
        began = time.monotonic()
        status, report, errors = examine(hosts, "-H", f"{hosts.dash_h},nohost:1")
        took = time.monotonic() - began
    assert status == 3
    assert "reachable on host2" in errors and "Traceback" not in errors
    assert took < 200  # all at once: the limit of one host, not of eight
    said = {
        "host1": "this machine",
        "host2": "no answer",
        "host3": "it refuses the login",
        "host4": "its host key has changed",
        "host5": "nothing listens on port 22",
        "host6": "its host key is not known",
        "host7": f"no {sys.executable} there",
        "host8": "its hvd_mnist is another version, without a doctor",
        "nohost": "its name is not known",
    }
    for host, words in said.items():
        assert words in found(report, "reachable", host), host
    assert states(report, "reachable") == {host: "ok" if host == "host1" else "fail" for host in said}
    assert all(check["do"] for check in report["checks"] if check["state"] == "fail")
    assert states(report, "tensorflow") == {"host1": "ok"}
    assert [each["name"] for each in report["hosts"] if each["facts"]] == ["host1"]


def test_another_tensorflow_on_one_host(two_hosts):
    with two_hosts.stub_package("host2", "tensorflow", "2.20.0"):
        status, report, errors = examine(two_hosts, "-H", two_hosts.dash_h)
    assert status == 3
    assert "same versions" in errors
    assert {"fact": "tensorflow", "values": {"host1": "2.21.0", "host2": "2.20.0"}} in report["differences"]
    assert states(report, "same versions") == {"": "fail"}
    assert states(report, "same code") == {"": "ok"}
    assert states(report, "horovod build") == {"host1": "ok", "host2": "fail"}
    assert "built for TensorFlow 2.21.0, but 2.20.0 is installed" in found(report, "horovod build", "host2")
    assert states(report, "reachable") == states(report, "ports") == {"host1": "ok", "host2": "ok"}


@pytest.mark.parametrize(
    ("words", "seen_on_host2"),
    [
        ([], "hvd_mnist.doctor.agent"),
        (["--run"], "hvd_mnist.launch.guard"),  # the sum on host2 alone
        (["--run"], "--chdir"),  # the sum across hosts
    ],
)
def test_a_doctor_that_is_killed_leaves_nothing_on_any_host(two_hosts, words, seen_on_host2):
    job = two_hosts.start("host1", doctor("-H", two_hosts.dash_h, *words), env={"PYTHONPATH": str(ROOT)})
    until = time.monotonic() + 200
    while not any(seen_on_host2 in command(process) for process in two_hosts.processes("host2")):
        assert time.monotonic() < until, job.stderr
        time.sleep(0.1)
    job.send_signal(signal.SIGKILL)
    job.wait(20)
    assert two_hosts.leftovers(grace=30) == []


def command(process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
