"""Same start, same metrics, same rate on every rank; and the proof finds what is not the same."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_mnist.keras as hvd
from hvd_mnist.errors import ReplicasDiffer, UsageError
from hvd_mnist.keras import replicas


def model_with(*layers, optimizer=None, **settings):
    model = keras.Sequential([*layers])
    model.compile(optimizer or hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse", **settings)
    return model


def dense():
    return [keras.layers.Dense(3, activation="relu"), keras.layers.Dense(2)]


def on_all_ranks(array):
    return hvd.allgather(np.asarray(array)[None]).numpy()


@pytest.mark.parametrize("how", ["built", "unbuilt", "unbuilt eager"])
def test_same_start_before_step_1(how, rng):
    """A rank that made a step of its own from its own start would end elsewhere than one that had rank 0's."""
    x, y = rng.normal(size=(16, 4)).astype("float32"), rng.normal(size=(16, 2)).astype("float32")
    ends = {}
    for kind in ("built", how):
        keras.utils.set_random_seed(hvd.rank() + 10)
        layers = [keras.Input((4,)), *dense()] if kind == "built" else dense()
        model = model_with(*layers, run_eagerly="eager" in kind)
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[callback])
        assert callback.checks == 2  # after step 1 and after the epoch
        ends[kind] = np.concatenate([np.asarray(v).reshape(-1) for v in model.trainable_variables])
        bits = on_all_ranks(ends[kind])
        assert (bits == bits[0]).all()
    np.testing.assert_allclose(ends["built"], ends[how], rtol=1e-6, atol=1e-6)


def test_optimizer_state_is_broadcast(rng):
    model = model_with(keras.Input((4,)), *dense())
    model.optimizer.build(model.trainable_variables)
    for variable in model.optimizer.variables[2:]:
        variable.assign(np.full(variable.shape, float(hvd.rank() + 5)))
    model.optimizer.iterations.assign(100 + hvd.rank())
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    callback.broadcast()
    assert int(np.asarray(model.optimizer.iterations)) == 100
    for variable in model.optimizer.variables[2:]:
        np.testing.assert_array_equal(np.asarray(variable), 5.0)


def test_local_variables_stay():
    model = model_with(keras.Input((4,)), *dense())
    own = model.trainable_variables[-1]
    own.assign([hvd.rank(), hvd.rank()])
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[own])
    callback.set_model(model)
    callback.broadcast()
    np.testing.assert_array_equal(np.asarray(own), hvd.rank())


def test_broadcast_of_every_dtype():
    rank = hvd.rank()
    variables = [
        tf.Variable(tf.cast([rank, rank + 1], dtype))
        for dtype in ("float32", "bfloat16", "int64", "float16", "uint8", "float64", "float32", "int32")
    ] + [tf.Variable(rank == 0), tf.Variable(tf.zeros([0]))]
    hvd.broadcast_variables(variables, root_rank=hvd.size() - 1)
    last = hvd.size() - 1
    for variable in variables[:-2]:
        assert [int(v) for v in tf.cast(variable, tf.int64)] == [last, last + 1]
    assert bool(variables[-2].numpy()) == (last == 0)


@pytest.mark.several_ranks
def test_another_model_on_one_rank():
    variables = [tf.Variable(tf.zeros([2 + (hvd.rank() == 1)]))]
    with pytest.raises(ReplicasDiffer, match=r"rank 1 on .* variable 0 is \[\[3\], 'float32'\], expected \[\[2\]"):
        hvd.broadcast_variables(variables, 0)


@pytest.mark.several_ranks
def test_unwrapped_optimizer_is_caught(rng):
    model = model_with(keras.Input((4,)), *dense(), optimizer=keras.optimizers.SGD(0.1))
    with (
        pytest.warns(UserWarning, match="every rank trains alone"),
        pytest.raises(
            ReplicasDiffer, match=r"after step 1: first in '.*dense/kernel'; rank 1 on .*DistributedOptimizer"
        ),
    ):
        model.fit(
            rng.normal(size=(16, 4)),
            rng.normal(size=(16, 2)),
            batch_size=8,
            verbose=0,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )


