"""``hvd-mnist train`` on real ranks: the sample data set, small networks, a few steps."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hvd_mnist import checkpoint
from tests.made_runs import assert_documented
from tests.parallel.ranks import ROOT, launcher_command, run, train

pytestmark = pytest.mark.timeout(900)  # several jobs each, on a machine that may be busy

QUICK = ("--data", "sample", "--model", "mlp", "--no-tensorboard")


@pytest.fixture(scope="session", autouse=True)
def sample_is_here():
    """Fetched once, before any rank starts."""
    run([sys.executable, "-m", "hvd_mnist", "data", "fetch", "sample"], timeout=300).assert_ok()


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def weights(folder: Path, step: int | None = None) -> list[np.ndarray]:
    """Model and optimizer variables of a checkpoint, in a child that has no Horovod."""
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    path = checkpoints[-1] if step is None else folder / "checkpoints" / f"step-{step:08d}"
    program = (
        "import sys; sys.modules['horovod'] = None\n"
        "import keras, numpy as np\n"
        "m = keras.saving.load_model(sys.argv[1])\n"
        "np.savez(sys.argv[2], *[np.asarray(v) for v in [*m.trainable_variables, *m.optimizer.variables]])"
    )
    out = folder / "weights.npz"
    run([sys.executable, "-c", program, str(path / "model.keras"), str(out)]).assert_ok()
    with np.load(out) as arrays:
        return [arrays[name] for name in arrays]


@pytest.mark.parametrize("launcher", ["gloo", "mpi", "mpirun"])
def test_two_ranks(launcher, tmp_path):
    folder = tmp_path / "run"
    ended = train(*QUICK, "--epochs", "2", "--run-dir", str(folder), launcher=launcher, np=2)
    ended.assert_ok()
    found = summary(folder)
    assert found["world_size"] == 2 and len(found["ranks"]) == 2
    assert found["backend"] == ("Gloo" if launcher == "gloo" else "MPI")
    assert found["launcher"].startswith("horovodrun" if launcher == "gloo" else "openmpi")
    assert found["steps"] == 2 * (4000 // 256) and found["global_batch"] == 256
    assert found["test_examples"] == 1000 and found["test_accuracy"] > 0.8
    assert found["proof"]["held"] and found["proof"]["comparisons"] == 5  # step 1, two epochs, two saves
    assert found["data_is_sample"] is True
    assert {path.name for path in (folder / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}
    assert ended.output.count("replicas proven equal") == 1, "rank 1 is not quiet"
    kinds = [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert kinds.count("epoch") == 2 and kinds.count("evaluation") == 2 and kinds.count("checkpoint") == 2
    knobs = json.loads((folder / "config.json").read_text())["knobs"]
    assert knobs["epochs"] == {"value": 2, "source": "flag"} and knobs["seed"]["source"] == "default"


def test_alone_and_every_number_of_ranks_end_alike(tmp_path):
    """The same global batch on 1, 2 and 4 ranks gives the same weights, and evaluation counts the same digits."""
    options = [*QUICK, "--steps", "6", "--global-batch", "128", "--lr-scaling", "none"]
    ends = {}
    jobs = [("sgd", 1, "alone"), ("sgd", 2, "gloo"), ("sgd", 4, "mpirun"), ("adam", 1, "alone"), ("adam", 2, "mpirun")]
    for optimizer, np_, launcher in jobs:
        folder = tmp_path / f"{optimizer}-{np_}"
        train(*options, "--optimizer", optimizer, "--run-dir", str(folder), launcher=launcher, np=np_).assert_ok()
        ends[optimizer, np_] = weights(folder), summary(folder)
    for (optimizer, _), (found, told) in ends.items():
        expected, alone = ends[optimizer, 1]
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6 if optimizer == "sgd" else 1e-5)
        assert told["test_examples"] == 1000 and abs(told["test_correct"] - alone["test_correct"]) <= 1
        assert told["test_loss"] == pytest.approx(alone["test_loss"], abs=1e-4)


def start(command, launcher, np_):
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*launcher_command(launcher, np_), *command],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        cwd=ROOT,
    )


def test_resume_in_the_middle_of_an_epoch_is_bitwise(tmp_path):
    """Killed (SIGKILL, all at once) after a checkpoint inside an epoch, then the same command: same bits at the end.

    The cnn has dropout, so the random streams of both ranks must go on where they were too.
    """
    options = ["--data", "sample", "--model", "cnn", "--steps", "24", "--batch-size", "128", "--threads", "1",
               "--checkpoint-every", "5", "--keep", "9", "--no-tensorboard", "--resume", "auto"]  # fmt: skip
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(*options, "--run-dir", str(whole), launcher="gloo", np=2).assert_ok()
    command = [sys.executable, "-m", "hvd_mnist", "train", *options, "--run-dir", str(broken)]
    job = start(command, "gloo", 2)
    try:
        deadline = time.monotonic() + 200
        while not (broken / "checkpoints" / "step-00000010").exists():
            assert time.monotonic() < deadline and job.poll() is None, "no checkpoint appeared"
            time.sleep(0.05)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert not (broken / "checkpoints" / "step-00000024").exists(), "it was over before the kill"
    wait_until_ranks_are_gone(broken)
    again = train(*options, "--run-dir", str(broken), launcher="gloo", np=2)
    again.assert_ok()
    resumed = re.search(r"resuming from step-0+(\d+)", again.output)
    assert resumed and int(resumed[1]) % 15 != 0, again.output[-2000:]  # 15 steps an epoch: not at its end
    for mine, theirs in zip(weights(broken), weights(whole), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    steps = [json.loads(line)["step"] for line in (broken / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


def wait_until_ranks_are_gone(folder: Path):
    """horovodrun starts each rank in a session of its own; a killed launcher's ranks end when they notice."""
    import psutil

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ranks = [p for p in psutil.process_iter(["cmdline"]) if str(folder) in (p.info["cmdline"] or [])]
        if not ranks:
            return
        for process in ranks:  # this test started them
            process.kill()
        time.sleep(0.2)
    raise AssertionError("ranks are still running")


