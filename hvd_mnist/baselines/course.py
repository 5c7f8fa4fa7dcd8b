"""What every baseline shares, so that its own file tells only how it trains.

``prepare`` gives the work: the data, the network with its first weights, the plan of rates: the same for every system
and every number of replicas. A ``Course`` keeps the books of one run: run folder, records, evaluation on the whole test
set, checkpoints, summary; the same as those of ``hvd-mnist train`` (docs/run-folder.md).
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist import __version__, checkpoint, mistakes
from hvd_mnist.config import TrainConfig
from hvd_mnist.console import Console, count
from hvd_mnist.data import shard, sources
from hvd_mnist.errors import CheckpointError, NotFinite, UsageError
from hvd_mnist.own import is_own
from hvd_mnist.run_folder import SCHEMA, Records, default_name, write_json
from hvd_mnist.run_summary import config_record, versions
from hvd_mnist.runtime import traffic, world
from hvd_mnist.schedule import Plan, make_optimizer, scaled_rate


@dataclass(frozen=True)
class Work:
    """What there is to train.

    Attributes:
        model, optimizer: Keras objects, built; nothing of distribution is in them.
        replicas: towers or workers, each of which takes ``batch`` images at a time.
        images: in one update: all replicas' batches, or one where each replica updates on its own.
        per_epoch, total: updates.
    """

    config: TrainConfig
    arrays: sources.Arrays
    model: object
    optimizer: object
    plan: Plan
    replicas: int
    batch: int
    images: int
    per_epoch: int
    total: int

    def batches(self, epoch: int, first: int, steps: int, replica: int = 0, replicas: int = 1):
        """tf.data of (x, y): one replica's part of each global batch; with the defaults the whole of it."""
        from hvd_mnist.data.pipeline import batches

        return batches(
            self.arrays.train_images,
            self.arrays.train_labels,
            seed=self.config.seed,
            epoch=epoch,
            first_step=first,
            steps=steps,
            rank=replica,
            size=replicas,
            batch_size=self.batch * self.replicas // replicas,
            augment=self.config.augment,
        )


def prepare(config: TrainConfig, replicas: int, *, asynchronous: bool = False, notify=print) -> Work:
    """Data, network and plan. The same seed gives the same first weights in every process and system.

    Args:
        replicas: how many batches are computed side by side.
        asynchronous: each batch is an update of its own; the rate is then one replica's.

    Raises:
        UsageError: a setting that only ``train`` follows.
    """
    if config.schedule == "plateau":
        raise UsageError("--schedule plateau: only train follows the test loss", "--schedule cosine, step or constant")
    if is_own(config.model):
        raise UsageError(f"--model {config.model}: the older ways train small, cnn and mlp", "--model small")
    import keras
    import tensorflow as tf

    from hvd_mnist import models

    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(config.seed)
    arrays = sources.load(config.data, offline=config.offline, notify=notify)
    batch = config.rank_batch(replicas)
    rounds = shard.steps_per_epoch(len(arrays.train_images), batch * replicas)
    per_epoch = rounds * replicas if asynchronous else rounds
    total = config.steps or per_epoch * config.epochs
    model = models.build(config.model, (*arrays.train_images.shape[1:], 1)[:3], arrays.classes, dropout=config.dropout)
    peak = scaled_rate(config.learning_rate, 1 if asynchronous else replicas, config.lr_scaling)
    warmup = config.warmup_steps if config.warmup_steps is not None else round(config.warmup_epochs * per_epoch)
    plan = Plan(config.schedule, peak, min(warmup, max(0, total - 1)), total)
    optimizer = make_optimizer(config.optimizer, plan.to_keras())
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    optimizer.build(model.trainable_variables)
    images = batch if asynchronous else batch * replicas
    return Work(config, arrays, model, optimizer, plan, replicas, batch, images, per_epoch, total)