class Nudge(keras.callbacks.Callback):
    """Changes one weight by one bit's worth on the last rank after the second step."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and hvd.rank() == hvd.size() - 1:
            bias = self.model.trainable_variables[3]
            bias.assign(np.nextafter(np.asarray(bias), np.float32(9)))


@pytest.mark.several_ranks
@pytest.mark.parametrize("every, when", [(None, "after epoch 1"), (3, "after step 3")])
def test_changed_variable_is_caught(every, when, rng):
    model = model_with(keras.Input((4,)), *dense())
    proof = hvd.callbacks.BroadcastGlobalVariablesCallback(0, check_replicas_every=every)
    last = hvd.size() - 1
    with pytest.raises(ReplicasDiffer, match=f"{when}: first in '.*bias'; rank {last} on .* against rank"):
        model.fit(
            rng.normal(size=(32, 4)), rng.normal(size=(32, 2)), batch_size=8, verbose=0, callbacks=[Nudge(), proof]
        )
    model = model_with(keras.Input((4,)), *dense())
    tolerant = hvd.callbacks.BroadcastGlobalVariablesCallback(0, check_replicas_every=every, tolerance=1e-3)
    model.fit(
        rng.normal(size=(32, 4)), rng.normal(size=(32, 2)), batch_size=8, verbose=0, callbacks=[Nudge(), tolerant]
    )
    assert tolerant.checks >= 2


@pytest.mark.several_ranks
def test_assert_equal_names_every_kind_of_difference():
    odd = hvd.rank() == 1
    replicas.assert_equal([("a", np.ones(3)), ("b", np.array([np.nan]))], "nothing")
    with pytest.raises(ReplicasDiffer, match="first in 'b'.*largest difference 2"):
        replicas.assert_equal([("a", np.ones(3)), ("b", np.ones(1) + 2 * odd)], "a test")
    with pytest.raises(ReplicasDiffer, match="other shapes"):
        replicas.assert_equal([("a", np.ones(3 + odd))], "a test")
    with pytest.raises(ReplicasDiffer, match="other shapes"):
        replicas.assert_equal([("a", np.ones(3))] * (1 + odd), "a test")
    replicas.assert_equal([("a", np.ones(3) + 1e-9 * odd)], "a test", tolerance=1e-8)


def test_metrics_are_weighted_by_samples(rng):
    """Rank r brings 8 (r + 1) samples; the logs hold the mean over all of them, for training and validation."""
    rank, size = hvd.rank(), hvd.size()
    model = model_with(
        keras.Input((4,)), *dense(), optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), metrics=["mae"]
    )
    hvd.broadcast_variables(model.variables, 0)
    x, y = rng.normal(size=(8 * (rank + 1), 4)).astype("float32"), np.full((8 * (rank + 1), 2), rank, "float32")
    # Equal steps on every rank, as averaging needs; batches of different sizes.
    history = model.fit(
        x,
        y,
        batch_size=8 * (rank + 1),
        verbose=0,
        validation_data=(x[: rank + 1], y[: rank + 1]),
        callbacks=[hvd.callbacks.MetricAverageCallback()],
    ).history
    local = np.abs(np.asarray(model(x)) - y).mean()
    local_val = np.abs(np.asarray(model(x[: rank + 1])) - y[: rank + 1]).mean()
    weights = np.arange(1, size + 1)
    np.testing.assert_allclose(history["mae"][0], np.average(on_all_ranks(local), weights=weights), rtol=1e-5)
    np.testing.assert_allclose(history["val_mae"][0], np.average(on_all_ranks(local_val), weights=weights), rtol=1e-5)


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(float(np.asarray(self.model.optimizer.learning_rate)))


def test_warmup(rng, capsys):
    """From rate / size to rate over the first epochs, then unchanged: the formula, at every step."""
    size, rate, epochs, steps = hvd.size(), 0.8, 2, 4
    model = model_with(keras.Input((4,)), *dense(), optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(rate)))
    seen = Rates()
    warmup = hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=epochs, verbose=1)
    history = model.fit(
        rng.normal(size=(4 * steps, 4)),
        rng.normal(size=(4 * steps, 2)),
        batch_size=4,
        epochs=3,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), warmup, seen],
    )
    expected = [rate / size * ((step + 1) / steps * (size - 1) / epochs + 1) for step in range(epochs * steps)]
    np.testing.assert_allclose(seen.rates, expected + [rate] * steps, rtol=1e-6)
    np.testing.assert_allclose(history.history["lr"][-1], rate, rtol=1e-6)
    assert ("finished gradual learning rate warmup" in capsys.readouterr().out) == (hvd.rank() == 0)


@pytest.mark.parametrize(
    "multiplier, expected", [(0.5, [1, 1, 1, 0.5]), (lambda e: 1 / (1 + e), [1, 0.5, 1 / 3, 0.25])]
)
def test_schedule_by_epoch(multiplier, expected, rng):
    start = 0 if callable(multiplier) else 2
    model = model_with(keras.Input((4,)), *dense(), optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)))
    seen = Rates()
    schedule = hvd.callbacks.LearningRateScheduleCallback(1.0, multiplier, start_epoch=start)
    model.fit(np.zeros((4, 4)), np.zeros((4, 2)), batch_size=4, epochs=4, verbose=0, callbacks=[schedule, seen])
    np.testing.assert_allclose(seen.rates, expected, rtol=1e-6)


def test_momentum_correction():
    """A rate that doubles doubles the velocity that was gathered at the old rate."""
    variable = keras.Variable(np.zeros(1, np.float32))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.apply([tf.constant([1.0])], [variable])
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 2.0)
    schedule.set_model(type("Model", (), {"optimizer": optimizer}))
    schedule.on_epoch_begin(1)
    schedule.on_train_batch_begin(0)
    np.testing.assert_allclose(np.asarray(optimizer.momentums[0]), [-0.2], rtol=1e-6)
    optimizer.apply([tf.constant([1.0])], [variable])
    np.testing.assert_allclose(np.asarray(optimizer.momentums[0]), [0.9 * -0.2 - 0.2], rtol=1e-6)


def test_rate_callbacks_refuse_what_they_cannot_set():
    fixed = keras.optimizers.schedules.CosineDecay(0.1, 10)
    model = model_with(keras.Input((4,)), *dense(), optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(fixed)))
    with pytest.raises(UsageError, match="CosineDecay"):
        model.fit(
            np.zeros((4, 4)),
            np.zeros((4, 2)),
            verbose=0,
            callbacks=[hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)],
        )
    with pytest.raises(UsageError, match="initial_lr is required"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.5)


def test_best_model_checkpoint_is_rank_0s(tmp_path, rng):
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    model = model_with(keras.Input((4,)), *dense())
    with pytest.raises(UsageError, match="no filepath"):
        model.fit(np.zeros((4, 4)), np.zeros((4, 2)), verbose=0, callbacks=[best])
    best.filepath = str(tmp_path / f"best-{hvd.rank()}.keras")
    model.fit(
        np.zeros((4, 4)),
        np.zeros((4, 2)),
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(), best],
    )
    assert (tmp_path / f"best-{hvd.rank()}.keras").exists() == (hvd.rank() == 0)


def test_what_keras_3_cannot_have_says_so():
    with pytest.raises(UsageError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def test_collectives_of_the_api():
    rank, size = hvd.rank(), hvd.size()
    assert hvd.allreduce(float(rank)).numpy() == (size - 1) / 2
    assert hvd.allreduce([1, 2], op=hvd.Sum).numpy().tolist() == [size, 2 * size]
    assert hvd.allgather([rank]).numpy().tolist() == list(range(size))
    assert hvd.broadcast([rank], root_rank=size - 1).numpy().tolist() == [size - 1]
    assert hvd.broadcast_object({"rank": rank}, root_rank=0) == {"rank": 0}
