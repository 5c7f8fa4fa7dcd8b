"""One rank is told to stop; all save after the same step, and the same command goes on bit for bit. And: stalls."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from tests.parallel.ranks import BIN, ROOT, end_tree, launcher_command, run, train
from tests.parallel.test_training import weights

pytestmark = pytest.mark.timeout(900)  # several jobs each, on a machine that may be busy

# cnn has dropout: random streams must go on where they were. 20 steps of 15 an epoch.
OPTIONS = ["--data", "sample", "--model", "cnn", "--batch-size", "32", "--steps", "80", "--threads", "1", "--keep", "9"]
OPTIONS += ["--no-tensorboard", "--log-every", "1", "--resume", "auto", "--evaluate-every", "9"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run([sys.executable, "-m", "hvd_mnist", "data", "fetch", "sample"], timeout=300).assert_ok()
    train(*OPTIONS, "--run-dir", str(folder), launcher="gloo", np=2).assert_ok()
    return weights(folder)


def ranks_of(folder) -> dict[int, psutil.Process]:
    found = {}
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, environ = process.info["cmdline"] or [], process.info["environ"] or {}
        rank = environ.get("HOROVOD_RANK", environ.get("OMPI_COMM_WORLD_RANK"))
        if str(folder) in words and words[1:4] == ["-m", "hvd_mnist", "train"] and rank is not None:
            found[int(rank)] = process
    return found


def stopped_job(head, words, folder, act, at_step=5):
    """Start a job, ``act(job)`` once it has made ``at_step`` steps; (status, output)."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "OMPI_", "PMIX_", "HVD_MNIST_"))}
    environ |= {"PATH": f"{BIN}{os.pathsep}{environ['PATH']}", "PYTHONPATH": str(ROOT)}
    output = folder.parent / f"{folder.name}.out"
    with output.open("w") as file:
        job = subprocess.Popen(
            [*head, *words, "--run-dir", str(folder)],
            env=environ, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            cwd=ROOT,
        )  # fmt: skip
    try:
        metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 240
        while not (metrics.exists() and metrics.read_text().count('"kind": "step"') >= at_step):
            assert time.monotonic() < deadline and job.poll() is None, output.read_text()[-3000:]
            time.sleep(0.05)
        act(job)
        return job.wait(120), output.read_text()
    finally:
        end_tree(job.pid)


@pytest.mark.parametrize("launcher, number", [("gloo", signal.SIGTERM), ("mpirun", signal.SIGUSR1)])
def test_a_signal_to_one_rank_saves_on_all_and_the_same_command_goes_on_bitwise(
    launcher, number, undisturbed, tmp_path
):
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "hvd_mnist", "train", *OPTIONS]
    status, output = stopped_job(
        launcher_command(launcher, 2), words, folder, lambda job: ranks_of(folder)[1].send_signal(number)
    )
    said = re.search(r"stopped after step (\d+) of 80: (\w+) on rank 1, \S+; saved at step (\d+)", output)
    assert said, output[-3000:]
    assert said[2] == number.name and said[1] == said[3] and int(said[1]) % 62, "it stopped at an epoch's end"
    assert status == (200 if launcher == "mpirun" else 1)  # horovodrun says 1 whatever the ranks say
    assert launcher == "mpirun" or "Exit code: 200" in output
    assert not (folder / "summary.json").exists()
    again = train(*OPTIONS, "--run-dir", str(folder), launcher=launcher, np=2)
    again.assert_ok()
    assert f"resuming from step-{int(said[1]):08d}" in again.output
    for mine, theirs in zip(weights(folder), undisturbed, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_launch_passes_a_signal_on_and_says_how_it_ended(tmp_path):
    """SIGTERM to launch reaches the ranks with time to save; SIGUSR1 leaves the file STOP, which is then gone."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        folder = tmp_path / number.name
        head = [sys.executable, "-m", "hvd_mnist", "launch", "--launcher", "mpirun", "-np", "2", "--"]
        words = ["train", *OPTIONS, "--steps", "4000"]
        status, output = stopped_job(head, words, folder, lambda job: job.send_signal(number))  # noqa: B023
        assert status == 200, output[-3000:]
        assert re.search(r"stopped after step \d+ of 4000: .*saved at step \d+", output)
        assert len(list((folder / "checkpoints").glob("step-*"))) == 1 and not (folder / "STOP").exists()


def test_time_limit_and_requeue(tmp_path):
    """--time-limit saves and ends with 200; --requeue asks Slurm, here a script that writes down what it was asked."""
    asked = tmp_path / "asked"
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    scontrol.chmod(0o755)
    options = [*OPTIONS, "--steps", "100000", "--run-dir", str(tmp_path / "run"), "--requeue"]
    ended = train(*options)
    assert ended.status == 2 and "--requeue: this is no Slurm job" in ended.output
    path = f"{scontrol.parent}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}"
    ended = train(*options, "--time-limit", "1", SLURM_JOB_ID=17, PATH=path)
    assert ended.status == 200, ended.output[-3000:]
    assert re.search(r"stopped after step 1 of 100000: time is up on rank 0, \S+; saved at step 1", ended.output)
    assert asked.read_text() == "requeue 17\n"


def test_a_stall_names_the_missing_rank_and_shows_where_it_stands(tmp_path):
    options = ["--data", "sample", "--model", "mlp", "--no-tensorboard", "--stall-timeout", "8", "--allow-faults"]
    ended = train(
        *options, "--inject", "hang:rank=1,step=5", "--run-dir", str(tmp_path / "run"), launcher="mpirun", np=2
    )
    assert ended.status == 201, ended.output[-3000:]
    line = re.search(r"hvd-mnist: error: rank 0 on .*", ended.output)[0]
    assert re.search(r"stalled: rank 1 on \S+ did not come: rank 0 waited in 'DistributedAdam\.group0'", line)
    stack = ended.output[ended.output.index("-- where rank 1 on") :]
    assert re.search(r'File ".*faults\.py", line \d+ in _hang', stack)


def test_a_callback_that_evaluates_on_rank_0_alone_is_found(tmp_path):
    """Nobody is missing: the ranks wait for each other in different places, and each says in which."""
    program = tmp_path / "script.py"
    program.write_text(
        "import os, sys\n"
        "import keras, numpy as np\n"
        "import hvd_mnist.keras as hvd\n"
        "hvd.init()\n"
        "class EvaluateOnRoot(keras.callbacks.Callback):\n"
        "    def on_train_batch_end(self, batch, logs=None):\n"
        "        if batch == 3 and hvd.rank() == 0:\n"
        "            hvd.allreduce(1.0)\n"
        "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])\n"
        "model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), 'mse', jit_compile=False)\n"
        "calls = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), EvaluateOnRoot()]\n"
        "with hvd.StallReport(sys.argv[1]) as report:\n"
        "    model.fit(np.zeros((80, 4)), np.zeros((80, 3)), batch_size=8, verbose=0, callbacks=[*calls, report])\n"
    )
    ended = run(
        [sys.executable, str(program), str(tmp_path / "logs")],
        launcher="gloo",
        np=2,
        HOROVOD_STALL_CHECK_TIME_SECONDS=4,
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=8,
    )
    assert ended.status != 0
    found = re.search(r"ranks waited for each other in different places: .*", ended.output)
    assert found, ended.output[-4000:]
    assert re.search(r"rank 0 waited in .* at script\.py:8 in on_train_batch_end", found[0])
    assert re.search(r"rank 1 waited in 'DistributedSGD\.group0' at script\.py:13 in <module>", found[0])
