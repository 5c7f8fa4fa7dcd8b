"""The speed that this project wants, row by row, measured again: ``hvd-mnist bench targets``, ``make bench``.

A row is a wish and a function that measures it with the other benchmarks, in processes of their own, the sides in turn.
What is reported is what was measured; a row that misses its wish says so and is no error.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from hvd_mnist.bench import torch_ddp
from hvd_mnist.console import Console, library_defaults
from hvd_mnist.errors import HvdMnistError, UsageError
from hvd_mnist.run_folder import write_json

MARK = re.compile(r"^\[[\d,]+\]<\w+>:", re.MULTILINE)  # "[1,0]<stdout>:", a launcher's, at the head of a line
LIMIT_SECONDS = 1800.0  # for one child
HVD_MNIST = (sys.executable, "-m", "hvd_mnist")
RANKS = ("horovodrun", "--gloo", "-np", "2", "-H", "localhost:2")


@dataclass(frozen=True)
class Setting:
    """How much is measured, and with what."""

    repeats: int = 3
    torch: str | None = None  # a Python with PyTorch


@dataclass(frozen=True)
class Found:
    """One measured number beside its wish.

    Attributes:
        value: in ``unit``; the median where it was measured several times.
        samples: all of them.
    """

    what: str
    value: float
    wish: float
    at_least: bool
    unit: str
    samples: tuple[float, ...]
    note: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.wish if self.at_least else self.value <= self.wish


class LeftOut(Exception):
    """This row cannot be measured here; the reason in words."""


def child(*words: str) -> str:
    """Standard output of a command that must end well within LIMIT_SECONDS."""
    process = subprocess.Popen(
        words,
        env={**library_defaults(), **os.environ},  # the same TensorFlow on all sides
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise HvdMnistError(f"still running after {LIMIT_SECONDS:g} s: {' '.join(words)}") from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
    if process.returncode:
        last = (errors.strip() or output.strip()).splitlines()[-1:]
        raise HvdMnistError(f"status {process.returncode} from {' '.join(words)}: {' '.join(last)}")
    return output


def json_in(output: str) -> dict:
    """The JSON object in what a launcher printed: each line of it may carry the launcher's mark of the rank."""
    plain = MARK.sub("", output)
    return json.JSONDecoder().raw_decode(plain[plain.index("{") :])[0]


def allreduce(setting: Setting) -> list[Found]:
    """The cnn's gradients, and 100 MB, over two ranks: the speed of our way as a part of raw MPI's."""
    found = []
    for what, words in (
        ("the cnn's gradients", ("--gradients", "cnn")),
        ("100 MB in 4 tensors", ("--min-bytes", "100M", "--max-bytes", "100M", "--tensors", "4")),
    ):
        output = child(
            *HVD_MNIST, "bench", "allreduce", "-np", "2", *words, "--rounds", str(setting.repeats), "--json", "-"
        )
        median = {row["backend"]: row["median_us"] for row in json_in(output)["rows"]}
        for backend in ("horovod-gloo", "horovod-mpi"):
            ratio = round(median["mpi"] / median[backend], 3)
            note = f"{median[backend] / 1e3:.2f} ms against {median['mpi'] / 1e3:.2f}"
            found.append(Found(f"allreduce of {what}, {backend} / raw MPI", ratio, 0.95, True, "x", (ratio,), note))
    return found


def exposed(setting: Setting) -> list[Found]:
    """What communication and our layer add to a step of ranks that train apart, and to a hand-written loop."""
    found = json_in(
        child(
            *RANKS,
            sys.executable,
            "-m",
            "hvd_mnist.bench.overhead",
            "--steps",
            "10",
            "--blocks",
            str(8 * setting.repeats),
        )
    )
    rows = []
    for other, wish, what in (
        ("apart", 3.0, "communication and our layer, CPU seconds above ranks that train apart"),
        ("by hand", 3.0, "our layer, CPU seconds above a loop written by hand"),
    ):
        ratio = found["cpu"][other]
        value = round(100 * (ratio[f"ours / {other}"] - 1), 1)
        low, high = (round(100 * (bound - 1), 1) for bound in ratio["interval"])
        note = f"95 % interval {low} to {high}, n {ratio['n']}; {found['cpu']['ours']['ms']:.0f} ms a step and rank"
        rows.append(Found(what, value, wish, False, "%", (value,), note))
    return rows


def torch(setting: Setting) -> list[Found]:
    """Images a CPU second and a second, of our step and of PyTorch's DDP, in turn."""
    if setting.torch is None:
        raise LeftOut("no --torch PYTHON was given")
    words = (setting.torch, "-m", "torch.distributed.run", "--nproc-per-node", "2", torch_ddp.__file__)
    return _against(setting, words, 1.10, lambda told: f"PyTorch {told['torch']} DDP")


