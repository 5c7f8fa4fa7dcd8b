"""Train on every rank of a job, or alone.

    hvd-mnist train                                            one process: one GPU, or a CPU
    horovodrun -np 2 -H localhost:2 hvd-mnist train            two ranks on this machine
    horovodrun -np 8 -H host1:4,host2:4 hvd-mnist train        two machines with four GPUs each
    mpirun -np 8 --hostfile hosts hvd-mnist train              the same on an HPC system

The story runs from top to bottom in ``train``: every rank takes the same path to every collective; only
writing and speaking are rank 0's alone.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import sys
import time
from pathlib import Path

from hvd_mnist import __version__, checkpoint, mistakes, own
from hvd_mnist.cluster.identity import identity_from
from hvd_mnist.config import TrainConfig
from hvd_mnist.console import Console, count, library_defaults
from hvd_mnist.data import shard
from hvd_mnist.errors import CheckpointError, Preempted, UsageError
from hvd_mnist.faults import Faults
from hvd_mnist.run_folder import SCHEMA, Records, default_name, write_json
from hvd_mnist.run_summary import config_record, effective_settings, job_and_data, quality, summary_text, versions
from hvd_mnist.runtime import agreement, autotune, devices, ending, garbage, slurm_requeue, timeline, traffic, world
from hvd_mnist.schedule import Plan, make_optimizer, scaled_rate


@garbage.searched_less()
def train(config: TrainConfig, knob_sources: dict[str, str] | None = None) -> dict:
    """Train, evaluate, report.

    Args:
        config: every knob.
        knob_sources: for each knob, where its value came from; recorded in config.json.

    Returns:
        The summary, as in RUN/summary.json, the same on every rank but for its seconds.

    Raises:
        HvdMnistError: one of the tree; ReplicasDiffer if the proof fails.
    """
    born = time.time()

    # -- Join the world ---------------------------------------------------------------------------------------
    os.environ.update({**library_defaults(config.log_level), **os.environ})
    if config.autotune:
        autotune.request(identity_from(os.environ).rank)
    refused = config.timeline and timeline.request(config.timeline, world.prepare_environment().rank)
    here = world.join(config.stall_timeout)
    prefix = f"[{here.rank}] " if config.all_ranks else ""
    alone = here.identity.launcher == "none"
    console = Console(here.rank, here.is_root or config.all_ranks, prefix, bar=alone, level=config.log_level)

    # -- Pin the GPU, take this rank's share of the cores ------------------------------------------------------
    threads = config.threads or devices.my_threads(here.local_size)
    gpu = devices.pin(here.local_rank, here.local_size, here.host, threads)
    check_same_command(config)
    if config.timeline:
        world.on_every_rank(lambda: timeline.confirm(refused), "timeline")
    check_own_gpus(here, gpu)
    faults = Faults(config.inject, here.rank, here.size, here.host)
    import keras
    import tensorflow as tf

    import hvd_mnist.keras as hvd
    from hvd_mnist import injection, models
    from hvd_mnist.data import stream
    from hvd_mnist.evaluate import Evaluator
    from hvd_mnist.keras.replicas import layout
    from hvd_mnist.keras.step_clock import clock_of
    from hvd_mnist.keras.step_times import COLUMNS, StepTimes
    from hvd_mnist.keras.stragglers import StragglerCallback
    from hvd_mnist.training_callbacks import (
        Checkpoints,
        FirstStepUnsearched,
        Patience,
        Plateau,
        Preemption,
        Progress,
        dropout_streams_of,
    )

    garbage.settle()
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision)

    # -- Open the run folder: rank 0 writes, each rank has a log file of its own -------------------------------
    run = Path(world.root_json(config.run_dir or default_name(config.data, config.model), "run_dir")).absolute()
    lock = world.on_every_rank(lambda: checkpoint.lock(run) if here.is_root else None, "run_folder")
    console.open_log(run / "logs" / f"rank-{here.rank}.log")
    ending.watch(run / "logs", here.rank, here.size, world.stall_warning_seconds(config.stall_timeout))
    console.hear_python()
    console.log(f"rank {here.rank} of {here.size}, local rank {here.local_rank}, host {here.host}, pid {os.getpid()}")

    # -- Shard the data ----------------------------------------------------------------------------------------
    if config.requeue:
        world.on_every_rank(lambda: slurm_requeue.check(os.environ) if here.is_root else None, "requeue")

    def read_data():
        faults.read_data("step", 0)
        mine = {"rank": here.rank, "size": here.size, "seed": config.seed}
        return stream.load(config.data, **mine, offline=config.offline, notify=console.say)

    arrays = world.on_every_rank(read_data, "data").with_all_ranks()
    batch = config.rank_batch(here.size)
    global_batch = batch * here.size * config.accumulate
    per_epoch = shard.steps_per_epoch(arrays.train_examples, global_batch)
    total = config.steps or per_epoch * config.epochs
    if config.autotune and total < autotune.steps():
        console.warn(f"--autotune takes about {autotune.steps()} steps to settle, this run has {total}")

    # -- Build the model ---------------------------------------------------------------------------------------
    model = models.build(config.model, arrays.image_shape, arrays.classes, dropout=config.dropout)

    # -- Distribute the optimizer: hvd_mnist/keras/optimizer.py averages the gradients --------------------------
    peak = scaled_rate(config.learning_rate, here.size, config.lr_scaling)
    warmup = config.warmup_steps if config.warmup_steps is not None else round(config.warmup_epochs * per_epoch)
    plan = Plan(config.schedule, peak, min(warmup, max(0, total - 1)), total)
    optimizer = hvd.DistributedOptimizer(
        make_optimizer(config.optimizer, plan.to_keras()),
        compression=getattr(hvd.Compression, config.compression),
        groups=config.gradient_groups,
        backward_passes_per_step=config.accumulate,
        average_aggregated_gradients=True,
    )
    models.compile_for_digits(model, optimizer)
    optimizer.build(model.trainable_variables)

    agreement.agree(
        {
            **agreement.own_code(own.files(config.data, config.model)),
            "data": arrays.sha256,
            "model": layout(model),
            "steps": {"steps": total, "steps_per_epoch": per_epoch, "batch": batch},
        }
    )

    def fold_warnings():
        console.show_folded(world.gather_json(console.take_warnings(), "warnings"))

    fold_warnings()

    # -- Same start on every rank: the newest complete checkpoint, or rank 0's initial variables ----------------
    def read_checkpoint():
        return restore(run / "checkpoints", model, config, console) if here.is_root else None

    found = world.root_json(world.on_every_rank(read_checkpoint, "checkpoint"), "resume")
    done = _place(found, optimizer, global_batch, per_epoch, console)
    proof = hvd.callbacks.BroadcastGlobalVariablesCallback(
        0, check_replicas_every=config.check_replicas_every, tolerance=config.replica_tolerance
    )
    proof.set_model(model)
    if not faults.due("skip-collective", "step", 0):
        proof.broadcast()
    dropout_streams_of(model, config.seed, here.rank)

    banner = effective_settings(config, here, arrays, gpu, threads, model, global_batch, per_epoch, total, plan)
    console.table(f"hvd_mnist {__version__}", banner)
    if here.is_root:
        write_json(run / "config.json", config_record(config, knob_sources, banner))

    # -- Fit ---------------------------------------------------------------------------------------------------
    records = Records(run if here.is_root else None, tensorboard=config.tensorboard, from_step=done)
    records.describe(banner)
    state = {
        "seed": config.seed,
        "world_size": here.size,
        "global_batch": global_batch,
        "steps_per_epoch": per_epoch,
        "learning_rate": config.learning_rate,
        "lr_scaling": config.lr_scaling,
        "data_sha256": arrays.sha256,
        "model": config.model,
        "optimizer": config.optimizer,
        "best_accuracy": (found or {}).get("best_accuracy"),
    }
    saves = Checkpoints(
        run / "checkpoints" if here.is_root else None,
        state,
        ahead=updates_in(found) - done,
        every=config.checkpoint_every,
        keep=config.keep,
        records=records,
        proof=proof,
        during=lambda step: injection.reach(faults, "save", step, model),
    )
    plateau = None
    if config.schedule == "plateau":
        plateau = Plateau(plan, lambda: progress.step, config.plateau_patience, (found or {}).get("plateau"))
    progress = Progress(
        console,
        records,
        plan,
        done=done,
        per_epoch=per_epoch,
        images=global_batch,
        accumulate=config.accumulate,
        log_every=config.log_every,
        rate=plateau and plateau.rate,
        clock=clock_of(model) if gpu is None else None,  # a GPU's work ends later than its clock can tell
    )
    averages = hvd.callbacks.MetricAverageCallback()
    finite = hvd.callbacks.TerminateOnNaN(
        run / "logs", hint="lower --learning-rate, or raise --warmup-epochs", gradients=True
    )

    def before_save():
        hvd.average_moving_statistics(model)  # of a model of the user's, with batch normalization
        finite.check()  # what is not finite is not saved
        world.on_every_rank(arrays.check_unchanged, "data.unchanged")  # nor what was learnt from other data

    saves.before_save = before_save
    patience = Patience(config.patience, **Patience.part_of(found))

    def note_straggler(slow, host):
        records.write("straggler", progress.step, rank=slow.rank, host=host, factor=slow.factor, windows=slow.windows)

    share = {"seed": config.seed, "rank": here.rank, "size": here.size, "batch_size": batch}

    def samples_of(epoch, first):
        return lambda number: arrays.sample_ids(epoch=epoch, step=first + number, **share)

    def close():
        ending.stop_watching()
        records.close()
        console.close()
        world.leave()
        if config.timeline and here.is_root:
            console.say(timeline.finish(Path(os.environ["HOROVOD_TIMELINE"])))
        if lock is not None:
            lock.release()

    def preempted(reason):
        console.stop_progress()
        close()
        if config.requeue and here.is_root:
            slurm_requeue.requeue(os.environ)
        stopped = Preempted(
            f"stopped after step {progress.step} of {total}: {reason}; {saves.newest()}", _again(config, run)
        )
        stopped.quiet = not here.is_root
        raise stopped

    preemption = Preemption(
        lambda: saves.save(progress.step, None),
        preempted,
        folder=run,
        time_limit=config.time_limit and max(0.0, config.time_limit - (time.time() - born)),
    )
    rates = [plateau] if plateau else []
    times = [StepTimes()] if config.step_times else []
    unsearched = FirstStepUnsearched()
    watch = [StragglerCallback(console.say, note_straggler)] if config.watch_stragglers else []
    injected = [injection.InjectFaults(faults, progress)] if faults else []
    evaluator = Evaluator(
        model,
        arrays,
        rank=here.rank,
        size=here.size,
        spoil=lambda dataset: injection.in_evaluation(faults, dataset, lambda: progress.step),
    )
    evaluation, reached = None, False
    started, cpu_started, traffic_started = time.perf_counter(), time.process_time(), traffic.counters()
    from hvd_mnist.data.pipeline import data_failure

    with preemption, console.progress(total, done):
        injection.reach(faults, "step", 0, model)
        for epoch in range(done // per_epoch, -(-total // per_epoch)):
            first = max(done - epoch * per_epoch, 0)
            last = min(per_epoch, total - epoch * per_epoch)
            if first >= last:
                continue
            if patience.is_over:  # before this job
                break
            passes = config.accumulate
            dataset = arrays.train_batches(
                epoch=epoch,
                first_step=first * passes,
                steps=(last - first) * passes,
                augment=config.augment,
                **share,
            )
            dataset = injection.in_batches(faults, dataset, epoch * per_epoch + first + 1, passes)
            progress.begin_epoch(epoch, first)
            saves.begin_epoch(epoch, first, last, passes)
            finite.sample_ids = samples_of(epoch, first * passes)
            try:
                model.fit(
                    dataset,
                    epochs=epoch + 1,
                    initial_epoch=epoch,
                    verbose=0,
                    shuffle=False,  # the pipeline has done it
                    callbacks=[
                        *times,
                        unsearched,
                        averages,
                        finite,
                        proof,
                        progress,
                        *watch,
                        *rates,
                        *injected,
                        saves,
                        preemption,
                    ],
                )
            except tf.errors.OpError as error:
                raise hvd.proof_failure(optimizer) or data_failure(error) or error from None
            fold_warnings()
            step = epoch * per_epoch + last
            final = step >= total
            if final or (epoch + 1) % config.evaluate_every == 0:
                # -- Evaluate: each test example once, the same numbers on every rank ------------------------------
                ending.doing(f"in the evaluation after step {step}")
                injection.reach(faults, "evaluate", step, model)
                hvd.average_moving_statistics(model)
                evaluation = evaluator()
                reached = config.target_accuracy is not None and evaluation.accuracy >= config.target_accuracy
                progress.evaluated(step, evaluation)
                patience.evaluated(evaluation.loss)
                state |= patience.state()
                if plateau:
                    if plateau.evaluated(evaluation.loss) and not final:
                        said = f"no better test loss in {count(config.plateau_patience, 'evaluation')}"
                        console.say(f"{said}: the rate falls to {plateau.rate(step):.3g}")
                    state["plateau"] = plateau.state()
            if final or reached or patience.is_over or config.checkpoint_every is None:
                saves.save(step, evaluation.accuracy if evaluation else None)
            if reached:
                console.say(f"target accuracy {config.target_accuracy:.2%} reached at step {step}")
            elif patience.is_over and not final:
                console.say(f"no better test loss in {count(config.patience, 'evaluation')}: the end at step {step}")
            if final or reached or patience.is_over:
                break
            preemption.act()  # what was asked for in the epoch's last step
    if evaluation is None:
        evaluation = evaluator()
        console.say(f"nothing left to train: step {done} of {total} is done; test accuracy {evaluation.accuracy:.2%}")
    fold_warnings()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    network = traffic.since(traffic_started)

    # -- Report ------------------------------------------------------------------------------------------------
    images = progress.steps_made * global_batch
    tuned = None
    if config.autotune:
        found_pair = autotune.collect(run / "autotune.csv") if here.is_root else None
        tuned = world.root_json(found_pair and dataclasses.asdict(found_pair), "autotune")
        console.say(autotune.words(found_pair, progress.steps_made))
    mine = {
        "rank": here.rank,
        "host": here.host,
        "gpu": gpu,
        "threads": threads,
        "cpu_seconds": round(cpu_seconds, 2),
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "traffic": network,
    }
    ranks = world.gather_json(mine, "summary")
    summary = {
        **job_and_data(here, arrays, config, model),
        "epochs": round((done + progress.steps_made) / per_epoch, 4),
        "steps": done + progress.steps_made,
        "resumed_from_step": done,
        "global_batch": global_batch,
        "learning_rate_peak": peak,
        **quality(evaluation, config, reached),
        "images_per_second": round(images / progress.train_seconds, 1) if progress.train_seconds else None,
        "train_seconds": round(seconds, 2),
        "cpu_seconds": round(sum(r["cpu_seconds"] for r in ranks), 2),
        "start_seconds": round(time.time() - born - seconds, 2),
        "ranks": ranks,
        **({"autotune": tuned} if config.autotune else {}),
        "proof": {
            "held": True,  # ReplicasDiffer has been raised otherwise
            "first_step_gradients": progress.steps_made > 0,
            "comparisons": proof.checks,
            "tolerance": config.replica_tolerance,
            "seconds": round(proof.seconds, 3),
        },
        "versions": versions(),
    }
    if times:
        told = world.gather_json([here.host, times[0].rows()], "step_times")
        by_rank = [{"host": host, "steps": rows} for host, rows in told]
        if here.is_root:
            write_json(run / "step-times.json", {"schema": SCHEMA, "columns": COLUMNS, "ranks": by_rank})
    if here.is_root:
        write_json(run / mistakes.FILE, mistakes.record(evaluation, arrays, f"step-{progress.step + saves.ahead:08d}"))
        write_json(run / "summary.json", summary)
    for text in faults.never_happened():
        print(f"hvd-mnist: rank {here.rank}: --inject {text} never happened", file=sys.stderr, flush=True)
    console.say(summary_text(summary, run))
    close()
    return summary


def check_same_command(config: TrainConfig) -> None:
    """Ranks with other options or other code would train apart, or wait for each other in the wrong place."""
    told = world.gather_json([world.hostname(), os.getpid()], "processes")
    ending.know_processes([(host, pid) for host, pid in told])
    agreement.agree({**agreement.software(), "setting": dataclasses.asdict(config)})


def check_own_gpus(here: world.World, gpu: int | None) -> None:
    """No two ranks train on one GPU."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    claim = mask[gpu] if gpu is not None and gpu < len(mask) and mask != [""] else str(gpu)
    told = world.gather_json([here.host, claim if gpu is not None else None], "gpus")
    if here.identity.launcher != "slurm":  # it may number each task's own GPU 0
        claims = [(rank, host, name) for rank, (host, name) in enumerate(told) if name is not None]
        shared = devices.ranks_on_one_gpu(claims)
        if shared:
            raise UsageError(shared, "unset CUDA_VISIBLE_DEVICES, or list one GPU for each rank in it")


