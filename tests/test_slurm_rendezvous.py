"""Where tasks of srun meet: arithmetic by table, a real server on this machine, and each way it can fail."""

from __future__ import annotations

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from hvd_mnist.cluster.identity import identity_from
from hvd_mnist.errors import WorldError
from hvd_mnist.runtime import slurm_rendezvous
from hvd_mnist.runtime.slurm_rendezvous import interface_towards, meet, meeting_of, needed


def task(rank=0, node=0, local=0, tasks="3,1", nodes="localhost,n2", job="17", step="3", size="4", **more):
    counts = {"3,1": ["0,1,2", "3"], "2(x2)": ["0,1", "2,3"]}[tasks]
    return {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": step,
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": size,
        "SLURM_NTASKS": size,
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_GTIDS": counts[node],
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        **more,
    }


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, True),
        ({"HOROVOD_CONTROLLER": "gloo"}, True),
        ({"HOROVOD_CONTROLLER": "mpi"}, False),  # whoever has an MPI that works under srun
        ({"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}, False),  # met already
    ],
)
def test_when_it_is_needed(more, expected):
    environ = task()
    assert needed({**environ, **more}, identity_from(environ, "n1")) is expected


def test_nobody_else_meets_here():
    for environ in ({}, {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4"}, {"PMI_RANK": "0", "PMI_SIZE": "2"}):
        assert not needed(environ, identity_from(environ, "n1"))


def test_places_among_nodes_of_unequal_tasks():
    first, second = meeting_of(task()), meeting_of(task(rank=3, node=1))
    assert [first.cross(local) for local in range(3)] == [(0, 2), (0, 1), (0, 1)]
    assert second.cross(0) == (1, 2)
    assert (first.nodes, first.tasks, first.step) == (("localhost", "n2"), (3, 1), "17.3")


def test_ports_follow_from_job_and_step():
    one, same, step = meeting_of(task()), meeting_of(task(rank=1, local=1)), meeting_of(task(step="4"))
    assert one.ports == same.ports != step.ports
    for job in ("1", "624", "625", "99999999"):
        ports = meeting_of(task(job=job)).ports
        assert all(20000 <= port < 30000 for port in ports) and len(set(ports)) == len(ports)


def test_a_task_without_its_variables():
    environ = task()
    del environ["SLURM_STEP_NODELIST"]
    with pytest.raises(WorldError, match="without SLURM_STEP_NODELIST"):
        meeting_of(environ)


def test_two_tasks_meet():
    pytest.importorskip("horovod")
    job = str(int(time.time() * 1000) % 10**8)  # other ports than another run of this test
    root = task(job=job)
    found = meet(root, identity_from(root, "localhost"))
    other = task(rank=3, node=1, job=job)
    theirs = meet(other, identity_from(other, "n2"), limit=10)
    for name in ("ADDR", "PORT"):
        assert found[f"HOROVOD_GLOO_RENDEZVOUS_{name}"] == theirs[f"HOROVOD_GLOO_RENDEZVOUS_{name}"]
    assert (theirs["HOROVOD_RANK"], theirs["HOROVOD_CROSS_RANK"], theirs["HOROVOD_HOSTNAME"]) == ("3", "1", "n2")
    assert theirs["HOROVOD_GLOO_IFACE"] == "lo" == interface_towards("127.0.0.1")
    # Joined, a task is still known as srun's.
    assert identity_from({**other, **theirs}, "n2").launcher == "slurm"


@pytest.fixture
def busy_port():
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


def test_rank_0_goes_on_to_the_next_port(busy_port, monkeypatch):
    pytest.importorskip("horovod")
    monkeypatch.setattr(slurm_rendezvous, "FIRST_PORT", busy_port)
    monkeypatch.setattr(slurm_rendezvous, "PORTS", 2)
    environ = task()
    port = int(meet(environ, identity_from(environ, "localhost"))["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    assert port == busy_port + 1


def test_all_ports_taken_is_one_line(busy_port, monkeypatch):
    pytest.importorskip("horovod")
    monkeypatch.setattr(slurm_rendezvous, "FIRST_PORT", busy_port)
    monkeypatch.setattr(slurm_rendezvous, "PORTS", 1)
    environ = task()
    with pytest.raises(WorldError, match=f"ports {busy_port} to {busy_port} are all taken") as error:
        meet(environ, identity_from(environ, "localhost"))
    assert "submit the job again" in error.value.hint


class _OtherStep(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"16.0")

    def log_message(self, *_):
        pass


def test_nobody_answers_for_this_step(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), _OtherStep)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(slurm_rendezvous, "FIRST_PORT", server.server_port)
    monkeypatch.setattr(slurm_rendezvous, "PORTS", 1)
    environ = task(rank=3, node=1)
    with pytest.raises(WorldError) as error:
        meet(environ, identity_from(environ, "n2"), limit=0.3)
    server.shutdown()
    server.server_close()
    for part in ("rank 3 on n2", "step 17.3", "localhost (127.0.0.1)", "0.3 s", "serves step 16.0"):
        assert part in error.value.message


def test_a_first_node_without_address():
    environ = task(nodes="no-such-node.invalid,n2")
    with pytest.raises(WorldError, match="first node no-such-node.invalid has no address"):
        meet(environ, identity_from(environ, "n1"))
