"""TensorBoard's own server reads what a run leaves: cards, steps, and no step twice after a resume."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[1]
WRITE = """
import sys
from pathlib import Path
from hvd_mnist.run_folder import Records
first = Records(Path(sys.argv[1]))
first.describe([("job", "2 ranks on 1 host"), ("steps", "9")])
for step in range(1, 7):  # killed after step 6; its last checkpoint is of step 3
    first.write("step", step, epoch=0, loss=1 / step, accuracy=step / 10, learning_rate=0.01,
                images_per_second=900.0, communication=0.2)
first.write("evaluation", 6, loss=0.5, accuracy=0.8, correct=8, examples=10)
first.close()
again = Records(Path(sys.argv[1]), from_step=3)
for step in range(4, 10):
    again.write("step", step, epoch=0, loss=2 / step, accuracy=step / 10, learning_rate=0.01,
                images_per_second=900.0, communication=None)
again.write("evaluation", 6, loss=0.6, accuracy=0.7, correct=7, examples=10)
again.write("evaluation", 9, loss=0.4, accuracy=0.9, correct=9, examples=10)
again.close()
"""
# Its server without TensorFlow, as where only tensorboard is installed: it reads the same files, and starts at once.
SERVE = """
import sys, types
import tensorboard.compat
tensorboard.compat.notf = sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
from tensorboard.main import run_main
run_main()
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def serving(logdir: Path, log: Path, fast: bool = True):
    """Asks TensorBoard's HTTP API: a function of a path and parameters; the server ends with the block."""
    port = free_port()
    command = [sys.executable, "-c", SERVE, "--logdir", str(logdir), "--port", str(port),
               "--host", "127.0.0.1", "--load_fast", "auto" if fast else "false"]  # fmt: skip
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)

    def ask(path: str, **parameters):
        address = f"http://127.0.0.1:{port}/data/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=20) as answer:
            return json.load(answer)

    def told(path: str, **parameters):
        """The answer, once there is one: the server reads the files in the background."""
        until = time.monotonic() + 120
        while True:
            assert process.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
            try:
                found = ask(path, **parameters)
            except OSError:
                found = None
            if found:
                return found
            time.sleep(0.3)

    try:
        yield told
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its data server is a child
        process.wait(20)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    environ = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", WRITE, str(run)], check=True, env=environ, timeout=280)
    return run


@pytest.mark.parametrize("fast", [True, False], ids=["data-server", "python"])
def test_cards_steps_and_a_resume(fast, run, tmp_path):
    with serving(run / "tensorboard", tmp_path / "tensorboard.log", fast) as told:
        tags = told("plugin/scalars/tags")
        quality = {"quality/loss", "quality/accuracy"}
        assert set(tags["validation"]) == quality, "of a test set only what the training curves have beside it"
        pace = {"steps/learning_rate", "steps/images_per_second", "steps/communication"}
        assert set(tags["train"]) == quality | pace

        def curve(of, tag):
            return [(step, value) for _, step, value in told("plugin/scalars/scalars", run=of, tag=tag)]

        losses = [(step, 1 / step if step <= 3 else 2 / step) for step in range(1, 10)]
        assert curve("train", "quality/loss") == [(step, pytest.approx(loss)) for step, loss in losses]
        assert curve("validation", "quality/accuracy") == [(6, pytest.approx(0.7)), (9, pytest.approx(0.9))]
        (text,) = told("plugin/text/text", run="train", tag="settings")
        assert text["step"] == 0 and "<td><code>2 ranks on 1 host</code></td>" in text["text"]
