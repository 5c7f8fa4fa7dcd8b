"""What the environment gets before Horovod starts; pure, no rank needed."""

from types import SimpleNamespace

import pytest

from hvd_mnist.errors import PeerLost, ReplicasDiffer
from hvd_mnist.runtime.ending import end_job_on_error, translated
from hvd_mnist.runtime.world import environment_defaults

ALONE = SimpleNamespace(size=1, launcher="none")
IN_A_JOB = SimpleNamespace(size=4, launcher="openmpi")


def test_a_world_of_one_needs_no_mpi(tmp_path):
    assert environment_defaults({}, ALONE, tmp_path)["HOROVOD_CONTROLLER"] == "gloo"
    assert "HOROVOD_CONTROLLER" not in environment_defaults({}, IN_A_JOB, tmp_path)


def test_opal_prefix_where_open_mpi_came_as_a_wheel(tmp_path):
    assert "OPAL_PREFIX" not in environment_defaults({}, IN_A_JOB, tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libmpi.so.40").touch()
    assert environment_defaults({}, IN_A_JOB, tmp_path)["OPAL_PREFIX"] == str(tmp_path)


def test_what_is_set_is_left(tmp_path):
    everything = environment_defaults({}, ALONE, tmp_path)
    mine = dict.fromkeys(everything, "mine")
    assert environment_defaults(mine, ALONE, tmp_path) == {}


def test_waiting_is_never_endless(tmp_path):
    assert int(environment_defaults({}, IN_A_JOB, tmp_path)["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"]) > 0


def test_translated():
    lost = translated(
        RuntimeError("...\nHorovod has been shut down. This was caused by an exception on one of the ranks")
    )
    assert isinstance(lost, PeerLost) and lost.exit_status == 201 and "\n" not in str(lost)
    fault = KeyError("x")
    assert translated(fault) is fault


def test_an_error_in_a_world_of_one_reaches_the_caller():
    with pytest.raises(ReplicasDiffer), end_job_on_error(lambda: 1, lambda: 0):
        raise ReplicasDiffer("x")
