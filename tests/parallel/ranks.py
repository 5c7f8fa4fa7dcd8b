"""Start real ranks for a test, with a limit, and leave nothing behind."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Ended:
    status: int
    output: str

    def assert_ok(self):
        assert self.status == 0, f"status {self.status}\n{self.output[-6000:]}"


def launcher_command(launcher: str, np: int) -> list[str]:
    """The words before the program: horovodrun over Gloo, horovodrun over MPI, plain mpirun, or nothing."""
    if launcher == "alone":
        return []
    if launcher == "mpirun":
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [str(BIN / "mpirun"), *as_root, "--oversubscribe", "--bind-to", "none", "-np", str(np)]
    # Two cores start several copies of TensorFlow: the default 30 s is short on a busy machine.
    return [str(BIN / "horovodrun"), f"--{launcher}", "--start-timeout", "180", "-np", str(np), "-H", f"localhost:{np}"]


def environment(**variables) -> dict[str, str]:
    """What a job of a test sees: no variable of another launcher or of our settings, and those given."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "OMPI_", "PMIX_", "HVD_MNIST_"))}
    environ |= {"PATH": f"{BIN}{os.pathsep}{environ['PATH']}", "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    if "HVD_MNIST_CACHE" in os.environ:
        environ["HVD_MNIST_CACHE"] = os.environ["HVD_MNIST_CACHE"]
    return environ | {name: str(value) for name, value in variables.items()}


@contextmanager
def started(command: list[str], *, launcher: str = "alone", np: int = 1, **variables):
    """``command`` on ``np`` ranks as a running ``Popen``; all of it is ended when the block is left."""
    process = subprocess.Popen(
        [*launcher_command(launcher, np), *command],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        end_tree(process.pid)


def run(command: list[str], *, launcher: str = "alone", np: int = 1, timeout: float = 240, **variables) -> Ended:
    """Run ``command`` on ``np`` ranks to its end, or for ``timeout`` seconds (status 124)."""
    with started(command, launcher=launcher, np=np, **variables) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
            return Ended(process.returncode, output)
        except subprocess.TimeoutExpired:
            end_tree(process.pid)
            output, _ = process.communicate()
            return Ended(124, f"{output}\nended by the test after {timeout} s")


def end_tree(pid: int) -> None:
    """Kill a process that a test started and all that came of it; horovodrun gives each rank a session of its own."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree, timeout=10)


def train(*options: str, **settings) -> Ended:
    """``hvd-mnist train`` with the options given."""
    return run([sys.executable, "-m", "hvd_mnist", "train", *options], **settings)


def arrays_of(checkpoint: Path) -> dict:
    """All arrays of a checkpoint's model.keras, model and optimizer, by their place in it; without TensorFlow."""
    import h5py

    with zipfile.ZipFile(checkpoint / "model.keras") as archive:
        content = archive.read("model.weights.h5")
    found = {}
    with h5py.File(io.BytesIO(content)) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found
