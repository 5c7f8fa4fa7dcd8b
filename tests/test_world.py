"""What the environment gets before Horovod starts, and how a rank ends; no other rank needed."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hvd_mnist.errors import HvdMnistError, PeerLost, ReplicasDiffer, WorldError
from hvd_mnist.runtime import ending, world
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
    nccl = translated(RuntimeError("NCCL async error: remote process exited or there was a network error"))
    assert isinstance(nccl, PeerLost) and "lost the other ranks: NCCL async error" in str(nccl)
    for own in (KeyError("x"), BrokenPipeError(32, "Broken pipe"), ReplicasDiffer("Broken pipe")):
        assert translated(own) is own
    met = translated(RuntimeError("a\n[_Derived_] Mismatched data types: One rank had type int64, another float64"))
    assert isinstance(met, WorldError) and "different collectives: Mismatched data types" in str(met)
    left = translated(SystemExit(0))
    assert type(left) is HvdMnistError and left.exit_status == 1 and "sys.exit(0)" in str(left)


def test_a_lost_rank_is_named():
    """A process that is gone, of those that this rank was told of."""
    gone = subprocess.Popen(["sleep", "60"])
    ending.know_processes([(world.hostname(), os.getpid()), (world.hostname(), gone.pid), ("elsewhere", 1)])
    try:
        gone.kill()
        gone.wait()
        lost = translated(RuntimeError("[/tmp/x.cc:1] Connection closed by peer [::1]:1"))
        assert str(lost).startswith(f"lost rank 1 (process {gone.pid} on {world.hostname()} is gone) -> ")
    finally:
        ending.know_processes([])


ENDS = """
import sys, time
from hvd_mnist.errors import PeerLost
from hvd_mnist.runtime.ending import doing, end_job_on_error
with end_job_on_error(lambda: 2, lambda: 1):
    doing("in step 6")
    print("ready", flush=True)
    {}
"""


def program_that(act):
    """A process that is rank 1 of 2 as far as its ending is concerned."""
    return subprocess.Popen(
        [sys.executable, "-c", ENDS.format(act)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    "act, status, words",
    [
        ("raise PeerLost('lost')", 201, "in step 6: lost"),
        ("sys.exit(7)", 7, "in step 6: left the job by sys.exit(7)"),
        ("sys.exit(0)", 1, "in step 6: left the job by sys.exit(0)"),
        ("1 / 0", 1, "in step 6: ZeroDivisionError: division by zero"),
    ],
)
def test_the_line_names_rank_host_and_step(act, status, words):
    program = program_that(act)
    _, said = program.communicate(timeout=60)
    assert program.returncode == status
    assert said.splitlines()[-1].startswith(f"hvd-mnist: error: rank 1 on {world.hostname()}, {words}")


def test_told_to_stop_by_a_launcher():
    """Also while the main thread stands in native code: a mutex that is locked twice lets no signal handler run."""
    program = program_that(
        "import ctypes; c, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)\n"
        "    c.pthread_mutex_lock(mutex); c.pthread_mutex_lock(mutex)"
    )
    assert program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGTERM)
    _, said = program.communicate(timeout=60)
    assert program.returncode == 143 and "rank 1 on" in said and "in step 6: told to stop by SIGTERM" in said


def test_an_error_in_a_world_of_one_reaches_the_caller():
    with pytest.raises(ReplicasDiffer), end_job_on_error(lambda: 1, lambda: 0):
        raise ReplicasDiffer("x")