class Course:
    """The books of one run.

    Args:
        system: "single", "towers", ...; with a mode, as in "parameter-server (async)".
        where: what computes, for the banner: "3 devices", "2 workers, 1 ps".
        refresh: brings ``work.model`` and ``work.optimizer`` up to date where the weights live elsewhere.

    Raises:
        CheckpointError: the run folder is in use, or holds a run and ``resume`` is "never".
    """

    def __init__(
        self,
        system: str,
        work: Work,
        where: str,
        knob_sources: dict[str, str] | None = None,
        *,
        console: Console | None = None,
        refresh: Callable[[], None] = lambda: None,
    ):
        from hvd_mnist.evaluate import Evaluator

        config, arrays = work.config, work.arrays
        self.system, self.work, self.refresh = system, work, refresh
        self.console = console or Console()
        self.run = Path(config.run_dir or default_name(f"{config.data}-{system.split()[0]}", config.model)).absolute()
        self.lock = checkpoint.lock(self.run)
        self.best = None
        self.done = self._resume()
        rows = [
            ("system", f"{system}: {where}"),
            ("data", f"{arrays.name}: {len(arrays.train_images)} + {len(arrays.test_images)} images"),
            ("model", f"{config.model}, {work.model.count_params()} parameters"),
            ("batch", f"{work.batch} x {count(work.replicas, 'replica')}; {work.images} images in an update"),
            ("updates", f"{work.total} ({work.total / work.per_epoch:g} epochs of {work.per_epoch})"),
            ("learning rate", f"{work.plan.peak:g} at its peak, {work.plan.kind}"),
        ]
        self.console.table(f"hvd_mnist {__version__} baseline", rows)
        write_json(self.run / "config.json", config_record(config, knob_sources, rows))
        self.records = Records(self.run, tensorboard=config.tensorboard, from_step=self.done)
        self.records.describe(rows)
        self._evaluator = Evaluator(work.model, arrays, gather=lambda value, name: [value])
        self.evaluation, self.reached, self.step = None, False, self.done
        self.step_seconds, self._saved_at = 0.0, None
        self._started, self._cpu, self._traffic = time.perf_counter(), time.process_time(), traffic.counters()

    def _resume(self) -> int:
        folder, config, work = self.run / "checkpoints", self.work.config, self.work
        if config.resume == "never":
            if checkpoint.candidates(folder):
                raise CheckpointError(
                    f"{self.run} holds a run already", "--resume auto to continue it, or another --run-dir"
                )
            return 0
        found = checkpoint.latest(folder, notify=self.console.say)
        if found is None:
            return 0
        state = checkpoint.load_state(found.path)
        for name, mine in (("model", config.model), ("optimizer", config.optimizer), ("global_batch", work.images)):
            if state[name] != mine:
                raise CheckpointError(f"{found.path} was trained with {name} {state[name]}, this command says {mine}")
        checkpoint.restore_into(work.model, found.path)
        self.best = state["best_accuracy"]
        self.console.say(f"resuming from {found.path.name}")
        return state["step"]

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self._sums = epoch, [0.0, 0.0, 0]
        self._epoch_started = self._logged_at = time.perf_counter()
        self._logged = self.step

    def made(self, step: int, loss: float, accuracy: float) -> None:
        """This process has made a step and the run stands at update ``step``.

        Raises:
            NotFinite: the loss is NaN or infinite.
        """
        if not math.isfinite(loss):
            raise NotFinite(f"the loss is {loss} at step {step}", "lower --learning-rate, or raise --warmup-epochs")
        config, before = self.work.config, self.step
        self.step = step
        self._sums = [self._sums[0] + loss, self._sums[1] + accuracy, self._sums[2] + 1]
        if step // config.log_every > before // config.log_every:
            self._log()
        every = config.checkpoint_every
        if every and step // every > before // every and step < self.work.total:
            self.save(None)

    def _log(self) -> None:
        now, work = time.perf_counter(), self.work
        speed = (self.step - self._logged) * work.images / (now - self._logged_at)
        self._logged, self._logged_at = self.step, now
        loss, accuracy = self._sums[0] / self._sums[2], self._sums[1] / self._sums[2]
        rate = work.plan.rate(self.step - 1)
        values = {"loss": loss, "accuracy": accuracy, "learning_rate": rate, "images_per_second": speed}
        self.records.write("step", self.step, epoch=self.epoch, **values)
        self.console.advance(self.step, f"loss {loss:.4f}  accuracy {accuracy:.2%}  {speed:.0f} images/s")

    def end_epoch(self) -> bool:
        """Evaluate and save where it is due. True when the target accuracy has been reached."""
        config = self.work.config
        self.step_seconds += time.perf_counter() - self._epoch_started
        final = self.step >= self.work.total
        if final or (self.epoch + 1) % config.evaluate_every == 0:
            self.evaluate()
        if final or self.reached or config.checkpoint_every is None:
            self.save(self.evaluation.accuracy if self.evaluation else None)
        return self.reached

    def evaluate(self) -> None:
        self.refresh()
        found = self.evaluation = self._evaluator()
        target = self.work.config.target_accuracy
        self.reached = target is not None and found.accuracy >= target
        self.records.write("evaluation", self.step, **found.numbers())
        self.console.say(f"step {self.step}: test accuracy {found.accuracy:.2%} ({found.correct} of {found.examples})")

    def save(self, accuracy: float | None) -> None:
        """Write a checkpoint of this step; ``hvd-mnist evaluate`` and any system's --resume can read it."""
        if self.step == self._saved_at:
            return
        self.work.arrays.check_unchanged()
        self.refresh()
        self._saved_at, config, work = self.step, self.work.config, self.work
        self.best = max(accuracy, self.best or 0.0) if accuracy is not None else self.best
        state = {
            "step": self.step,
            "seed": config.seed,
            "world_size": work.replicas,
            "global_batch": work.images,
            "steps_per_epoch": work.per_epoch,
            "learning_rate": config.learning_rate,
            "lr_scaling": config.lr_scaling,
            "data_sha256": work.arrays.sha256,
            "model": config.model,
            "optimizer": config.optimizer,
            "best_accuracy": self.best,
        }
        folder = self.run / "checkpoints"
        saved = checkpoint.save(folder, work.model, state, step=self.step, keep=config.keep, metric=accuracy)
        self.records.write("checkpoint", self.step, seconds=saved.seconds, bytes=saved.bytes)

    def own_report(self, task: str, rank: int = 0, threads: int | None = None) -> dict:
        """What this process took since the course began."""
        return task_report(task, rank, threads, self._cpu, self._traffic)

    def finish(self, ranks: list[dict], **more) -> dict:
        """Write RUN/summary.json and say the result.

        Args:
            ranks: one report for each task that took part.
            more: what this system alone has to say.
        """
        if self.evaluation is None:
            self.evaluate()
        seconds, work, found = time.perf_counter() - self._started, self.work, self.evaluation
        made = self.step - self.done
        summary = {
            "schema": SCHEMA,
            "system": self.system,
            "world_size": work.replicas,
            "launcher": "none",
            "backend": "gRPC" if len(ranks) > 1 else "one process",
            "data": work.arrays.name,
            "data_is_sample": work.arrays.is_sample,
            "data_sha256": work.arrays.sha256,
            "model": work.config.model,
            "parameters": work.model.count_params(),
            "epochs": round(self.step / work.per_epoch, 4),
            "steps": self.step,
            "resumed_from_step": self.done,
            "global_batch": work.images,
            "learning_rate_peak": work.plan.peak,
            "test_accuracy": found.accuracy,
            "test_correct": found.correct,
            "test_examples": found.examples,
            "test_loss": found.loss,
            "target_accuracy": work.config.target_accuracy,
            "target_reached": self.reached if work.config.target_accuracy is not None else None,
            "images_per_second": round(made * work.images / self.step_seconds, 1) if self.step_seconds else None,
            "train_seconds": round(seconds, 2),
            "cpu_seconds": round(sum(each["cpu_seconds"] for each in ranks), 2),
            "ranks": ranks,
            **more,
            "versions": versions(),
        }
        write_json(self.run / mistakes.FILE, mistakes.record(found, work.arrays, f"step-{self.step:08d}"))
        write_json(self.run / "summary.json", summary)
        self.console.say(
            f"test accuracy {found.accuracy:.2%} ({found.correct} of {found.examples}), {count(self.step, 'step')}, "
            f"{seconds:.1f} s, {summary['cpu_seconds']:.1f} CPU s over {count(len(ranks), 'task')}\n"
            f"run folder {self.run}"
        )
        self.close()
        return summary

    def close(self) -> None:
        self.console.stop_progress()
        self.records.close()
        self.lock.release()


def task_report(task: str, rank: int, threads: int | None, cpu: float, bytes_before: dict) -> dict:
    """One task's entry in a summary: what it took since ``cpu`` and ``bytes_before``."""
    return {
        "rank": rank,
        "task": task,
        "host": world.hostname(),
        "pid": os.getpid(),
        "threads": threads,
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "traffic": traffic.since(bytes_before),
    }


def train_in_epochs(course: Course, step: Callable) -> None:
    """Make the course's updates one after the other in this process.

    Args:
        step: (x [images, height, width, channels], y [images]) -> (loss, accuracy), scalars; makes one update.
    """
    work = course.work
    course.console.start_progress(work.total, course.done)
    for epoch in range(course.done // work.per_epoch, -(-work.total // work.per_epoch)):
        first = max(course.done - epoch * work.per_epoch, 0)
        steps = min(work.per_epoch, work.total - epoch * work.per_epoch) - first
        course.begin_epoch(epoch)
        for number, (x, y) in enumerate(work.batches(epoch, first, steps), start=1):
            loss, accuracy = step(x, y)
            course.made(epoch * work.per_epoch + first + number, float(loss), float(accuracy))
        if course.end_epoch():
            break
    course.console.stop_progress()
