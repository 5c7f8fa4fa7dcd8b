"""The older ways beside the ring, on the same network, first weights, batches and cores; correctness before speed.

Every system is trained twice in each repeat, for ``warm_up`` steps and for ``warm_up + steps``: what is reported is the
difference of the two, so that starting, compiling, evaluating and saving fall away. Systems alternate, and every other
repeat goes backwards. Dropout is off: the same weights can then be asked of all.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from hvd_mnist.bench import compare_report
from hvd_mnist.bench.laws import batch_bytes, bytes_per_step, link_seconds
from hvd_mnist.console import Console, count
from hvd_mnist.errors import HvdMnistError, UsageError
from hvd_mnist.run_folder import write_json

TOLERANCE = 1e-4  # of a weight after the warm-up steps: float32 sums in another order
LIMIT_SECONDS = 1800.0  # for one run


@dataclass(frozen=True)
class Comparison:
    """What is compared, on what."""

    systems: list[str]
    replicas: int = 2
    ps: int = 1
    hosts: list[str] = ()
    link: float | None = None
    cores: int | None = None
    data: str = "mnist"
    model: str = "cnn"
    global_batch: int = 128
    warm_up: int = 4
    steps: int = 20
    repeats: int = 3
    target_accuracy: float | None = None
    epochs: int = 3
    folder: str | None = None

    def __post_init__(self):
        if self.global_batch % self.replicas:
            raise UsageError(f"--global-batch {self.global_batch} does not divide by {self.replicas} replicas")
        if self.hosts and len(self.hosts) < self.replicas:
            raise UsageError(f"-H names {count(len(self.hosts), 'host')} for {self.replicas} replicas")

    def words(self, system: str) -> list[str]:
        """The words of ``hvd-mnist`` that train with a system."""
        n, computing = str(self.replicas), ",".join(self.hosts[-self.replicas :])
        here = ["-H", computing] if self.hosts else []
        if system == "single":
            return ["baseline", "single"]
        if system == "towers":
            return ["baseline", "towers", "--towers", n]
        if system == "in-graph":
            return ["baseline", "in-graph", "--workers", n, *here]
        if system == "ring":
            return ["baseline", "ring", "-np", n, *here]
        everywhere = ["-H", ",".join(self.hosts[-self.replicas - self.ps :])] if self.hosts else []
        mode = system.replace("ps-", "--")
        placed = ["--placement", "by-size"]
        return ["baseline", "parameter-server", mode, "--ps", str(self.ps), "--workers", n, *placed, *everywhere]

    def rounds(self, system: str, number: int) -> int:
        """Updates in ``number`` global batches: asynchronously each replica's batch is one."""
        return number * self.replicas if system == "ps-async" else number