def restore(folder: Path, model, config: TrainConfig, console: Console) -> dict | None:
    """On rank 0: the state of the newest complete checkpoint, read into ``model``; None for a fresh start."""
    if config.resume == "never":
        if checkpoint.candidates(folder):
            raise CheckpointError(
                f"{folder.parent} holds a run already", "--resume auto to continue it, or another --run-dir"
            )
        return None
    found = checkpoint.latest(folder, notify=console.warn)
    if found is None:
        console.say(f"no complete checkpoint in {folder}: starting at step 0")
        return None
    state = checkpoint.load_state(found.path)
    if "samples" in state and not config.elastic:
        raise CheckpointError(
            f"{found.path} is of an elastic run, whose steps had different numbers of examples",
            "--elastic, with or without other ranks",
        )
    for name in ("model", "optimizer", "seed"):
        if state[name] != getattr(config, name):
            raise CheckpointError(
                f"{found.path} was trained with --{name} {state[name]}, this command says {getattr(config, name)}",
                f"--{name} {state[name]}, or another --run-dir",
            )
    checkpoint.restore_into(model, found.path)
    console.say(f"resuming from {found.path.name}")
    return state


def _place(found: dict | None, optimizer, global_batch: int, per_epoch: int, console: Console) -> int:
    """The step, counted in this job's global batches, at which a checkpoint stands; 0 without one."""
    if found is None:
        return 0
    if found["global_batch"] == global_batch:
        return found["step"]
    epoch, rest = divmod(found["step"], found["steps_per_epoch"])
    done = epoch * per_epoch + rest * found["global_batch"] // global_batch
    optimizer.iterations.assign(done)
    console.say(
        f"the checkpoint was written by {found['world_size']} ranks at global batch {found['global_batch']}; now "
        f"{global_batch}: step {found['step']} becomes {done}, rate, shards and steps are derived anew"
    )
    return done


def updates_in(found: dict | None) -> int:
    """Optimizer updates made before a checkpoint, whatever the global batches were; the number of its folder."""
    return 0 if found is None else found.get("updates", found["step"])


def _again(config: TrainConfig, run: Path) -> str:
    """What to type to go on where a preempted run stopped."""
    if config.resume == "auto" and config.run_dir is not None:
        return "run the same command again"
    return f"the same command with --resume auto --run-dir {run}"
