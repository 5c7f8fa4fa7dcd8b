"""What our layer and the exchange cost: the trainer's step against others, in CPU seconds, paired.

    horovodrun -np 2 python -m hvd_mnist.bench.overhead --model cnn --blocks 12

All sides train the same network on the same batches with the same wait settings, in the same processes, block by
block in turn, so that a machine whose speed drifts is the same machine for all. Reported: CPU seconds per step
and rank (all threads of the process, so Horovod's background thread counts), as medians over blocks, and the
median of the ratios of neighbouring blocks with the interval that it lies in.

    ours      model.fit with hvd.DistributedOptimizer and the callbacks of the trainer
    by hand   tf.function of forward, backward, hvd.grouped_allreduce, optimizer.apply: our layer's cost
    apart     model.fit with a plain optimizer: no rank waits for another. What communication and our layer cost

Two more take that cost apart, where ``--sides`` asks for them: ``exchange``, apart with hvd.grouped_allreduce of the
gradients and nothing of ours, and ``one number``, apart with that for all gradients together.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Sequence

from hvd_mnist.errors import HvdMnistError

SIDES = ("ours", "by hand", "apart")
PARTS = ("exchange", "one number")


def measure(model_name: str, batch: int, steps: int, blocks: int, threads: int, sides=SIDES, groups=None) -> dict:
    """CPU and wall seconds per step of each side, over ``blocks`` blocks of ``steps`` steps each.

    Raises:
        HvdMnistError: two sides do not end with the same weights, so they did not do the same work.
    """
    from hvd_mnist.runtime import devices, world

    here = world.join()
    devices.pin(here.local_rank, here.local_size, here.host, threads)
    import keras
    import numpy as np

    import hvd_mnist.keras as hvd
    from hvd_mnist import models
    from hvd_mnist.console import Console
    from hvd_mnist.keras.step_clock import clock_of
    from hvd_mnist.run_folder import Records
    from hvd_mnist.schedule import Plan
    from hvd_mnist.training_callbacks import Progress

    rng = np.random.default_rng(here.rank)
    images = rng.random((steps * batch, 28, 28, 1), np.float32)
    labels = rng.integers(0, 10, steps * batch)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    dataset = _dataset(images, labels, batch)

    def build():
        keras.utils.set_random_seed(1)
        return models.build(model_name)

    def progress(clock):
        return Progress(
            Console(here.rank, speaks=False),
            Records(None),
            Plan("constant", 0.01, 0, 10**9),
            done=0,
            per_epoch=steps,
            images=batch * here.size,
            accumulate=1,
            log_every=20,
            clock=clock,
        )

    def fitted(optimizer, callbacks, clock=lambda model: None):
        model = build()
        model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
        told = progress(clock(model))

        def run():
            told.begin_epoch(0, 0)
            model.fit(dataset, verbose=0, shuffle=False, callbacks=[*callbacks, told])

        return model, run

    def side(name):
        if name == "by hand":
            hand = _by_hand(build(), keras.optimizers.SGD(0.01), loss, dataset)
            return hand.model, hand.run
        if name == "apart":
            return fitted(keras.optimizers.SGD(0.01), [])
        if name in PARTS:
            return fitted(_exchanging(name), [])
        proof = hvd.callbacks.BroadcastGlobalVariablesCallback(0, check_replicas_every=10**9)
        finite = hvd.callbacks.TerminateOnNaN(gradients=True)
        return fitted(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), groups=groups), [proof, finite], clock_of)

    made = {name: side(name) for name in sides}
    for _, run in made.values():
        run()  # trace, and the two checked steps
    if model_name != "cnn" and "by hand" in made and "ours" in made:  # the cnn's dropout draws from two generators
        for mine, theirs in zip(*(made[name][0].trainable_variables for name in ("ours", "by hand")), strict=True):
            if not np.allclose(np.asarray(mine), np.asarray(theirs), atol=1e-5):
                raise HvdMnistError(f"the two sides do not train alike: {mine.path} differs after {steps} steps")
    samples = {name: {"cpu": [], "wall": []} for name in made}
    for block in range(blocks):
        for name in list(made)[:: 1 if block % 2 == 0 else -1]:
            world.barrier("overhead")
            wall, cpu = time.perf_counter(), time.process_time()
            made[name][1]()
            samples[name]["cpu"].append((time.process_time() - cpu) / steps)
            samples[name]["wall"].append((time.perf_counter() - wall) / steps)
    told = world.gather_json(samples, "overhead.samples")
    world.leave()
    return {
        "model": model_name,
        "ranks": here.size,
        "backend": here.backend,
        "threads": threads,
        "batch": batch,
        "groups": groups,
        "steps_per_block": steps,
        "blocks": blocks,
        "is_root": here.is_root,
        **summarize(told),
    }


def summarize(samples: list[dict]) -> dict:
    """Of each side the median over ranks and blocks; of the first side to each other, the median of the blocks' ratios.

    A block's ratio is of all ranks' seconds together; ``n`` is the number of blocks, ``interval`` from `interval_of`.
    """
    result = {}
    first, *others = samples[0]
    for clock in ("cpu", "wall"):
        by_block = {name: list(zip(*(rank[name][clock] for rank in samples), strict=True)) for name in samples[0]}
        result[clock] = {
            name: {"ms": round(1000 * statistics.median(itertools.chain(*its)), 3)} for name, its in by_block.items()
        }
        for name in others:
            ratios = [sum(a) / sum(b) for a, b in zip(by_block[first], by_block[name], strict=True)]
            result[clock][name] |= {
                f"{first} / {name}": round(statistics.median(ratios), 4),
                "interval": interval_of(ratios),
                "quartiles": [round(q, 4) for q in statistics.quantiles(ratios, n=4)[::2]] if len(ratios) > 1 else None,
                "n": len(ratios),
            }
    return result


def interval_of(values: Sequence[float]) -> list[float] | None:
    """Where the true median lies in at least 95 of 100 cases: two of the values, by the binomial distribution of how
    many fall below it. None for fewer than 6, of which no two do."""
    count, outside, tail = len(values), 0, 0.0
    while (tail := tail + math.comb(count, outside) / 2**count) <= 0.025:
        outside += 1
    in_order = sorted(values)
    return [round(in_order[outside - 1], 4), round(in_order[count - outside], 4)] if outside else None


def _exchanging(what: str):
    """SGD with Horovod's call in it: for the gradients, or for one number once they are there."""
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    class Exchanging(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            grads, settings = list(grads), {"name": what.replace(" ", "_"), "ignore_name_scope": True}
            if what == "exchange":
                grads = hvd.grouped_allreduce(grads, **settings)
            else:
                with tf.control_dependencies(grads):
                    number = tf.identity(tf.constant([1.0]))
                with tf.control_dependencies([hvd.allreduce(number, **settings)]):
                    grads = [tf.identity(gradient) for gradient in grads]
            super().apply(grads, trainable_variables)

    return Exchanging(0.01)


def _dataset(images, labels, batch):
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch).prefetch(1).with_options(options)


