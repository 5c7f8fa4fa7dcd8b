"""What happens around the trainer's steps: progress, records, checkpoints. None of it enters the step."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from hvd_mnist import checkpoint
from hvd_mnist.console import Console, progress_words
from hvd_mnist.keras.preemption import PreemptionCallback
from hvd_mnist.keras.step_clock import StepClock
from hvd_mnist.run_folder import Records
from hvd_mnist.runtime import ending, garbage, world
from hvd_mnist.schedule import PLATEAU_FACTOR, Plan


def dropout_streams_of(model, seed: int, rank: int) -> None:
    """Give each rank random numbers of its own in dropout and the like, at the place where the root's stand.

    A Keras seed state is [stream, position]. The stream becomes a function of (seed, rank, layer), the position
    stays as broadcast: a resumed run draws the same numbers as one that was never interrupted.
    """
    for number, variable in enumerate(v for v in model.variables if v.name == "seed_generator_state"):
        digest = hashlib.blake2b(f"{seed} {rank} {number}".encode(), digest_size=4).digest()
        stream = int.from_bytes(digest, "big") % 2**31
        variable.assign([stream, int(np.asarray(variable)[1])])


class Progress(keras.callbacks.Callback):
    """Counts steps, speaks, and records: rank 0's own loss while steps run, all ranks' mean at an epoch's end.

    Args:
        done: steps made before this job (a resume).
        per_epoch: steps in an epoch.
        images: images in a step, over all ranks.
        accumulate: batches in a step.
        log_every: steps between records.
        rate: the rate of a step; default the plan's.
        clock: measures this rank's exchanges of gradients; None where nothing does.
    """

    def __init__(
        self,
        console: Console,
        records: Records,
        plan: Plan,
        *,
        done,
        per_epoch,
        images,
        accumulate,
        log_every,
        rate=None,
        clock: StepClock | None = None,
    ):
        super().__init__()
        self.console, self.records, self.plan, self.rate = console, records, plan, rate or plan.rate
        self.step, self.per_epoch, self.images = done, per_epoch, images
        self.accumulate, self.log_every, self.clock = accumulate, log_every, clock
        self.steps_made, self.train_seconds = 0, 0.0

    def begin_epoch(self, epoch: int, first: int) -> None:
        """Epoch ``epoch`` begins at its step ``first``."""
        self.epoch, self.step = epoch, epoch * self.per_epoch + first
        self._batches = 0
        self._since = (self._epoch_started, *_) = self._now()

    def _now(self) -> tuple[float, int, float]:
        """Seconds, steps made, and seconds that this rank was in exchanges of gradients."""
        return time.perf_counter(), self.steps_made, self.clock.seconds_exchanging() if self.clock else 0.0

    def on_train_batch_begin(self, batch, logs=None):
        ending.doing(f"in step {self.step + 1}")

    def on_train_batch_end(self, batch, logs=None):
        self._batches += 1
        if self._batches % self.accumulate:
            return
        self.step += 1
        self.steps_made += 1
        if self.step % self.log_every:
            return
        before, self._since = self._since, self._now()
        seconds, steps, exchanging = (now - then for now, then in zip(self._since, before, strict=True))
        speed = steps * self.images / seconds
        communication = exchanging / seconds if self.clock else None
        rate = self.rate(self.step - 1)
        loss, accuracy = float(logs["loss"]), float(logs["accuracy"])
        self.records.write(
            "step",
            self.step,
            epoch=self.epoch,
            loss=loss,
            accuracy=accuracy,
            learning_rate=rate,
            images_per_second=speed,
            communication=communication,
        )
        left = (self.plan.total - self.step) * self.images / speed
        self.console.advance(self.step, progress_words(self.epoch, loss, accuracy, rate, speed, communication), left)

    def on_epoch_end(self, epoch, logs=None):
        self.train_seconds += time.perf_counter() - self._epoch_started
        self.records.write("epoch", self.step, epoch=epoch, **logs)
        self.console.log(f"epoch {epoch + 1} done: {logs}")

    def evaluated(self, step: int, evaluation) -> None:
        """Say and record what an evaluation found."""
        self.records.write("evaluation", step, **evaluation.numbers())
        self.console.say(
            f"epoch {self.epoch + 1}: test accuracy {evaluation.accuracy:.2%} "
            f"({evaluation.correct} of {evaluation.examples}), test loss {evaluation.loss:.4f}"
        )


class FirstStepUnsearched(keras.callbacks.Callback):
    """No search for garbage while the first step is traced and made (runtime/garbage.py)."""

    made = False

    def on_train_begin(self, logs=None):
        if not self.made:
            garbage.pause()

    def on_train_batch_end(self, batch, logs=None):
        if not self.made:
            self.made = True
            garbage.settle()


class Checkpoints(keras.callbacks.Callback):
    """Rank 0 writes; every rank waits until the file is complete, so that no rank runs ahead of a failed save.

    What is saved has been proven: the replicas are equal and finite. A run that goes on from a checkpoint could not
    tell otherwise that it goes on from spoiled weights.

    Args:
        folder: RUN/checkpoints on rank 0, None on the others.
        state: what the trainer wants to find again; step and updates are added.
        ahead: updates made in all, less the step at which this job begins. They differ where a checkpoint was written
            at another global batch; folders are numbered by updates, so that the newest has the highest number.
        every: steps between saves inside an epoch, or None.
        keep: how many to keep besides the best.
        proof: compares the replicas.
        during: called with the step on every rank while rank 0's save is half written; fault injection does.
    """

    def __init__(
        self, folder: Path | None, state: dict, *, ahead, every: int | None, keep: int, records: Records, proof, during
    ):
        super().__init__()
        self.proof, self.during, self.ahead = proof, during, ahead
        self.folder, self.state, self.every, self.keep, self.records = folder, state, every, keep, records
        self.before_save: Callable[[], None] | None = None
        self._saved_at = None

    def begin_epoch(self, epoch: int, first: int, last: int, accumulate: int) -> None:
        """Epoch ``epoch`` makes its steps ``first`` to ``last`` (exclusive)."""
        self._epoch, self._first, self._last, self._accumulate, self._batches = epoch, first, last, accumulate, 0

    def on_train_batch_end(self, batch, logs=None):
        self._batches += 1
        passes, rest = divmod(self._batches, self._accumulate)
        step_in_epoch = self._first + passes
        if not self.every or rest or step_in_epoch == self._last:
            return  # the epoch's last step is saved after its evaluation
        step = self.state["steps_per_epoch"] * self._epoch + step_in_epoch
        if step % self.every == 0:
            self.save(step, None)

    def save(self, step: int, accuracy: float | None) -> None:
        """Write a checkpoint now; every rank must call it."""
        if step == self._saved_at:
            return
        if self.before_save is not None:
            self.before_save()
        self._saved_at = step
        if accuracy is not None:
            self.state["best_accuracy"] = max(accuracy, self.state["best_accuracy"] or 0.0)
        self.state |= {"step": step, "updates": step + self.ahead}
        ending.doing(f"in the save after step {step}")
        self.proof.check(f"before the save after step {step}")

        def write():
            if self.folder is None:
                return self.during(step)
            return checkpoint.save(
                self.folder,
                self.model,
                self.state,
                step=step + self.ahead,
                keep=self.keep,
                metric=accuracy,
                during=lambda: self.during(step),
            )

        saved = world.on_every_rank(write, "checkpoint.save")
        if saved is not None:
            self.records.write("checkpoint", step, seconds=saved.seconds, bytes=saved.bytes)

    def newest(self) -> str:
        """``saved as step 12``: the last save of this job, in words."""
        return "nothing was saved" if self._saved_at is None else f"saved at step {self._saved_at}"


class Preemption(PreemptionCallback):
    """Stop and save as asked; in an epoch's last step only after its evaluation, when the trainer calls ``act``."""

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 < self.params["steps"]:
            self.act()


