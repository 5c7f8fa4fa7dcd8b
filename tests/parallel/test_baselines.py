"""The older ways of training as real processes: the same weights as one device, and what happens when a task dies."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.parallel.ranks import ROOT, end_tree, run

pytestmark = pytest.mark.timeout(900)

QUICK = ("--data", "sample", "--model", "mlp", "--no-tensorboard", "--log-every", "5")
BASELINE = [sys.executable, "-m", "hvd_mnist", "baseline"]


@pytest.fixture(scope="module", autouse=True)
def sample_is_here():
    run([sys.executable, "-m", "hvd_mnist", "data", "fetch", "sample"], timeout=300).assert_ok()


def baseline(*words, **settings):
    return run([*BASELINE, *map(str, words)], **settings)


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def assert_nothing_left(folder: Path):
    """No process that was started for this run folder."""
    until = time.monotonic() + 10
    while left := [
        p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if str(folder) in (p.info["cmdline"] or [])
    ]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


def test_synchronous_systems_end_with_the_weights_of_one_device(tmp_path):
    """Adam, six steps of 96 images, two or three replicas, two ps tasks with variables cut in parts."""
    systems = {
        "single": ["single", "--explain"],
        "towers": ["towers", "--towers", "2", "--explain", "--slow-tower", "1:0.4"],
        "in-graph": ["in-graph", "--workers", "2"],
        "ps": ["parameter-server", "--sync", "--ps", "2", "--workers", "3", "--largest-shard", "50000"],
        "ring": ["ring", "-np", "2"],
    }
    same = [*QUICK, "--steps", "6", "--global-batch", "96", "--lr-scaling", "none"]
    for name, words in systems.items():
        baseline(*words, *same, "--run-dir", tmp_path / name).assert_ok()
        assert_nothing_left(tmp_path / name)
    program = (
        "import sys; sys.modules['horovod'] = None\n"
        "import json, keras, numpy as np\n"
        "def read(name):\n"
        "    m = keras.saving.load_model(f'{sys.argv[1]}/{name}/checkpoints/step-00000006/model.keras')\n"
        "    return [np.asarray(v) for v in [*m.trainable_variables, *m.optimizer.variables]]\n"
        "first = read('single')\n"
        "print(json.dumps({n: max(float(abs(a - b).max()) for a, b in zip(read(n), first, strict=True))"
        " for n in sys.argv[2:]}))"
    )
    told = run([sys.executable, "-c", program, str(tmp_path), *systems])
    told.assert_ok()
    differences = json.loads(told.output.strip().splitlines()[-1])
    assert differences["single"] == 0 and max(differences.values()) < 1e-5, differences
    found = {name: summary(tmp_path / name) for name in systems}
    assert {one["test_correct"] for one in found.values()} == {found["single"]["test_correct"]}
    assert [task["task"] for task in found["ps"]["ranks"]] == ["ps:0", "ps:1", "worker:0", "worker:1", "worker:2"]
    assert len(found["in-graph"]["ranks"]) == 3

    # The kernel's counts: in each step a worker pulls the model from the ps tasks and pushes as much.
    model = 4 * found["ps"]["parameters"]
    assert sum(found["ps"]["ps_bytes"]) == model
    for task in found["ps"]["ranks"][2:]:
        assert task["traffic"]["sockets_received"] == pytest.approx(6 * model, rel=0.25)  # the chief reads more
    # What left the ps tasks came to the workers: all of it, also what went to a worker that was done before others.
    left = sum(task["traffic"]["sockets_sent"] for task in found["ps"]["ranks"][:2])
    came = sum(task["traffic"]["sockets_received"] for task in found["ps"]["ranks"][2:])
    assert left == pytest.approx(came, rel=0.1)
    worker = found["in-graph"]["ranks"][1]["traffic"]
    assert worker["sockets_sent"] == pytest.approx(6 * model, rel=0.05)

    graph = json.loads((tmp_path / "single" / "graph.json").read_text())
    waves = {node["name"]: node["wave"] for node in graph["nodes"]}
    assert all(waves[other] < node["wave"] for node in graph["nodes"] for other in node["waits_for"])
    assert any(node["kind"] == "MatMul" and node.get("microseconds", 0) > 0 for node in graph["nodes"])
    assert (tmp_path / "single" / "graph.png").stat().st_size > 10_000
    assert found["towers"]["step_seconds"] >= 0.4, "the step is as slow as the slowest tower"
    crossings = json.loads((tmp_path / "towers" / "placement.json").read_text())["crossings"]
    back = [one["bytes"] for one in crossings if one["from"] == "/device:CPU:1"]
    assert sum(back) == model + 8  # the gradients, the loss and the accuracy


@contextmanager
def started(*words):
    """A job that runs on; its output is read by ``end``."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    process = subprocess.Popen(
        [*BASELINE, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environ,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end_tree(process.pid)


def kill_task(job: psutil.Popen, name: str, index: int):
    wanted = f"--job-name {name} --task-index {index} "
    [task] = [p for p in psutil.Process(job.pid).children() if wanted in " ".join(p.cmdline())]
    task.kill()


def wait_for_steps(folder: Path, job, number: int):
    """Until the chief has written so many lines of steps."""
    until, path = time.monotonic() + 200, folder / "metrics.jsonl"
    while not (path.exists() and path.read_text().count('"kind": "step"') >= number):
        assert time.monotonic() < until and job.poll() is None, job.stdout.read() if job.poll() is not None else "slow"
        time.sleep(0.1)


def test_a_dead_worker_does_not_end_an_asynchronous_job(tmp_path):
    folder = tmp_path / "run"
    words = ["--async", "--workers", "3", "--slow-worker", "1:0.1", *QUICK, "--steps", "250", "--run-dir", folder]
    with started("parameter-server", *words) as job:
        wait_for_steps(folder, job, 2)
        kill_task(job, "worker", 2)
        output, _ = job.communicate(timeout=240)
    assert job.returncode == 0, output
    assert "worker 2 ended by SIGKILL" in output and "the others go on without it" in output
    found = summary(folder)
    assert found["test_accuracy"] > 0.9 and 250 <= found["steps"] <= 252
    assert found["without_report"] == ["worker:2"]
    assert found["staleness"]["worker:1"]["largest"] >= 1, "its 0.1 s saw no update of another"
    assert_nothing_left(folder)


def test_a_dead_ps_is_named_and_its_checkpoint_goes_on(tmp_path):
    folder = tmp_path / "run"
    words = ["--ps", "2", *QUICK, "--batch-size", "64", "--checkpoint-every", "5", "--run-dir", folder]
    with started("parameter-server", "--sync", *words, "--steps", "5000") as job:
        wait_for_steps(folder, job, 2)
        kill_task(job, "ps", 1)
        output, _ = job.communicate(timeout=120)
    last = [line for line in output.splitlines() if "hvd-mnist: error" in line][-1]
    assert job.returncode == 201 and "ps 1 at localhost:" in last and "was lost at step" in last, output
    assert "hvd-mnist: ps 1 ended by SIGKILL" in output
    assert f"--resume auto --run-dir {folder} goes on from step-" in last
    assert_nothing_left(folder)
    # Any system can go on with it that has the same batch.
    again = baseline("single", *QUICK, "--batch-size", "128", "--resume", "auto", "--steps", "40", "--run-dir", folder)
    again.assert_ok()
    assert "resuming from step-" in again.output and summary(folder)["resumed_from_step"] >= 5


def test_what_cannot_start_is_one_line(tmp_path):
    def error(ended, status):
        assert ended.status == status, ended.output
        lines = [line for line in ended.output.splitlines() if line.startswith("hvd-mnist: error: ")]
        assert len(lines) == 1 and "Traceback" not in ended.output, ended.output
        return lines[0]

    server = ["parameter-server", *QUICK, "--stall-timeout", "5", "--run-dir", tmp_path / "run"]
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = ["--ps-hosts", f"localhost:{port}", "--worker-hosts", "localhost:1"]
        ended = baseline(*server, "--job-name", "ps", *cluster)
        assert f"ps 0 cannot listen on localhost:{port}: Address already in use" in error(ended, 6)
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    cluster = ["--ps-hosts", "localhost:1", "--worker-hosts", f"localhost:{port}"]
    ended = baseline(*server, "--job-name", "worker", *cluster)
    assert "ps 0 at localhost:1 did not come up in 5 s" in error(ended, 6)
    cluster[1] += f",localhost:{port}"
    ended = baseline(*server, "--job-name", "ps", "--task-index", "1", *cluster[:2], "--worker-hosts", "localhost:2")
    assert "ps 0 at localhost:1 did not come up in 5 s" in error(ended, 6)
    ended = baseline(*server, "--job-name", "worker", "--worker-hosts", f"localhost:{port}")
    assert "--job-name ps: the cluster has no such task" in error(ended, 2)
    ended = baseline(*server, "--workers", "1", "--data", tmp_path / "none")  # the chief's error is the job's, once
    assert "no such file or folder of data" in error(ended, 4)
    assert_nothing_left(tmp_path / "run")