def tf_distribute(setting: Setting) -> list[Found]:
    """The same against tf.distribute.MirroredStrategy: one process with two replicas, a thread each."""
    words = (sys.executable, "-m", "hvd_mnist.bench.tf_distribute")
    return _against(setting, words, 1.0, lambda told: f"MirroredStrategy of TensorFlow {told['tensorflow']}")


def _against(setting: Setting, theirs: tuple[str, ...], wish: float, name: Callable[[dict], str]) -> list[Found]:
    """Our step and that of another program, which prints ``cpu_ms`` and ``wall_ms`` as ours does, in turn."""
    blocks = ("--blocks", "4", "--steps", "10")
    ours = (*RANKS, sys.executable, "-m", "hvd_mnist.bench.overhead", "--sides", "ours", *blocks)
    told: dict[tuple[str, ...], list[dict]] = {ours: [], theirs: []}
    for repeat in range(setting.repeats):
        for words in list(told)[:: 1 if repeat % 2 == 0 else -1]:
            told[words].append(json_in(child(*words, *(() if words is ours else blocks))))
    found = []
    for clock, what in (("wall", "images a second"), ("cpu", "images a CPU second")):
        mine = [each[clock]["ours"]["ms"] for each in told[ours]]
        other = [each[f"{clock}_ms"] for each in told[theirs]]
        ratios = tuple(round(b / a, 3) for a, b in zip(mine, other, strict=True))
        note = f"{statistics.median(mine):.0f} ms a step and rank against {statistics.median(other):.0f}"
        row = f"cnn, 2 ranks, {what} against {name(told[theirs][0])}"
        found.append(Found(row, statistics.median(ratios), wish, True, "x", ratios, note))
    return found


def scaling(setting: Setting) -> list[Found]:
    """Images a second and a rank on two ranks, as part of one rank's; and the same by CPU seconds."""
    told = _told_in_a_file(*HVD_MNIST, "bench", "scaling", "-np", "1,2", "--repeats", str(setting.repeats))
    row = next(row for row in told["rows"] if row["ranks"] == 2)
    return [
        Found(f"efficiency from 1 to 2 ranks, {what}", round(its["median"], 3), 0.97, True, "x",
              (its["least"], its["most"]), f"{its['least']:.2f} to {its['most']:.2f}, n {its['n']}")
        for what, its in (("images a second", row["efficiency"]), ("CPU seconds", row["cpu_efficiency"]))
    ]  # fmt: skip


def older_ways(setting: Setting) -> list[Found]:
    """Images a second, and a CPU second, of the ring as a multiple of each older way's: two replicas, the same work, in
    turn."""
    with tempfile.TemporaryDirectory(prefix="hvd-mnist-bench-") as folder:
        place = ("--folder", str(Path(folder) / "compare"))
        told = _told_in_a_file(*HVD_MNIST, "bench", "compare", "-np", "2", "--repeats", str(setting.repeats), *place)
    systems = told["systems"]
    ring, found = systems.pop("ring"), []
    for system, its in systems.items():
        mine, theirs = (each["images_per_second"]["median"] for each in (ring, its))
        my_cpu, their_cpu = (each["cpu_ms_per_image"]["median"] for each in (ring, its))
        for what, ratio, note in (
            ("images a second", mine / theirs, f"{mine:.0f} against {theirs:.0f}"),
            ("images a CPU second", their_cpu / my_cpu, f"{my_cpu:.2f} ms an image against {their_cpu:.2f}"),
        ):
            row = f"the ring against {system}, 2 replicas, {what}"
            found.append(Found(row, round(ratio, 3), 1.0, True, "x", (round(ratio, 3),), note))
    return found


def predictions(setting: Setting) -> list[Found]:
    """The worst prediction of the cost model for 4 and 8 ranks over limited links, fitted on 2: pretended hosts."""
    program = Path(__file__).parents[2] / "tests" / "cluster" / "check_predictions.py"
    if os.geteuid() != 0 or not program.exists():
        raise LeftOut("pretended hosts need root and the repository's tests/cluster")
    told = child(sys.executable, str(program), "--ways", "horovod-gloo", "--within", "100")
    worst = float(re.search(r"the worst prediction is ([\d.]+)% off", told)[1])
    return [Found("prediction against measurement, 4 and 8 ranks", worst, 15, False, "%", (worst,))]


def _told_in_a_file(*words: str) -> dict:
    """What a command of ours writes with ``--json``."""
    with tempfile.TemporaryDirectory(prefix="hvd-mnist-bench-") as folder:
        child(*words, "--json", f"{folder}/told.json")
        return json.loads(Path(folder, "told.json").read_text(encoding="utf-8"))