class _by_hand:
    """The loop that Horovod's documentation teaches, on Keras 3."""

    def __init__(self, model, optimizer, loss, dataset):
        import horovod.tensorflow as hvd
        import tensorflow as tf

        self.model, self.dataset = model, dataset
        optimizer.build(model.trainable_variables)

        @tf.function(jit_compile=False)
        def step(x, y):
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                value = loss(y, logits)
            gradients = tape.gradient(value, [v.value for v in model.trainable_variables])
            gradients = hvd.grouped_allreduce(gradients, name="by_hand", ignore_name_scope=True)
            optimizer.apply(gradients, model.trainable_variables)
            hits = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, -1), y), tf.float32))
            return value, hits

        self.step = step

    def run(self):
        for x, y in self.dataset:
            value, hits = self.step(x, y)
        return float(value), float(hits)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cnn", choices=("small", "cnn", "mlp"))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=40, help="steps in a block")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--groups", type=int, help="of gradients that travel together, in ours; as train chooses")
    parser.add_argument("--sides", default=",".join(SIDES), help="which, the first against each other")
    arguments = parser.parse_args()
    sides = arguments.sides.split(",")
    if unknown := set(sides) - {*SIDES, *PARTS}:
        parser.error(f"--sides {unknown.pop()}: expected some of {','.join([*SIDES, *PARTS])}")
    found = measure(
        arguments.model,
        arguments.batch,
        arguments.steps,
        arguments.blocks,
        arguments.threads,
        tuple(sides),
        arguments.groups,
    )
    if found.pop("is_root"):
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