def run(what: Comparison, as_json: str | None = None) -> dict:
    """Check, measure, say; the result, as in the JSON file.

    Raises:
        HvdMnistError: a system failed, or its weights are not those of one device.
    """
    console = Console()
    folder = Path(what.folder or Path("runs") / f"compare-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    if folder.exists():
        raise UsageError(f"--folder {folder} is there already", "name a new one")
    cores = what.cores or len(os.sched_getaffinity(0))
    where = f"hosts {', '.join(what.hosts)}" if what.hosts else "this machine"
    whose = "the hosts' interfaces" if what.hosts else "each process' TCP sockets"
    console.say(
        f"{what.model} on {what.data}, {what.global_batch} images a step, {count(what.replicas, 'replica')}, "
        f"{what.ps} ps besides, {where}, {cores} cores in all; bytes from the kernel's counters of {whose}"
    )
    samples: dict[str, list[dict]] = {system: [] for system in what.systems}
    differences: dict[str, float] = {}
    for repeat in range(what.repeats):
        for system in what.systems[:: 1 if repeat % 2 == 0 else -1]:
            short = train(what, system, what.warm_up, folder / f"{system}-{repeat}-short")
            long = train(what, system, what.warm_up + what.steps, folder / f"{system}-{repeat}-long")
            samples[system].append(sample(what, system, short, long))
            console.say(f"repeat {repeat + 1}: {system} done")
        if repeat == 0:
            differences = check_weights(what, folder)
            for system, most in differences.items():
                console.say(
                    f"{system}: weights after {what.warm_up} steps differ from one device's by at most {most:.1e}"
                )
    targets = {}
    if what.target_accuracy is not None:
        targets = {system: to_target(what, system, folder / f"{system}-target") for system in what.systems}
    result = {
        "settings": asdict(what),
        "cores": cores,
        "bytes_from": "interfaces" if what.hosts else "sockets",
        "tolerance": TOLERANCE,
        "weight_differences": differences,
        "systems": {system: summarize(what, system, samples[system]) for system in what.systems},
        "to_target": targets,
    }
    result["step_times"] = compare_report.step_times(result)
    compare_report.tell(result, console)
    compare_report.draw(result, folder)
    write_json(folder / "compare.json", result)
    if as_json:
        write_json(Path(as_json).absolute(), result)
    console.say(f"{folder / 'compare.json'}, {folder / 'compare.png'}")
    return result


def train(what: Comparison, system: str, steps: int, folder: Path, more: list[str] = ()) -> dict:
    """Train with one system to its end; the run's summary."""
    length = ["--steps", str(what.rounds(system, steps))] if steps else []
    settings = ["--data", what.data, "--model", what.model, "--global-batch", str(what.global_batch)]
    settings += ["--lr-scaling", "none", "--no-tensorboard", "--log-every", str(what.rounds(system, 5))]
    if not more:
        settings += ["--no-dropout", "--warmup-steps", "0", "--schedule", "constant", "--learning-rate", "0.001"]
    command = [
        sys.executable,
        "-m",
        "hvd_mnist",
        *what.words(system),
        *settings,
        *length,
        *more,
        "--run-dir",
        str(folder),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise HvdMnistError(f"{system} was still running after {LIMIT_SECONDS:g} s") from None
    finally:
        _end(process)
    if process.returncode:
        said = [line for line in output.splitlines() if "error" in line] or output.splitlines()[-1:]
        raise HvdMnistError(f"{system} failed with status {process.returncode}: {' '.join(said[:1])}")
    return json.loads((folder / "summary.json").read_text(encoding="utf-8")) | {"folder": str(folder)}


def _end(process: subprocess.Popen) -> None:
    """Ask a run that is still there to end with all its tasks, then kill it."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()


def sample(what: Comparison, system: str, short: dict, long: dict) -> dict:
    """One repeat's measurement, from the summaries of its two runs."""
    images = long["steps"] * long["global_batch"] - short["steps"] * short["global_batch"]
    steps = images / what.global_batch
    seconds, cpu = long["train_seconds"] - short["train_seconds"], long["cpu_seconds"] - short["cpu_seconds"]
    kind = "interfaces" if what.hosts else "sockets"
    before = {name_of(task): task["traffic"] for task in short["ranks"]}
    tasks = {}
    for task in long["ranks"]:
        name = name_of(task)
        sent, received = (
            max(0.0, (task["traffic"][f"{kind}_{way}"] - before[name][f"{kind}_{way}"]) / steps)
            for way in ("sent", "received")
        )
        tasks[name] = {"sent": sent, "received": received, "memory_mib": task["peak_memory_mib"]}
    total = sum(task["sent"] + task["received"] for task in tasks.values())
    return {
        "images_per_second": images / seconds if seconds > 0 else None,
        "cpu_ms_per_image": 1000 * cpu / images,
        "step_seconds": seconds / steps,
        "busiest_share": max(t["sent"] + t["received"] for t in tasks.values()) / total if total > 1000 else None,
        "tasks": tasks,
        "parameters": long["parameters"],
        "ps_bytes": long.get("ps_bytes"),
        "staleness": long.get("staleness"),
        "run": long["folder"],
    }


def name_of(task: dict) -> str:
    """Ranks of the trainer have a number, tasks of the baselines a name."""
    return task.get("task", f"rank:{task['rank']}")


def check_weights(what: Comparison, folder: Path) -> dict[str, float]:
    """Largest difference of any weight from one device's after the warm-up steps, for each synchronous system.

    Raises:
        HvdMnistError: it is above TOLERANCE.
    """
    import numpy as np

    from hvd_mnist.checkpoint import load_model

    def weights(system):
        model = load_model(folder / f"{system}-0-short")
        return [np.asarray(variable) for variable in model.trainable_variables]

    if not (folder / "single-0-short").exists():
        train(what, "single", what.warm_up, folder / "single-0-short")
    expected, found = weights("single"), {}
    for system in what.systems:
        if system in ("single", "ps-async"):
            continue
        pairs = zip(weights(system), expected, strict=True)
        found[system] = max(float(np.abs(mine - theirs).max()) for mine, theirs in pairs)
        if not found[system] <= TOLERANCE:
            raise HvdMnistError(
                f"{system} does not train alike: a weight differs by {found[system]:.2e} from one device's after "
                f"{what.warm_up} steps; at most {TOLERANCE:g} is rounding"
            )
    return found


def to_target(what: Comparison, system: str, folder: Path) -> dict:
    """Train with the defaults of ``train``, dropout too, until the target is reached; evaluated after each epoch."""
    found = train(
        what, system, 0, folder, ["--target-accuracy", str(what.target_accuracy), "--epochs", str(what.epochs)]
    )
    kept = ("target_reached", "test_accuracy", "epochs", "train_seconds", "cpu_seconds", "staleness")
    return {name: found.get(name) for name in kept}


def spread(values: Iterable) -> dict | None:
    """Median, smallest, largest and number of what was measured; None where nothing was."""
    values = [value for value in values if value is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "n": len(values)}


def summarize(what: Comparison, system: str, samples: list[dict]) -> dict:
    """Over the repeats; beside each task's bytes what the law says."""
    first = samples[0]
    law = bytes_per_step(
        system,
        4 * first["parameters"],
        what.replicas,
        ps_bytes=first["ps_bytes"] or [],
        batch=batch_bytes(what.global_batch // what.replicas),
    )
    tasks = {}
    for name in first["tasks"]:
        tasks[name] = {
            key: spread([each["tasks"][name][key] for each in samples]) for key in ("sent", "received", "memory_mib")
        }
        tasks[name]["law_sent"], tasks[name]["law_received"] = law.get(name, (None, None))
    predicted = link_seconds(system, law, what.link) if what.link else None
    return {
        name: spread([each[name] for each in samples])
        for name in ("images_per_second", "cpu_ms_per_image", "step_seconds", "busiest_share")
    } | {
        "tasks": tasks,
        "link_seconds_by_law": predicted,
        "staleness": first["staleness"],
        "runs": [each["run"] for each in samples],
    }