def recipe(setting: Setting) -> list[Found]:
    """CPU seconds of both ranks for one epoch with the defaults, which is to get 99 % of MNIST's test set right."""
    seconds, reached = [], []
    for seed in range(1, 6):
        with tempfile.TemporaryDirectory(prefix="hvd-mnist-bench-") as folder:
            run = Path(folder) / "run"
            child(*RANKS, *HVD_MNIST, "train", "--epochs", "1", "--seed", str(seed),
                  "--no-tensorboard", "--run-dir", str(run))  # fmt: skip
            told = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        seconds.append(told["cpu_seconds"])
        reached.append(told["test_accuracy"] >= 0.99)
    note = f"{sum(reached)} of 5 seeds reached it"
    return [Found("one epoch with the defaults, to 99 %, 2 ranks", statistics.median(seconds), 40, False, "CPU s",
                  tuple(seconds), note)]  # fmt: skip


# A model, 20 steps, one thread as a rank has: what any TensorFlow process has in memory. Prints MiB at its peak.
BARE = """
import json, resource, numpy, keras, tensorflow as tf
from hvd_mnist import models
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
model = models.build("cnn")
models.compile_for_digits(model, "adam")
batch = tf.data.Dataset.from_tensors((numpy.zeros((128, 28, 28, 1), "float32"), numpy.zeros(128, "int64")))
model.fit(batch.repeat(20), verbose=0)
print(json.dumps({"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
# What must happen before a first step can: the same imports, and Horovod's own start.
BARE_START = "import keras, tensorflow, horovod.tensorflow as hvd; hvd.init(); hvd.shutdown()"


def start(setting: Setting) -> list[Found]:
    """Launcher to first step against import and hvd.init() alone."""
    starts = []
    for _ in range(setting.repeats):
        bare_start = _cpu_seconds(*RANKS, sys.executable, "-c", BARE_START)
        with tempfile.TemporaryDirectory(prefix="hvd-mnist-bench-") as folder:
            run = Path(folder) / "run"
            words = (*RANKS, *HVD_MNIST, "train", "--model", "cnn", "--steps", "1", "--no-tensorboard")
            whole = _cpu_seconds(*words, "--run-dir", str(run))
            told = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        starts.append(round((whole - told["cpu_seconds"]) / bare_start, 3))
    what = "start to first step, CPU seconds, / import and hvd.init() alone"
    return [Found(what, statistics.median(starts), 1.3, False, "x", tuple(starts))]


def memory(setting: Setting) -> list[Found]:
    """What rank 0 of two takes at its most (steps, evaluation, save) above a bare model's most."""
    above = []
    for _ in range(setting.repeats):
        bare = json_in(child(sys.executable, "-c", BARE))["mib"]
        with tempfile.TemporaryDirectory(prefix="hvd-mnist-bench-") as folder:
            run = str(Path(folder) / "run")
            rows = json_in(child(*RANKS, sys.executable, "-m", "hvd_mnist.bench.memory", "--run-dir", run))["rows"]
        most = max(rows, key=lambda row: row["most"])
        above.append(round(most["most"] - bare, 1))
    note = f"at its most in: {most['act']}; {bare:.0f} MiB are the bare model's"
    what = "memory of a rank above a bare model's, real MNIST"
    return [Found(what, statistics.median(above), 60, False, "MiB", tuple(above), note)]


def _cpu_seconds(*words: str) -> float:
    """CPU seconds of a command and all its descendants that it waited for."""
    before = os.times()
    child(*words)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


ROWS: dict[str, Callable[[Setting], list[Found]]] = {
    "allreduce": allreduce,
    "exposed": exposed,
    "scaling": scaling,
    "torch": torch,
    "tf-distribute": tf_distribute,
    "older-ways": older_ways,
    "recipe": recipe,
    "start": start,
    "memory": memory,
    "predictions": predictions,
}


def run(only: tuple[str, ...], setting: Setting, as_json: str | None = None) -> list[Found]:
    """Measure the rows and print them.

    Raises:
        UsageError: PyTorch was asked for and is not in the environment named.
    """
    if setting.torch is None and only == ("torch",):
        raise UsageError("the row torch needs a Python with PyTorch (requirements/torch.txt)", "--torch PYTHON")
    if setting.torch is not None and not Path(setting.torch).exists():
        raise UsageError(
            f"--torch {setting.torch}: no such file", ".venv-torch/bin/python, from requirements/torch.txt"
        )
    console, found = Console(), []
    for name in only or tuple(ROWS):
        console.say(f"measuring: {name}")
        try:
            found += ROWS[name](setting)
        except LeftOut as reason:
            console.say(f"{name}: left out, {reason}")
    lines = [
        (each.what, f"{'at least' if each.at_least else 'at most'} {each.wish:g} {each.unit}",
         f"{each.value:g} {each.unit}", "yes" if each.met else "no", each.note)
        for each in found
    ]  # fmt: skip
    console.table("the speed that is wanted, and what was measured", lines, ("work", "wanted", "measured", "met", ""))
    if as_json:
        write_json(Path(as_json).absolute(), {"rows": [asdict(each) | {"met": each.met} for each in found]})
    return found
