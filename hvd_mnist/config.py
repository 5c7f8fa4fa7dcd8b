"""Every knob of a training run, once: its name, default, help and check stand together.

The flags of ``hvd-mnist train``, the environment variables (HVD_MNIST_BATCH_SIZE), the keys of a --config file
and config.json in the run folder are all derived from ``TrainConfig``. Where a knob is set in several places,
flag beats environment beats file beats default.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_mnist import faults
from hvd_mnist.console import LEVELS
from hvd_mnist.errors import UsageError
from hvd_mnist.own import is_own


def knob(
    default: Any,
    help: str,
    *,
    group: str,
    choices: Sequence[str] = (),
    own: bool = False,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    also: tuple[str, ...] = (),
) -> Any:
    """A field of TrainConfig. ``least`` and ``most`` are inclusive bounds, ``above`` an exclusive lower one; ``own``
    admits MODULE:FUNCTION besides the choices; ``also`` are further names of its flag."""
    bounds = {"least": least, "above": above, "most": most}
    metadata = {"help": help, "group": group, "choices": tuple(choices), "own": own, "bounds": bounds, "also": also}
    return field(default=default, metadata=metadata)


NOT_ELASTIC = {
    "steps": "a step is another number of examples when ranks change; --epochs is not",
    "accumulate": "it commits whole steps of one pass",
    "patience": "an elastic job is not stopped on request",
    "time_limit": "an elastic job is not stopped on request",
    "requeue": "an elastic job is not stopped on request",
    "inject": "kill its processes instead",
    "step_times": "ranks have other numbers when they change",
    "watch_stragglers": "ranks have other numbers when they change",
    "autotune": "Horovod's search would begin anew whenever ranks change",
    "timeline": "Horovod begins its file anew whenever ranks change, and another host may then be rank 0's",
}


@dataclass(frozen=True)
class TrainConfig:
    """What to train, on what, how and where. Raises UsageError where a value is out of range."""

    # data and model
    data: str = knob(
        "mnist",
        "mnist, fashion-mnist, sample; a folder of pictures, TFRecord or IDX files; an .npz; MODULE:FUNCTION of yours",
        group="Data and model",
    )
    augment: str = knob(
        "shift",
        "random shifts of the training images by up to 2 pixels",
        group="Data and model",
        choices=("none", "shift"),
    )
    offline: bool = knob(False, "use the cache only; never download", group="Data and model")
    model: str = knob(
        "small",
        "the network: small, cnn, mlp, or MODULE:FUNCTION of yours",
        group="Data and model",
        choices=("small", "cnn", "mlp"),
        own=True,
    )
    dropout: bool = knob(
        True,
        "drop units at random while training; without, systems can be compared weight by weight",
        group="Data and model",
    )

    # how long
    epochs: int = knob(2, "passes over the training set", group="Length", least=1)
    steps: int | None = knob(None, "stop after so many steps instead of whole epochs", group="Length", least=1)
    target_accuracy: float | None = knob(
        None, "stop when the test accuracy reaches this, as in 0.99", group="Length", above=0.0, most=1.0
    )
    patience: int | None = knob(
        None, "stop after so many evaluations without a better test loss", group="Length", least=1
    )
    time_limit: float | None = knob(
        None, "seconds from the start after which to save and end with status 200", group="Length", above=0.0
    )
    evaluate_every: int = knob(1, "epochs between evaluations; the last one always happens", group="Length", least=1)

    # how
    batch_size: int = knob(128, "examples per rank and step (weak scaling)", group="Optimization", least=1)
    global_batch: int | None = knob(
        None,
        "examples per step over all ranks (strong scaling); instead of --batch-size",
        group="Optimization",
        least=1,
    )
    optimizer: str = knob("adam", "the update rule", group="Optimization", choices=("adam", "sgd"))
    learning_rate: float = knob(
        0.006, "rate for one rank; scaled as --lr-scaling says", group="Optimization", above=0.0
    )
    lr_scaling: str = knob(
        "sqrt",
        "multiply the rate by the number of ranks, by its square root, or not at all",
        group="Optimization",
        choices=("linear", "sqrt", "none"),
    )
    warmup_epochs: float = knob(
        0.5, "epochs in which the rate rises from a tenth to the whole", group="Optimization", least=0.0
    )
    warmup_steps: int | None = knob(
        None, "the same in steps; instead of --warmup-epochs", group="Optimization", least=0
    )
    schedule: str = knob(
        "cosine",
        "the rate after warm-up; plateau lowers it when evaluations find no better test loss",
        group="Optimization",
        choices=("cosine", "step", "constant", "plateau"),
    )
    plateau_patience: int = knob(
        2,
        "evaluations without a better test loss before --schedule plateau lowers the rate",
        group="Optimization",
        least=1,
    )
    precision: str = knob(
        "float32",
        "arithmetic of the layers",
        group="Optimization",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
    )
    compression: str = knob("none", "gradients on the wire", group="Optimization", choices=("none", "fp16", "bf16"))
    gradient_groups: int | None = knob(
        None,
        "exchange gradients in so many groups, last layers first, while others are computed (CPUs: for slow networks); "
        "default: one, over NCCL up to 8",
        group="Optimization",
        least=1,
    )
    accumulate: int = knob(1, "batches per rank between two exchanges of gradients", group="Optimization", least=1)
    seed: int = knob(1, "start of every random number: weights, shuffling, dropout", group="Optimization", least=0)
    deterministic: bool = knob(False, "refuse operations whose result may differ from run to run", group="Optimization")

    # where the results go
    run_dir: str | None = knob(None, "folder of this run; default runs/<data>-<model>-<time>", group="Run folder")
    resume: str = knob(
        "never",
        "auto continues the run in --run-dir from its newest complete checkpoint",
        group="Run folder",
        choices=("never", "auto"),
    )
    checkpoint_every: int | None = knob(
        None, "steps between checkpoints; default every epoch", group="Run folder", least=1
    )
    keep: int = knob(3, "checkpoints to keep, besides the best", group="Run folder", least=1)
    log_every: int = knob(20, "steps between lines of metrics.jsonl", group="Run folder", least=1)
    tensorboard: bool = knob(True, "write TensorBoard event files", group="Run folder")

    # the job
    threads: int | None = knob(
        None, "compute threads of a rank; default its share of the host's cores", group="Job", least=1
    )
    check_replicas_every: int | None = knob(
        None, "steps between comparisons of all replicas; default every epoch", group="Job", least=1
    )
    replica_tolerance: float = knob(
        0.0, "largest difference between replicas that still counts as equal; 0 compares bits", group="Job", least=0.0
    )
    stall_timeout: int = knob(300, "seconds to wait for a missing rank before the job fails", group="Job", least=5)
    requeue: bool = knob(
        False, "when preempted inside a Slurm job, put the job back into the queue after the save", group="Job"
    )
    timeline: str | None = knob(
        None,
        "have Horovod write what it does to this file, on rank 0 (docs/timeline.md)",
        group="Job",
        also=("--timeline-filename",),  # horovodrun reads the ranks' words too, and takes --timeline for two of its own
    )
    autotune: bool = knob(
        False,
        "let Horovod search its cycle time and fusion threshold for 1200 steps (docs/performance.md)",
        group="Job",
    )
    step_times: bool = knob(
        False, "time the parts of each step on each rank, into RUN/step-times.json (docs/scaling.md)", group="Job"
    )
    watch_stragglers: bool = knob(
        False, "say which rank is slow and makes the others wait, while they train (docs/scaling.md)", group="Job"
    )
    all_ranks: bool = knob(False, "let every rank speak on the console, not only rank 0", group="Job")
    log_level: str = knob(
        "info",
        "how much is shown: warning shows nothing else; debug shows what is only logged, and what TensorFlow and "
        "Horovod say; RUN/logs hold everything",
        group="Job",
        choices=LEVELS,
    )

    # ranks that come and go
    elastic: bool = knob(
        False, "go on when ranks are lost, use hosts that join; needs an elastic launcher", group="Elastic"
    )
    commit_every: int = knob(
        10, "steps between commits: what a lost rank costs at most, and where a host joins", group="Elastic", least=1
    )
    reset_limit: int = knob(
        10, "times that ranks may be lost or hosts change before the job fails", group="Elastic", least=0
    )

    # faults on purpose
    allow_faults: bool = knob(False, "allow --inject", group="Faults, to test recovery")
    inject: tuple[str, ...] = knob(
        (),
        "a fault, as in kill:rank=1,step=5 (docs/faults.md); may be given several times",
        group="Faults, to test recovery",
    )

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            _check(spec, getattr(self, spec.name))
        for spec in dataclasses.fields(self):
            lonely = spec.name in ("commit_every", "reset_limit") and getattr(self, spec.name) != spec.default
            if lonely and not self.elastic:
                raise UsageError(f"{flag(spec.name)} without --elastic", "--elastic")
            if spec.name == "plateau_patience" and self.schedule != "plateau" and self.plateau_patience != spec.default:
                raise UsageError("--plateau-patience without --schedule plateau", "--schedule plateau")
            if self.elastic and spec.name in NOT_ELASTIC and getattr(self, spec.name) != spec.default:
                raise UsageError(
                    f"{flag(spec.name)} with --elastic: {NOT_ELASTIC[spec.name]}",
                    f"leave {flag(spec.name)} out, or --elastic",
                )
        if self.elastic and self.schedule == "plateau":
            raise UsageError(
                "--schedule plateau with --elastic: when ranks change, so does the rate that a plateau would lower",
                "--schedule cosine, step or constant",
            )
        if is_own(self.model) and not self.dropout:
            raise UsageError(f"--no-dropout with --model {self.model}: your function decides that", "leave it out")
        if self.step_times and self.accumulate > 1:
            raise UsageError(
                f"--step-times with --accumulate {self.accumulate}: it times steps of one pass", "leave one of them out"
            )
        if self.requeue and (self.resume != "auto" or self.run_dir is None):
            raise UsageError(
                "--requeue runs this command again, which must go on where it stopped", "--resume auto --run-dir DIR"
            )
        if self.global_batch is not None and self.accumulate > 1 and self.global_batch % self.accumulate:
            raise UsageError(f"--global-batch {self.global_batch} does not divide by --accumulate {self.accumulate}")
        if isinstance(self.inject, str):  # one fault in a config file
            object.__setattr__(self, "inject", (self.inject,))
        for text in self.inject:
            if not self.allow_faults:
                raise UsageError(f"--inject {text} makes this job fail on purpose", "--allow-faults, if you mean it")
            faults.parse(text)

    def rank_batch(self, size: int) -> int:
        """Examples per rank and forward pass in a job of ``size`` ranks.

        Raises:
            UsageError: the global batch does not divide by ranks and accumulated passes.
        """
        if self.global_batch is None:
            return self.batch_size
        parts = size * self.accumulate
        if self.global_batch % parts:
            near = max(1, round(self.global_batch / parts)) * parts
            raise UsageError(
                f"--global-batch {self.global_batch} does not divide by {size} ranks x {self.accumulate} passes",
                f"--global-batch {near}",
            )
        return self.global_batch // parts


def flag(name: str) -> str:
    """The flag of a knob: batch_size -> --batch-size."""
    return "--" + name.replace("_", "-")


def _check(spec: dataclasses.Field[Any], value: Any) -> None:
    bounds, choices = spec.metadata["bounds"], spec.metadata["choices"]
    if value is None:
        return
    if spec.metadata["own"] and is_own(str(value)):
        return
    if choices and value not in choices:
        near = difflib.get_close_matches(str(value), choices, 1)
        or_own = " or MODULE:FUNCTION" if spec.metadata["own"] else ""
        raise UsageError(
            f"{flag(spec.name)} {value}: expected {', '.join(choices)}{or_own}",
            f"{flag(spec.name)} {near[0]}" if near else None,
        )
    orders: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
        ("least", lambda bound: value >= bound, "at least"),
        ("above", lambda bound: value > bound, "more than"),
        ("most", lambda bound: value <= bound, "at most"),
    )
    for name, holds, words in orders:
        bound = bounds[name]
        if bound is not None and not holds(bound):
            raise UsageError(f"{flag(spec.name)} {value}: expected {words} {bound}")


def read_config_file(path: str | Path) -> dict[str, Any]:
    """Knobs from a YAML (or JSON) file; keys as in TrainConfig, with - or _.

    Raises:
        UsageError: the file cannot be read, is no mapping, or has a key that is no knob (the near one is named).
    """
    import yaml

    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict):
        raise UsageError(f"--config {path}: expected 'knob: value' lines, found {type(loaded).__name__}")
    known = {spec.name for spec in dataclasses.fields(TrainConfig)}
    values = {}
    for key, value in loaded.items():
        name = str(key).replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(f"--config {path}: unknown key '{key}'", f"did you mean '{near[0]}'?" if near else None)
        values[name] = value
    return values
