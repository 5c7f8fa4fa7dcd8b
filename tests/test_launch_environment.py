"""Which variables a job gets, which network it uses, how other hosts are entered."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_mnist.cluster.host import Host
from hvd_mnist.errors import LaunchError, UsageError
from hvd_mnist.launch import network, site, ssh
from hvd_mnist.launch.environment import forwarded
from hvd_mnist.launch.job import Ssh
from hvd_mnist.launch.network import Interface, choose_route

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "name", ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOROVOD_CYCLE_TIME", "HVD_MNIST_EPOCHS", "NCCL_DEBUG", "LC_ALL"]
)
def test_what_a_job_needs_is_handed_on(name):
    assert forwarded({name: "x"}, several_hosts=True).ranks == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        *("EDITOR", "DISPLAY", "PWD", "OLDPWD", "http_proxy"),  # not asked for
        *("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HVD_MNIST_API_KEY", "TF_VAR_db", "HOROVOD_PASSWORD", "NCCL_secret"),
        *("HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_CONTROLLER", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
        *("BASH_FUNC_module%%", "TF_A.B", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_must_not_be_handed_on(name):
    assert forwarded({name: "x"}, several_hosts=True).ranks == {}


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,12}(TOKEN|KEY|PASSWORD|SECRET)[A-Z_]{0,5}", fullmatch=True), st.text()))
def test_no_secret_by_pattern(environ):
    assert forwarded({f"HVD_MNIST_{name}": value for name, value in environ.items()}).ranks == {}


def test_a_gpu_mask_is_kept_on_this_machine_alone():
    mask = {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert forwarded(mask).ranks == mask
    found = forwarded(mask, several_hosts=True)
    assert found.ranks == {} and any("CUDA_VISIBLE_DEVICES stays here" in note for note in found.notes)


def test_asked_for_by_name():
    environ = {"EDITOR": "vi", "HF_TOKEN": "t"}
    found = forwarded(environ, ["EDITOR", "HF_TOKEN", "MODE=a=b"])
    assert found.ranks == {"EDITOR": "vi", "HF_TOKEN": "t", "MODE": "a=b"}
    assert found.by_name == {"HF_TOKEN"} and any("HF_TOKEN looks like a secret" in note for note in found.notes)
    assert forwarded({"SSH_AUTH_SOCK": "/tmp/agent"}).launcher == {"SSH_AUTH_SOCK": "/tmp/agent"}
    for wrong in ("A.B", "=x", "", "NOT_SET"):
        with pytest.raises(UsageError, match="-x"):
            forwarded(environ, [wrong])


# The network.

HERE = (Interface("lo", "127.0.0.1/8"), Interface("docker0", "172.17.0.1/16"), Interface("eth0", "10.0.0.1/24"))


def test_the_route_to_the_others_and_their_common_subnet():
    route = choose_route({"h2": "10.0.0.2", "h3": None}, HERE, "10.0.0.1", None)
    assert (route.interface, route.subnet) == ("eth0", "10.0.0.0/24") and "h2" in route.because
    assert choose_route({"h2": "10.0.0.2", "h3": "10.9.0.3"}, HERE, "10.0.0.1", None).subnet is None


@pytest.mark.parametrize("asked", ["eth0", "10.0.0.0/24"])
def test_a_network_that_is_asked_for(asked):
    route = choose_route({"h2": "10.0.0.2"}, HERE, "172.17.0.1", asked)
    assert (route.interface, route.because) == ("eth0", "--network-interface")


@pytest.mark.parametrize(
    ("others", "own", "asked", "found"),
    [
        ({"h2": "172.17.0.9"}, "172.17.0.1", None, "is reached over docker0, which leads to no other host"),
        ({"h2": "127.0.0.1"}, "127.0.0.1", None, "is reached over lo,"),
        ({"h2": None}, None, None, "h2 has no IPv4 address that is known"),
        ({"h2": "10.5.0.1"}, None, None, "no route to h2 (10.5.0.1)"),
        ({"h2": "10.0.0.2"}, "10.0.0.1", "eth7", "eth7: this machine has lo 127.0.0.1/8, docker0"),
    ],
)
def test_no_network_is_one_line(others, own, asked, found):
    with pytest.raises(LaunchError) as error:
        choose_route(others, HERE, own, asked)
    assert found in error.value.message and "eth0 10.0.0.1/24" in error.value.message


def test_which_names_are_this_machine():
    addresses = {"localhost": "127.0.0.1", "h1": "10.0.0.1", "h1x": "127.0.1.1", "h2": "10.0.0.2", "alias": None}
    assert network.local_names(addresses, HERE, "me") == {"localhost", "h1", "h1x"}
    assert network.local_names({"alias": None}, HERE, "alias.example.org") == {"alias"}


def test_this_machine_has_lo_and_knows_localhost():
    assert any(each.name == "lo" and each.subnet == "127.0.0.0/8" for each in network.interfaces())
    found = network.resolve(["localhost", "no-such-host.invalid"])
    assert found == {"localhost": "127.0.0.1", "no-such-host.invalid": None}


# This machine's slots.


def test_hosts_where_none_are_given(tmp_path):
    slurm = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "3,1"}
    hosts, source = site.hosts_here(slurm)
    assert (str(hosts), source) == ("n1:3,n2:1", "slurm")
    hosts, source = site.hosts_here({})
    assert (hosts.hosts[0].name, source) == ("localhost", "here") and "neither -H nor --hostfile" in hosts.notes[0]
    for number in range(4):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    assert site.visible_gpus({}, tmp_path) == 4
    assert site.visible_gpus({"CUDA_VISIBLE_DEVICES": "2,3"}, tmp_path) == 2
    assert site.visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0
    assert site.visible_gpus({}, tmp_path / "none") == 0


# ssh.


def test_one_user_and_port_for_all():
    hosts = [Host("h2", 1, user="ann"), Host("h3", 1, user="ann", port=2222)]
    with pytest.raises(LaunchError, match="ssh ports.*h2: none given, h3: 2222"):
        ssh.same_for_all(Ssh(), hosts)
    assert ssh.same_for_all(Ssh(port=2222), hosts) == Ssh("ann", 2222)
    assert ssh.same_for_all(Ssh("bob", 22, "key"), []) == Ssh("bob", 22, "key")
    assert ssh.words(Ssh("ann", 2222, "my key"))[-6:] == ("-l", "ann", "-p", "2222", "-i", "my key")


def checked_ssh(tmp_path, *words, **environ) -> list[str]:
    """The words that the real ssh would get, here a stand-in on PATH behind the checking one."""
    stand_in = tmp_path / "bin" / "ssh"
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    path = os.pathsep.join([str(ssh.WRAPPER.parent), str(stand_in.parent), "/usr/bin", "/bin"])
    done = subprocess.run(["ssh", *words], env={"PATH": path, **environ}, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_horovods_word_against_host_keys_is_taken_away(tmp_path):
    horovods = ["-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no"]
    login = {"HVD_MNIST_SSH_USER": "ann", "HVD_MNIST_SSH_IDENTITY": "my key"}
    words = checked_ssh(tmp_path, *horovods, "h2", "cd /a b; x", **login)
    assert words == [*ssh.OPTIONS, "-l", "ann", "-i", "my key", "h2", "cd /a b; x"]
    assert checked_ssh(tmp_path, "-x", "h2", "true") == [*ssh.OPTIONS, "-x", "h2", "true"]


def test_horovod_still_writes_the_word_that_is_taken_away():
    remote = pytest.importorskip("horovod.runner.util.remote")
    assert remote.SSH_COMMAND_PREFIX == "ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no"
