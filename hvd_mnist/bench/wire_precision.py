"""What fp16 and bf16 on the wire cost in precision and in seconds, on real gradients, against float32.

    horovodrun --gloo -np 2 python -m hvd_mnist.bench.wire_precision --model cnn --steps 60

On every rank the same network, each rank with its own part of the sample's digits. First, after a few steps, one and
the same list of gradients is averaged on each wire: how far is the mean from the one in float64. Then exchanges of that
list in turn, timed. Last, training from the same start on each wire. Rank 0 prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np

WIRES = ("none", "fp16", "bf16")
WARM_STEPS = 5


def errors(found: list[np.ndarray], exact: list[np.ndarray]) -> dict[str, float]:
    """How far averaged gradients are from the exact mean.

    Args:
        found: as they came back, float32.
        exact: the same in float64.

    Returns:
        norm: length of the difference / length of the exact mean, all tensors as one vector.
        median, p99: of |difference| / |exact|, over the elements that are not 0.
        lost: part of those elements that came back as 0.
        largest: |exact| at most, to be compared with the largest number of the wire.
    """
    mine = np.concatenate([np.asarray(each, np.float64).reshape(-1) for each in found])
    right = np.concatenate([each.reshape(-1) for each in exact])
    there = right != 0
    relative = np.abs(mine[there] - right[there]) / np.abs(right[there])
    return {
        "norm": float(np.linalg.norm(mine - right) / np.linalg.norm(right)),
        "median": float(np.median(relative)),
        "p99": float(np.quantile(relative, 0.99)),
        "lost": float(np.mean(mine[there] == 0)),
        "largest": float(np.max(np.abs(right))),
    }


def measure(model_name: str, steps: int, blocks: int) -> dict:
    """Errors, seconds and training results of each wire."""
    from hvd_mnist.runtime import devices, world

    here = world.join()
    devices.pin(here.local_rank, here.local_size, here.host, 1)
    import keras
    import tensorflow as tf

    import hvd_mnist.keras as hvd
    from hvd_mnist import models
    from hvd_mnist.data import pipeline, sources

    arrays = sources.load("sample")
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def batches(count):
        return pipeline.batches(
            arrays.train_images, arrays.train_labels, seed=1, epoch=0, first_step=0, steps=count, rank=here.rank,
            size=here.size, batch_size=32,
        )  # fmt: skip

    def start():
        keras.utils.set_random_seed(1)
        return models.build(model_name, dropout=False)

    def distributed(wire):
        return hvd.DistributedOptimizer(keras.optimizers.Adam(0.001), compression=getattr(hvd.Compression, wire))

    def fitted(wire, count):
        model = start()
        models.compile_for_digits(model, distributed(wire))
        return model, model.fit(batches(count), verbose=0, shuffle=False).history["loss"][-1]

    model, _ = fitted("none", WARM_STEPS)
    x, y = next(iter(batches(1)))
    with tf.GradientTape() as tape:
        value = loss_of(y, model(x, training=True))
    gradients = tape.gradient(value, [v.value for v in model.trainable_variables])
    by_rank = [hvd.allgather(gradient[tf.newaxis], name=f"exact.{i}").numpy() for i, gradient in enumerate(gradients)]
    exact = [each.astype(np.float64).mean(axis=0) for each in by_rank]

    def exchange_on(wire):
        optimizer = distributed(wire)
        return tf.function(lambda *tensors: optimizer.average_gradients(tensors, model.trainable_variables))

    exchanges = {wire: exchange_on(wire) for wire in WIRES}
    told = {wire: errors(exchange(*gradients), exact) for wire, exchange in exchanges.items()}
    seconds = {wire: {"wall": [], "cpu": []} for wire in WIRES}
    for block in range(blocks):
        for wire in WIRES[:: 1 if block % 2 == 0 else -1]:
            world.barrier("wire")
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(10):
                exchanges[wire](*gradients)
            seconds[wire]["wall"].append((time.perf_counter() - wall) / 10)
            seconds[wire]["cpu"].append((time.process_time() - cpu) / 10)
    for wire in WIRES:
        told[wire] |= {f"{clock}_ms": round(1e3 * statistics.median(s), 2) for clock, s in seconds[wire].items()}
    for wire in WIRES:
        trained, mean_loss = fitted(wire, steps)
        logits = trained.predict(arrays.test_images[:][..., None] / np.float32(255), batch_size=200, verbose=0)
        told[wire] |= {
            "training_loss": round(float(mean_loss), 5),
            "test_loss": round(float(loss_of(arrays.test_labels, logits)), 5),
            "test_accuracy": float(np.mean(logits.argmax(-1) == arrays.test_labels)),
        }
    told = {"model": model_name, "ranks": here.size, "backend": here.backend, "steps": steps, "wires": told}
    told["is_root"] = here.is_root
    world.leave()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cnn", choices=("small", "cnn", "mlp"))
    parser.add_argument("--steps", type=int, default=60, help="of training on each wire, 32 images a rank; at most 62")
    parser.add_argument("--blocks", type=int, default=8, help="of 10 timed exchanges on each wire")
    asked = parser.parse_args()
    found = measure(asked.model, asked.steps, asked.blocks)
    if found.pop("is_root"):
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