def test_resume_with_another_number_of_ranks(tmp_path):
    folder = tmp_path / "run"
    options = [*QUICK, "--run-dir", str(folder), "--resume", "auto"]
    train(*options, "--epochs", "1", launcher="gloo", np=2).assert_ok()
    ended = train(*options, "--epochs", "2", launcher="alone")
    ended.assert_ok()
    assert "written by 2 ranks at global batch 256; now 128: step 15 becomes 31" in ended.output
    assert summary(folder)["steps"] == 62 and summary(folder)["resumed_from_step"] == 31
    # Back to two ranks, whose steps have lower numbers again: the newest checkpoint is still the newest.
    ended = train(*options, "--epochs", "3", launcher="gloo", np=2)
    ended.assert_ok()
    assert "written by 1 ranks at global batch 128; now 256: step 62 becomes 30" in ended.output
    assert [one.step for one in checkpoint.candidates(folder / "checkpoints")][:2] == [15 + 31 + 15, 15 + 31]
    # And a run that is complete has nothing left to train.
    ended = train(*options, "--epochs", "2", launcher="alone")
    ended.assert_ok()
    assert "nothing left to train" in ended.output


def test_plateau_lowers_the_rate_on_all_ranks_and_resumes_bitwise(tmp_path):
    """A rate so high that the test loss jumps up and down: it falls, and falls alike in a run of two parts."""
    options = [*QUICK, "--schedule", "plateau", "--plateau-patience", "1", "--learning-rate", "0.03", "--threads", "1",
               "--log-every", "1", "--resume", "auto"]  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ended = train(*options, "--epochs", "6", "--run-dir", str(whole), launcher="gloo", np=2)
    ended.assert_ok()  # ranks whose rates differed would end as replicas that differ
    records = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    losses = [one["loss"] for one in records if one["kind"] == "evaluation"]
    rates = [one["learning_rate"] for one in records if one["kind"] == "step"]
    factor, best, expected = 1.0, math.inf, []
    for loss in losses:
        expected += [factor] * 15
        factor, best = (factor * 0.3, best) if loss >= best else (factor, loss)
    assert expected[-1] < 1, f"no plateau in {losses}: another rate is needed here"
    assert rates[8:] == pytest.approx([0.03 * 2**0.5 * part for part in expected[8:]])  # after 8 steps of warm-up
    assert ended.output.count("no better test loss in 1 evaluation: the rate falls to") >= 1
    for epochs in ("3", "6"):
        train(*options, "--epochs", epochs, "--run-dir", str(parts), launcher="gloo", np=2).assert_ok()
    for mine, theirs in zip(weights(parts), weights(whole), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_run_folder_is_not_overwritten(tmp_path):
    folder = tmp_path / "run"
    train(*QUICK, "--steps", "3", "--run-dir", str(folder)).assert_ok()
    ended = train(*QUICK, "--steps", "3", "--run-dir", str(folder), launcher="gloo", np=2)
    assert ended.status != 0
    assert "holds a run already -> --resume auto to continue it, or another --run-dir" in ended.output


def test_evaluate_and_predict(tmp_path):
    folder = tmp_path / "run"
    train(*QUICK, "--epochs", "2", "--step-times", "--run-dir", str(folder), launcher="gloo", np=2).assert_ok()
    told = run([sys.executable, "-m", "hvd_mnist", "evaluate", str(folder), "--data", "sample", "--json"])
    told.assert_ok()
    found = json.loads(told.output.strip().splitlines()[-1])
    best = max(
        json.loads(line)["accuracy"]
        for line in (folder / "metrics.jsonl").read_text().splitlines()
        if json.loads(line)["kind"] == "evaluation"
    )
    assert found["accuracy"] == best and found["examples"] == 1000
    assert_documented(folder)
    # The last evaluation's digits, from both ranks; then the best checkpoint's, in one process.
    digits = json.loads((folder / "digits.json").read_text())
    assert np.trace(digits["confusion"]) == summary(folder)["test_correct"] == 1000 - digits["wrong"]
    assert digits["checkpoint"] == "step-00000030" and np.sum(digits["confusion"]) == 1000
    told = run([sys.executable, "-m", "hvd_mnist", "report", str(folder), "--digits", "--offline"])
    told.assert_ok()
    if best == summary(folder)["test_accuracy"]:
        again = json.loads((folder / "digits.json").read_text())
        assert {each["index"] for each in again["worst"]} == {each["index"] for each in digits["worst"]}
        assert again["confusion"] == digits["confusion"] and again["checkpoint"] == digits["checkpoint"]
    digits = json.loads((folder / "digits.json").read_text())
    confusion = np.array(digits["confusion"])
    assert confusion.sum() == digits["examples"] == 1000 and confusion.trace() == 1000 * best == 1000 - digits["wrong"]
    certain = [each["probability"] for each in digits["worst"]]
    assert certain == sorted(certain, reverse=True) and all(e["label"] != e["predicted"] for e in digits["worst"])
    page = (folder / "report.html").read_text()
    assert re.search(r"\d+ % of a step, waiting for slower ranks included", page)
    assert "equal to the last bit" in page and page.count("data:image/png;base64,") == len(digits["worst"]) == 24


def test_target_accuracy_stops_all_ranks(tmp_path):
    folder = tmp_path / "run"
    ended = train(
        *QUICK, "--epochs", "20", "--target-accuracy", "0.6", "--run-dir", str(folder), launcher="mpirun", np=2
    )
    ended.assert_ok()
    assert summary(folder)["target_reached"] is True and summary(folder)["steps"] < 20 * 15


@pytest.mark.parametrize(
    "precision, compression, accumulate", [("mixed_bfloat16", "bf16", 2), ("mixed_float16", "fp16", 1)]
)
def test_precision_compression_accumulation(precision, compression, accumulate, tmp_path):
    folder = tmp_path / "run"
    options = ["--precision", precision, "--compression", compression, "--accumulate", str(accumulate)]
    train(*QUICK, *options, "--epochs", "3", "--run-dir", str(folder), launcher="gloo", np=2).assert_ok()
    assert summary(folder)["steps"] == 3 * (4000 // (256 * accumulate))
    assert summary(folder)["test_accuracy"] > 0.7 and summary(folder)["proof"]["held"]


def last_line(ended):
    return [line for line in ended.output.strip().splitlines() if "hvd-mnist: error" in line][-1]


def test_bad_input_is_one_line(tmp_path):
    folder = str(tmp_path / "run")
    ended = train(*QUICK, "--global-batch", "129", "--run-dir", folder, launcher="mpirun", np=2)
    assert ended.status == 2
    assert "--global-batch 129 does not divide by 2 ranks x 1 passes -> --global-batch 128" in last_line(ended)
    ended = train("--data", str(tmp_path / "none"), "--run-dir", folder, launcher="mpirun", np=2)
    assert ended.status == 4 and "no such file or folder of data" in last_line(ended)


def test_ranks_with_different_options(tmp_path):
    each = "HVD_MNIST_SEED=$OMPI_COMM_WORLD_RANK exec {} -m hvd_mnist train {} --run-dir {}".format(
        sys.executable, " ".join(QUICK), tmp_path / "run"
    )
    ended = run(["sh", "-c", each], launcher="mpirun", np=2)
    assert ended.status == 2
    assert re.search(r"rank 1 on \S+ has seed=1, rank 0 has seed=0", last_line(ended))
