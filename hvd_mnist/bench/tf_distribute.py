"""TensorFlow's own data parallelism on the network, batch and cores of ``bench.overhead``: one process, two replicas.

    python -m hvd_mnist.bench.tf_distribute --blocks 4 --steps 10

``tf.distribute.MirroredStrategy`` over logical CPU devices, with its defaults and ``model.fit``. One JSON object:
CPU milliseconds of the process a step and replica, wall milliseconds a step, medians over blocks, as bench.overhead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time


def measure(replicas: int, batch: int, steps: int, blocks: int) -> dict:
    """CPU and wall milliseconds of ``blocks`` blocks of ``steps`` steps of ``batch`` images a replica.

    Raises:
        HvdMnistError: the replicas do not hold the same variables afterwards.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    from hvd_mnist import models
    from hvd_mnist.errors import HvdMnistError

    tf.config.threading.set_intra_op_parallelism_threads(1)  # a thread a replica, as a rank has
    tf.config.threading.set_inter_op_parallelism_threads(replicas)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    rng = np.random.default_rng(0)
    whole = batch * replicas
    images = rng.random((steps * whole, 28, 28, 1), np.float32)
    labels = rng.integers(0, 10, steps * whole)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(whole, drop_remainder=True).prefetch(1)
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = models.build("cnn")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"], jit_compile=False)

    def run():
        model.fit(dataset, verbose=0, shuffle=False)

    run()
    cpu_ms, wall_ms = [], []
    for _ in range(blocks):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        cpu_ms.append(1e3 * (time.process_time() - cpu) / steps / replicas)
        wall_ms.append(1e3 * (time.perf_counter() - wall) / steps)
    for variable in model.trainable_variables:
        first, *others = (np.asarray(copy) for copy in strategy.experimental_local_results(variable.value))
        if len(others) != replicas - 1 or any(not np.array_equal(first, other) for other in others):
            raise HvdMnistError(f"{variable.path}: {1 + len(others)} copies, not {replicas} equal ones")
    return {
        "tensorflow": tf.__version__,
        "replicas": strategy.num_replicas_in_sync,
        "cpu_ms": round(statistics.median(cpu_ms), 3),
        "wall_ms": round(statistics.median(wall_ms), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128, help="images a replica and step")
    parser.add_argument("--steps", type=int, default=10, help="steps in a block")
    parser.add_argument("--blocks", type=int, default=4)
    asked = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    print(json.dumps(measure(asked.replicas, asked.batch, asked.steps, asked.blocks)))


if __name__ == "__main__":
    main()