class Patience:
    """Ends training after ``limit`` evaluations in a row without a better test loss; None never does.

    Every rank has the same evaluation, so every rank ends at the same one.
    """

    def __init__(self, limit: int | None, best_loss: float | None = None, worse_evaluations: int = 0):
        self.limit, self.best_loss, self.worse = limit, best_loss, worse_evaluations

    @staticmethod
    def part_of(state: dict | None) -> dict:
        """What a checkpoint's state says of it; {} where there is none."""
        return {name: state[name] for name in ("best_loss", "worse_evaluations") if name in (state or {})}

    def state(self) -> dict:
        """What to save."""
        return {"best_loss": self.best_loss, "worse_evaluations": self.worse}

    def evaluated(self, loss: float) -> None:
        """Take in one evaluation."""
        better = self.best_loss is None or loss < self.best_loss
        self.best_loss, self.worse = (loss, 0) if better else (self.best_loss, self.worse + 1)

    @property
    def is_over(self) -> bool:
        return self.limit is not None and self.worse >= self.limit


class Plateau(keras.callbacks.Callback):
    """The rate of ``--schedule plateau``: warm-up, the peak, and less after evaluations that found nothing better.

    Every rank has the same evaluation, so every rank lowers its rate at the same step.

    Args:
        patience: evaluations in a row without a better test loss before the rate is lowered.
        state: what ``state`` gave when the checkpoint was written; None at the start.
    """

    def __init__(self, plan: Plan, progress_step: Callable[[], int], patience: int, state: dict | None = None):
        super().__init__()
        self.plan, self._progress_step = plan, progress_step
        state = state or {}
        self.factor = state.get("factor", 1.0)
        self._patience = Patience(patience, **Patience.part_of(state))
        self._set = None

    def rate(self, step: int) -> float:
        """The rate that step ``step`` (from 0) uses."""
        return self.plan.rate(step) * self.factor

    def on_train_batch_begin(self, batch, logs=None):
        rate = self.rate(self._progress_step())
        if rate != self._set:
            self.model.optimizer.learning_rate.assign(rate)
            self._set = rate

    def evaluated(self, loss: float) -> bool:
        """Take in one evaluation; whether the rate falls now."""
        self._patience.evaluated(loss)
        falls = self._patience.is_over
        if falls:
            self.factor *= PLATEAU_FACTOR
            self._patience.worse = 0
        return falls

    def state(self) -> dict:
        """What to save."""
        return {"factor": self.factor, **self._patience.state()}
