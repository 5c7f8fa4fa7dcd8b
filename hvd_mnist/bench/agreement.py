"""What it costs that all ranks can stop together, and that a step has a clock: with against without, in CPU seconds.

    horovodrun -np 2 python -m hvd_mnist.bench.agreement --model mlp --blocks 12
    horovodrun -np 2 python -m hvd_mnist.bench.agreement --of clock

Both sides are ``model.fit`` with ``hvd.DistributedOptimizer`` on the same network and batches, in the same processes,
block by block in turn. Reported: CPU seconds per step and rank (all threads, so Horovod's too), medians over blocks and
ranks, and the ratios and differences of neighbouring blocks. What one side has and the other has not:

    agreement   votes that travel with the gradients, PreemptionCallback (looks for files in a folder), TerminateOnNaN
    gradients   the same, and TerminateOnNaN looks at the gradients too
    clock       the step's clock (both sides have votes)
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time

SIDES = ("with", "without")
KINDS = ("agreement", "gradients", "clock")


def measure(model_name: str, batch: int, steps: int, blocks: int, threads: int, kind: str) -> dict | None:
    """The figures on rank 0, None on the others."""
    from hvd_mnist.runtime import devices, world

    here = world.join()
    devices.pin(here.local_rank, here.local_size, here.host, threads)
    import keras
    import numpy as np

    import hvd_mnist.keras as hvd
    from hvd_mnist import models
    from hvd_mnist.bench.overhead import _dataset
    from hvd_mnist.keras.step_clock import clock_of

    rng = np.random.default_rng(here.rank)
    dataset = _dataset(rng.random((steps * batch, 28, 28, 1), np.float32), rng.integers(0, 10, steps * batch), batch)
    folder = tempfile.TemporaryDirectory()

    def side(has: bool):
        votes = has or kind == "clock"
        keras.utils.set_random_seed(1)
        model = models.build(model_name)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
        if not votes:
            optimizer._exchange._votes_can_ride = lambda: False
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
        if has and kind == "clock":
            clock_of(model)
        start = hvd.callbacks.BroadcastGlobalVariablesCallback(0, check_replicas_every=10**9)
        together = [
            hvd.callbacks.TerminateOnNaN(gradients=kind == "gradients"),
            hvd.callbacks.PreemptionCallback(folder=folder.name),
        ]

        def run():
            model.fit(dataset, verbose=0, shuffle=False, callbacks=[start, *(together if votes else [])])

        return run

    runs = {"with": side(True), "without": side(False)}
    for run in runs.values():
        run()  # trace, and the two checked steps
    samples = {name: {"cpu": [], "wall": []} for name in SIDES}
    for block in range(blocks):
        for name in SIDES[:: 1 if block % 2 == 0 else -1]:
            world.barrier("agreement")
            wall, cpu = time.perf_counter(), time.process_time()
            runs[name]()
            samples[name]["cpu"].append((time.process_time() - cpu) / steps)
            samples[name]["wall"].append((time.perf_counter() - wall) / steps)
    told = world.gather_json(samples, "agreement.samples")
    world.leave()
    folder.cleanup()
    settings = {
        "model": model_name,
        "ranks": here.size,
        "backend": here.backend,
        "batch": batch,
        "steps": steps,
        "of": kind,
    }
    return {**settings, "blocks": blocks, "threads": threads, **summarize(told)} if here.is_root else None


def summarize(told: list[dict]) -> dict:
    """Medians over ranks and blocks in ms a step, and of the ratios and differences with / without. Pure."""
    result = {}
    for clock in ("cpu", "wall"):
        pairs = [pair for rank in told for pair in zip(rank["with"][clock], rank["without"][clock], strict=True)]
        ratios, differences = [a / b for a, b in pairs], [1000 * (a - b) for a, b in pairs]
        result[clock] = {
            "with_ms": round(1000 * statistics.median(a for a, _ in pairs), 3),
            "without_ms": round(1000 * statistics.median(b for _, b in pairs), 3),
            "ratio_median": round(statistics.median(ratios), 4),
            "ratio_quartiles": [round(q, 4) for q in statistics.quantiles(ratios, n=4)[::2]],
            "difference_ms_median": round(statistics.median(differences), 3),
            "pairs": len(pairs),
        }
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mlp", choices=("small", "cnn", "mlp"))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=50, help="steps in a block")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--of", default=KINDS[0], choices=KINDS, help="what one side has and the other has not")
    arguments = parser.parse_args()
    found = measure(
        arguments.model, arguments.batch, arguments.steps, arguments.blocks, arguments.threads, arguments.of
    )
    if found is not None:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
