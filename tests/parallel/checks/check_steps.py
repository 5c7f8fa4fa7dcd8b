"""A step's times, and who makes the others wait."""

import socket
import time

import keras
import numpy as np
import pytest

import hvd_mnist.keras as hvd
from hvd_mnist.bench import step_parts
from hvd_mnist.errors import UsageError
from hvd_mnist.keras import step_clock, step_times, stragglers


class Sleep(keras.callbacks.Callback):
    """Some seconds before each batch; ``seconds(step)``."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.step = seconds, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.step += 1
        time.sleep(self.seconds(self.step))


def fit(*callbacks, steps, optimizer=None, epochs=1, **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="relu"), keras.layers.Dense(2)])
    model.compile(
        hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.01), **options), "mse", jit_compile=False
    )
    data = np.random.default_rng(hvd.rank())
    x, y = data.normal(size=(steps * 8, 4)).astype("float32"), data.normal(size=(steps * 8, 2)).astype("float32")
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, epochs=epochs, callbacks=list(callbacks))
    return model


def weights(model):
    return np.concatenate([np.asarray(variable).reshape(-1) for variable in model.trainable_variables])


def test_times_of_a_step_stand_in_order_and_change_nothing():
    times = step_times.StepTimes()
    # the last rank begins 50 ms late: it waits for nobody, the others wait for it
    late = Sleep(lambda step: 0.05 * (hvd.rank() == hvd.size() - 1))
    model = fit(times, late, steps=6, epochs=2)
    timed, own = weights(model), step_clock.clock_of(model).take()
    np.testing.assert_array_equal(timed, weights(fit(steps=6, epochs=2)))
    rows = times.rows()
    assert [row[0] for row in rows] == [0] * 6 + [1] * 6
    assert step_times.COLUMNS == step_parts.COLUMNS
    for row in rows:
        assert list(row[1:6]) == sorted(row[1:6]), row
    needed = [row[3] - before[4] for before, row in zip(rows, rows[1:], strict=False)]
    assert own == pytest.approx(np.mean(needed), abs=1e-5) and step_clock.clock_of(model).take() is None
    told = hvd.allgather(np.array([rows])).numpy().tolist()
    steps = step_parts.parts(told, warm_up=3)
    assert len(steps[0]) == 3 + 5
    if hvd.size() > 1:
        waits = [np.median([step["wait"] for step in rank]) for rank in steps]
        assert waits[-1] < min(waits[:-1]) and min(waits[:-1]) > 0.025, waits
    assert min(step["data"] for step in steps[-1]) >= 0.05


class Pretended(stragglers.StragglerCallback):
    """The last rank needs four times as long as the others, from step 21 on."""

    def own_seconds(self):
        assert super().own_seconds() > 0
        return 0.4 if self._steps > 20 and hvd.rank() == hvd.size() - 1 else 0.1


@pytest.mark.several_ranks
def test_a_straggler_is_named_and_an_even_job_says_nothing():
    said, noted, last = [], [], hvd.size() - 1
    watch = Pretended(
        said.append, lambda slow, host: noted.append((watch._steps, slow.rank, host)), window=5, windows=2
    )
    fit(watch, steps=40)
    # told at step 25 and 30, looked at five steps later; told again after two more windows, which are over by then
    assert noted == ([(35, last, socket.gethostname())] if hvd.rank() == 0 else [])
    assert len(said) == len(noted)
    if said:
        assert said[0].startswith(f"straggler: rank {last} on {socket.gethostname()} takes 4.0 times"), said


@pytest.mark.parametrize("options", [{}, {"compression": hvd.Compression.bf16}, {"op": hvd.Sum}], ids=str)
def test_each_rank_hears_every_figure(options):
    class Told(keras.callbacks.Callback):
        def set_model(self, model):
            super().set_model(model)
            self.votes = model.optimizer._exchange.votes
            self.votes.share_figures(hvd.rank(), hvd.size())
            self.votes.tell(0.5 * (hvd.rank() + 1))

    told = Told()
    fit(told, steps=2, **options)
    figures = np.array(told.votes.told())
    np.testing.assert_allclose(figures / figures[0], np.arange(hvd.size()) + 1, rtol=0.02)
    assert told.votes.heard() == ()


def test_an_optimizer_that_meets_nobody_is_refused():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    with pytest.raises(UsageError, match="this optimizer has none -> hvd.DistributedOptimizer"):
        model.fit(np.zeros((8, 4)), np.zeros((8, 2)), verbose=0, callbacks=[step_times.StepTimes()])
