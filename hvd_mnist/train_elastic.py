"""Train while ranks are lost and hosts join: ``hvd-mnist train --elastic``. docs/elastic.md.

    hvd-mnist launch -np 2 --min-np 1 --max-np 4 --host-discovery-script ./hosts.sh -- train --elastic
    horovodrun --gloo -np 2 --min-np 1 --max-np 4 --host-discovery-script ./hosts.sh hvd-mnist train --elastic

The story is that of trainer.py, in another order. Whatever needs no other rank comes first, since others may be
waiting for this one; then ranks join; then ``go`` trains from wherever the committed state stands, and is called
again after each change of ranks. Where the run stands is counted in examples, which mean the same to any number of
ranks: the epoch, and how many places of its order are done. Rate, steps and shards follow from that (``terms``).
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path

from hvd_mnist import __version__, checkpoint, mistakes, own, trainer
from hvd_mnist.config import TrainConfig
from hvd_mnist.console import Console, count, library_defaults, progress_words
from hvd_mnist.data import shard, sources
from hvd_mnist.errors import CheckpointError, PeerLost, UsageError
from hvd_mnist.run_folder import Records, default_name, write_json
from hvd_mnist.run_summary import config_record, effective_settings, job_and_data, quality, summary_text, versions
from hvd_mnist.runtime import agreement, devices, garbage, world
from hvd_mnist.schedule import Plan, make_optimizer, scaled_rate

LOCK_SECONDS = 20.0  # for the process of a lost rank 0 to be gone, which holds the run folder


@dataclass(frozen=True)
class Terms:
    """What follows from the number of ranks: derived at the start, and anew after each reset."""

    size: int
    batch: int  # examples of a rank in one step
    global_batch: int
    per_epoch: int  # steps of a whole epoch
    plan: Plan

    def iterations(self, epoch: int, samples: int) -> int:
        """The step at which the plan of rates stands, when ``samples`` places of an epoch are done."""
        return epoch * self.per_epoch + samples // self.global_batch


def terms(config: TrainConfig, examples: int, size: int) -> Terms:
    """Batches, steps and rates of ``size`` ranks. A global batch that they cannot share becomes the nearest one."""
    batch = config.batch_size if config.global_batch is None else max(1, round(config.global_batch / size))
    per_epoch = shard.steps_per_epoch(examples, batch * size)
    total = per_epoch * config.epochs
    warmup = config.warmup_steps if config.warmup_steps is not None else round(config.warmup_epochs * per_epoch)
    peak = scaled_rate(config.learning_rate, size, config.lr_scaling)
    return Terms(
        size, batch, batch * size, per_epoch, Plan(config.schedule, peak, min(warmup, max(0, total - 1)), total)
    )


@dataclass
class Here:
    """What this process keeps over resets and shares with no other."""

    born: float
    lock: checkpoint.RunLock | None = None
    stepped_at: float | None = None  # when its last step was done, by the monotonic clock
    step: int = 0  # of the last one, lost or not
    size: int = 0
    was_reset: bool = False  # since that step
    proofs: list = field(default_factory=list)


@garbage.searched_less()
def train_elastic(config: TrainConfig, knob_sources: dict[str, str] | None = None) -> dict:
    """Train, evaluate, report, over changes of ranks.

    Args:
        config: every knob.
        knob_sources: for each knob, where its value came from; recorded in config.json.

    Returns:
        The summary, as in RUN/summary.json (rank 0's: counts of comparisons are those of each rank's own time).

    Raises:
        HvdMnistError: one of the tree; PeerLost after more resets than ``reset_limit``.
    """
    mine = Here(born=time.time())

    # -- By itself: GPU, data, model. Others may be waiting for this rank ---------------------------------------
    os.environ.update({**library_defaults(config.log_level), **os.environ})
    identity = world.prepare_environment()
    if identity.size > 1 and identity.launcher != "horovod-elastic":
        raise UsageError(
            f"--elastic under {identity.launcher}, which ends all ranks when one is lost",
            "hvd-mnist launch -np 2 --min-np 1 --host-discovery-script ./hosts.sh -- train --elastic",
        )
    threads = config.threads or devices.my_threads(identity.local_size or 1)
    gpu = devices.pin(identity.local_rank or 0, identity.local_size or 1, identity.host, threads)
    import keras
    import tensorflow as tf

    import hvd_mnist.keras as hvd
    from hvd_mnist import models
    from hvd_mnist.data.pipeline import batches, data_failure
    from hvd_mnist.evaluate import Evaluator
    from hvd_mnist.keras.replicas import layout
    from hvd_mnist.training_callbacks import dropout_streams_of

    garbage.settle()
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision)
    arrays = sources.load(config.data, offline=config.offline)
    examples = len(arrays.train_images)
    image_shape = arrays.train_images.shape[1:]
    model = models.build(config.model, (*image_shape, 1)[:3], arrays.classes, dropout=config.dropout)
    optimizer = hvd.DistributedOptimizer(
        make_optimizer(config.optimizer, terms(config, examples, 1).plan.to_keras()),
        name="Elastic",  # the same for a rank that made other optimizers before and for one that has just joined
        compression=getattr(hvd.Compression, config.compression),
        groups=config.gradient_groups,
    )
    models.compile_for_digits(model, optimizer)

    # -- Join, and share one state: where the run stands ---------------------------------------------------------
    world.join(config.stall_timeout)
    state = hvd.elastic.KerasState(
        model, optimizer, run=None, epoch=0, samples=0, step=0, resets=0, changes=(), best_accuracy=None, reached=False
    )

    def after_reset():
        state.resets += 1
        mine.was_reset = mine.size > 0
        state.save()

    state.register_reset_callbacks([after_reset])

    @hvd.elastic.run
    def go(state):
        """From wherever ``state`` stands to the end, with the ranks that are here now."""
        here = world.join(config.stall_timeout)
        if state.resets > config.reset_limit:
            raise PeerLost(
                f"ranks were lost or changed {count(state.resets, 'time')}, more than --reset-limit "
                f"{config.reset_limit}",
                "see which hosts fail; then the same command with --resume auto, or a larger --reset-limit",
            )
        trainer.check_same_command(config)
        trainer.check_own_gpus(here, gpu)
        agreement.agree(
            {
                **agreement.own_code(own.files(config.data, config.model)),
                "data": arrays.sha256,
                "model": layout(model),
            }
        )
        begins = state.run is None
        if begins:
            name = config.run_dir or default_name(config.data, config.model)
            state.run = world.root_json(str(Path(name).absolute()), "run_dir")
        run = Path(state.run)
        world.on_every_rank(lambda: here.is_root and claim(mine, run, patient=not begins), "run_folder")
        prefix = f"[{here.rank}] " if config.all_ranks else ""
        console = Console(here.rank, here.is_root or config.all_ranks, prefix, level=config.log_level)
        console.open_log(run / "logs" / f"rank-{here.rank}.log")
        console.log(f"rank {here.rank} of {here.size}, host {here.host}, pid {os.getpid()}, resets {state.resets}")

        # -- Same start: the newest checkpoint when the job begins, the last commit after a reset ----------------
        if begins:
            found = world.root_json(
                world.on_every_rank(lambda: read_newest(here, run, console), "checkpoint"), "resume"
            )
            resume(state, found)
            state.save()
            state.sync()
        now = terms(config, examples, here.size)
        optimizer.learning_rate = now.plan.to_keras()
        optimizer.iterations.assign(now.iterations(state.epoch, state.samples))
        dropout_streams_of(model, config.seed, here.rank)
        records = Records(run if here.is_root else None, tensorboard=config.tensorboard, from_step=state.step)
        say_terms(here, now, console)
        proof = hvd.callbacks.ReplicaCheckCallback(config.check_replicas_every, config.replica_tolerance)
        proof.set_model(model)
        mine.proofs.append(proof)
        finite = hvd.callbacks.TerminateOnNaN(
            run / "logs", hint="lower --learning-rate, or raise --warmup-epochs", gradients=True
        )
        finite.set_model(model)
        averages = hvd.callbacks.MetricAverageCallback()
        evaluator = Evaluator(model, arrays, rank=here.rank, size=here.size)
        evaluation = None

        def save(accuracy):
            """Rank 0 writes, all wait until it is done."""
            if accuracy is not None:
                state.best_accuracy = max(accuracy, state.best_accuracy or 0.0)
            hvd.average_moving_statistics(model)
            finite.check()
            world.on_every_rank(arrays.check_unchanged, "data.unchanged")
            proof.check(f"before the save after step {state.step}")

            def write():
                if here.is_root:
                    kept = checkpoint_state(config, state, now, arrays.sha256)
                    return checkpoint.save(
                        run / "checkpoints", model, kept, step=state.step, keep=config.keep, metric=accuracy
                    )

            saved = world.on_every_rank(write, "checkpoint.save")
            if saved is not None:
                records.write("checkpoint", state.step, seconds=saved.seconds, bytes=saved.bytes)

        def after_step(batch, logs):
            state.step += 1
            state.samples += now.global_batch
            note_change(here, records, console)
            if state.step % config.log_every == 0:
                at = now.iterations(state.epoch, state.samples)
                loss, accuracy = float(logs["loss"]), float(logs["accuracy"])
                rate = now.plan.rate(at - 1)
                records.write(
                    "step", state.step, epoch=state.epoch, loss=loss, accuracy=accuracy, learning_rate=rate,
                    world_size=here.size,
                )  # fmt: skip
                console.advance(at, progress_words(state.epoch, loss, accuracy, rate))
            epoch_is_done = shard.steps_left(examples, state.samples, now.global_batch) == 0
            if config.checkpoint_every and state.step % config.checkpoint_every == 0 and not epoch_is_done:
                save(None)
            if state.step % config.commit_every == 0 or epoch_is_done:
                state.commit()  # a host that has joined ends this call of ``go`` here

        # -- Fit: what is left of this epoch, then the others ----------------------------------------------------
        with contextlib.ExitStack() as closing:
            closing.callback(console.close)
            closing.callback(records.close)
            closing.enter_context(console.progress(now.plan.total, now.iterations(state.epoch, state.samples)))
            while state.epoch < config.epochs and not state.reached:
                left = shard.steps_left(examples, state.samples, now.global_batch)
                if left:
                    dataset = batches(
                        arrays.train_images,
                        arrays.train_labels,
                        seed=config.seed,
                        epoch=state.epoch,
                        first_step=0,
                        steps=left,
                        rank=here.rank,
                        size=here.size,
                        batch_size=now.batch,
                        augment=config.augment,
                        start=state.samples,
                    )
                    steps = keras.callbacks.LambdaCallback(on_train_batch_end=after_step)
                    try:
                        model.fit(
                            dataset,
                            epochs=state.epoch + 1,
                            initial_epoch=state.epoch,
                            verbose=0,
                            shuffle=False,
                            callbacks=[averages, finite, proof, steps],
                        )
                    except tf.errors.OpError as error:
                        raise hvd.proof_failure(optimizer) or data_failure(error) or error from None
                final = state.epoch + 1 == config.epochs
                evaluation = None
                if final or (state.epoch + 1) % config.evaluate_every == 0:
                    hvd.average_moving_statistics(model)
                    evaluation = evaluator()
                    records.write("evaluation", state.step, **evaluation.numbers())
                    console.say(f"epoch {state.epoch + 1}: test accuracy {evaluation.accuracy:.2%}")
                    state.reached = config.target_accuracy is not None and evaluation.accuracy >= config.target_accuracy
                state.epoch, state.samples = state.epoch + 1, 0
                optimizer.iterations.assign(now.iterations(state.epoch, 0))
                if final or state.reached or config.checkpoint_every is None:
                    save(evaluation.accuracy if evaluation else None)
                state.commit()
            if evaluation is None:
                evaluation = evaluator()

            # -- Report --------------------------------------------------------------------------------------------
            summary = summary_of(here, now, evaluation)
            if here.is_root:
                write_json(run / mistakes.FILE, mistakes.record(evaluation, arrays, f"step-{state.step:08d}"))
                write_json(run / "summary.json", summary)
            console.say(summary_text(summary, run))
            world.barrier("end")  # whoever is lost before this is still made up for
            return summary

    def say_terms(here, now, console):
        """The banner at the start; one line after a reset."""
        if mine.size:
            lost = max(0, mine.step - state.step)
            again = f" ({count(lost, 'step')} made again)" if lost else ""
            console.warn(
                f"{count(mine.size, 'rank')} became {here.size}: on from step {state.step}{again}, epoch "
                f"{state.epoch + 1}, {state.samples} of {examples} examples done; global batch {now.global_batch}, "
                f"peak rate {now.plan.peak:g}"
            )
        elif state.resets == 0:
            banner = effective_settings(
                config, here, arrays, gpu, threads, model, now.global_batch, now.per_epoch, now.plan.total, now.plan
            )
            console.table(f"hvd_mnist {__version__}, elastic", banner)
            if here.is_root:
                write_json(Path(state.run) / "config.json", config_record(config, knob_sources, banner))

    def note_change(here, records, console):
        """After the first step that follows a reset: how many steps it cost, and how many seconds."""
        if mine.was_reset:
            change = {
                "step": state.step,
                "epoch": state.epoch,
                "samples": state.samples,
                "world_size": here.size,
                "before": mine.size,
                "lost_steps": max(0, mine.step - state.step + 1),
                "seconds": round(time.monotonic() - mine.stepped_at, 2),
            }
            state.changes = (*state.changes, change)
            records.write("reset", **change)
            console.warn(
                f"training again, {change['seconds']:.1f} s after the last step with {count(mine.size, 'rank')}"
            )
        mine.stepped_at, mine.step, mine.size, mine.was_reset = time.monotonic(), state.step, here.size, False

    def read_newest(here, run, console):
        return trainer.restore(run / "checkpoints", model, config, console) if here.is_root else None

    def summary_of(here, now, evaluation):
        own = {
            "rank": here.rank,
            "host": here.host,
            "gpu": gpu,
            "threads": threads,
            "cpu_seconds": round(time.process_time(), 2),
            "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }
        ranks = world.gather_json(own, "summary")
        return {
            **job_and_data(here, arrays, config, model),
            "epochs": state.epoch,
            "steps": state.step,
            "resets": state.resets,
            "changes": list(state.changes),
            "global_batch": now.global_batch,
            "learning_rate_peak": now.plan.peak,
            **quality(evaluation, config, state.reached),
            "train_seconds": round(time.time() - mine.born, 2),
            "cpu_seconds": round(sum(rank["cpu_seconds"] for rank in ranks), 2),
            "ranks": ranks,
            "proof": {
                "held": True,  # ReplicasDiffer has been raised otherwise
                "first_step_gradients": bool(mine.step),
                "comparisons": sum(proof.checks for proof in mine.proofs),
                "tolerance": config.replica_tolerance,
                "seconds": round(sum(proof.seconds for proof in mine.proofs), 3),
            },
            "versions": versions(),
        }

    summary = go(state)
    hvd.shutdown()
    if mine.lock is not None:
        mine.lock.release()
    return summary


def claim(mine: Here, run: Path, patient: bool) -> None:
    """On rank 0: hold the run folder. A lost rank 0 lets go of it when its process has ended."""
    until = time.monotonic() + LOCK_SECONDS
    while mine.lock is None:
        try:
            mine.lock = checkpoint.lock(run)
        except CheckpointError:
            if not patient or time.monotonic() > until:
                raise
            time.sleep(0.5)


def resume(state, found: dict | None) -> None:
    """Put ``state`` where a checkpoint stands; one that trainer.py wrote counts steps, and is converted."""
    if found is None:
        return
    if "samples" in found:
        state.epoch, state.samples = found["epoch"], found["samples"]
    else:
        state.epoch, rest = divmod(found["step"], found["steps_per_epoch"])
        state.samples = rest * found["global_batch"]
    state.step, state.best_accuracy = trainer.updates_in(found), found["best_accuracy"]


def checkpoint_state(config: TrainConfig, state, now: Terms, data_sha256: str) -> dict:
    """state.json of a checkpoint: ``samples`` places of epoch ``epoch`` are done, after ``step`` updates in all."""
    return {
        "seed": config.seed,
        "world_size": now.size,
        "global_batch": now.global_batch,
        "steps_per_epoch": now.per_epoch,
        "learning_rate": config.learning_rate,
        "lr_scaling": config.lr_scaling,
        "data_sha256": data_sha256,
        "model": config.model,
        "optimizer": config.optimizer,
        "best_accuracy": state.best_accuracy,
        "step": state.step,
        "epoch": state.epoch,
        "samples": state.samples,
    }
