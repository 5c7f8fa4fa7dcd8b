"""Towers: one process, several devices, as in TensorFlow's old CIFAR example.

    hvd-mnist baseline towers --towers 2 --steps 200        two GPUs, or two parts of the CPU
    hvd-mnist baseline towers --towers 3 --slow-tower 1:0.2 --steps 50     the step is as slow as the slowest tower
    hvd-mnist baseline towers --towers 2 --steps 20 --explain      which operation ran where, and what crossed

1. The variables are kept on the CPU.  2. Each step the CPU hands every tower its own batch and the weights.  3. Every
tower computes the gradients of its batch.  4. The CPU gathers them, takes the mean and updates the variables once.
"""

from __future__ import annotations

import statistics
import time

from hvd_mnist.baselines.course import Course, prepare, train_in_epochs
from hvd_mnist.baselines.single import hits, mean_loss
from hvd_mnist.config import TrainConfig
from hvd_mnist.console import count
from hvd_mnist.errors import EnvironmentUnfit, UsageError
from hvd_mnist.runtime import devices, world

HOME = "/device:CPU:0"


def train(
    config: TrainConfig,
    knob_sources: dict[str, str] | None = None,
    *,
    towers: int = 2,
    slow: tuple[int, float] | None = None,
    explain: bool = False,
) -> dict:
    """Train with ``towers`` towers; the summary, as in RUN/summary.json.

    Args:
        slow: (tower, seconds): that tower waits so long in every step.
        explain: also write RUN/placement.json: operations by device, tensors and bytes that cross in a step.

    Raises:
        UsageError: ``slow`` names a tower that is not there.
        EnvironmentUnfit: fewer GPUs than towers.
    """
    import tensorflow as tf

    if slow is not None and not 0 <= slow[0] < towers:
        raise UsageError(f"--slow-tower {slow[0]}: there are towers 0 to {towers - 1}")
    threads = config.threads or devices.my_threads(1)
    places = tower_devices(towers, threads)
    with tf.device(HOME):
        work = prepare(config, replicas=towers)
    course = Course("towers", work, f"variables on {HOME}, towers on {', '.join(places)}", knob_sources)
    seeds = tower_seeds(work.model, config.seed, places, HOME)
    step = tower_step(work.model, work.optimizer, places, HOME, seeds, slow)
    if explain:
        from hvd_mnist.baselines.explain import explain_placement

        explain_placement(step, next(iter(work.batches(0, 0, 1))), course.run, course.console)
    timed = Timed(step)
    train_in_epochs(course, timed)
    course.console.say(timed.text(count(towers, "tower"), slow))
    return course.finish([course.own_report("towers", threads=threads)], towers=places, step_seconds=timed.median())


def tower_devices(towers: int, threads: int) -> list[str]:
    """One device for each tower: GPUs where there are any, else parts of the CPU (``/device:CPU:1`` and on)."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if 0 < len(gpus) < towers:
        raise EnvironmentUnfit(
            f"host {world.hostname()}: {towers} towers but {count(len(gpus), 'GPU')}", f"--towers {len(gpus)}"
        )
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(threads, towers))
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        if not gpus:
            parts = [tf.config.LogicalDeviceConfiguration() for _ in range(towers + 1)]
            tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    except RuntimeError as late:
        raise EnvironmentUnfit(f"TensorFlow used a device before the towers' were made ({late})") from None
    return [f"/device:GPU:{i}" for i in range(towers)] if gpus else [f"/device:CPU:{i + 1}" for i in range(towers)]


def tower_seeds(model, seed: int, places: list[str], home: str):
    """Random numbers of its own for each tower: for every tower, its variables of the model that are not trained."""
    import tensorflow as tf

    from hvd_mnist.training_callbacks import dropout_streams_of

    seeds = []
    for tower in range(len(places)):
        dropout_streams_of(model, seed, tower)
        with tf.device(home):
            seeds.append([tf.Variable(v.value, trainable=False) for v in model.non_trainable_variables])
    return seeds


def tower_step(model, optimizer, places: list[str], home: str, seeds, slow: tuple[int, float] | None = None):
    """The compiled step: (x, y) of all towers together -> (loss, accuracy), and one update at ``home``.

    Args:
        places: the device of each tower, on this machine or on another.
        home: where the variables are, where batches are cut, gradients averaged and the update made.
        seeds: from ``tower_seeds``.
        slow: (tower, seconds) of a wait before that tower's work.
    """
    import tensorflow as tf

    @tf.function(jit_compile=False)
    def step(x, y):
        with tf.device(home):
            weights = [tf.identity(variable.value) for variable in model.trainable_variables]
            xs, ys = tf.split(x, len(places)), tf.split(y, len(places))
            states = [[tf.identity(state) for state in own] for own in seeds]
        gradients, losses, accuracies = [], [], []
        for tower, place in enumerate(places):
            with tf.device(place):
                mine = tf.identity(xs[tower])
                if slow is not None and slow[0] == tower:
                    mine = _late(mine, slow[1])
                logits, moved = model.stateless_call(weights, states[tower], mine, training=True)
                loss = mean_loss(logits, ys[tower])
                gradients.append(tf.gradients(loss, weights))
                losses.append(loss)
                accuracies.append(hits(logits, ys[tower]))
            with tf.device(home):
                for variable, value in zip(seeds[tower], moved, strict=True):
                    variable.assign(value)
        with tf.device(home):
            means = [tf.add_n(list(each)) / len(places) for each in zip(*gradients, strict=True)]
            optimizer.apply(means, model.trainable_variables)
            return tf.add_n(losses) / len(places), tf.add_n(accuracies) / len(places)

    return step


def _late(x, seconds: float):
    """``x``, after a wait."""
    import tensorflow as tf

    def wait(value):
        time.sleep(seconds)
        return value

    waited = tf.numpy_function(wait, [x], x.dtype)
    return tf.ensure_shape(waited, x.shape)


class Timed:
    """A step that remembers how long each call took; the first, which compiles, is not counted."""

    def __init__(self, step):
        self._step, self._seconds = step, []

    def __call__(self, x, y):
        began = time.perf_counter()
        loss, accuracy = self._step(x, y)
        loss = float(loss)  # waits for the result
        self._seconds.append(time.perf_counter() - began)
        return loss, accuracy

    def median(self) -> float | None:
        return round(statistics.median(self._seconds[1:]), 4) if len(self._seconds) > 1 else None

    def text(self, who: str, slow: tuple[int, float] | None) -> str:
        if self.median() is None:
            return "one step is too few to time"
        late = f"; tower {slow[0]} waited {slow[1]:g} s in each" if slow else ""
        return f"{who}: a step took {1000 * self.median():.0f} ms (median of {len(self._seconds) - 1}){late}"
