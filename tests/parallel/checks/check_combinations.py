"""What people combine with a distributed optimizer: the rows of docs/combinations.md, each trained on every rank.

``trains`` asks of each row: the replicas are equal at the end (the proof in the callback, and once more here), though
every rank has other data, and the weights have moved.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_mnist.keras as hvd
from hvd_mnist.errors import UsageError

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def data(rng, n=24):
    return rng.normal(size=(n, 6)).astype(np.float32), rng.integers(0, 3, n)


def stack(*layers):
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3, dtype="float32")])


def alike_everywhere(model):
    for variable in model.trainable_variables:
        values = hvd.allgather(np.asarray(variable, np.float32)[None]).numpy()
        assert all((value == values[0]).all() for value in values), variable.path


def trains(model, x, y, optimizer=None, **compiled):
    optimizer = optimizer or hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, **{"loss": LOSS, "jit_compile": False, **compiled})
    before = [np.asarray(v) for v in model.trainable_variables]
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[start])
    assert start.checks >= 3
    alike_everywhere(model)
    after = [np.asarray(v) for v in model.trainable_variables]
    if before:
        assert any((a != b).any() for a, b in zip(before, after, strict=True))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)

    def call(self, x):
        return self.out(self.hidden(x))


class OwnStep(keras.Model):
    """Two losses and a step written by hand, as in Keras' guide."""

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=logits) + 0.01 * tf.reduce_mean(logits**2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def functional():
    inputs = keras.Input((6,))
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dense(8, activation="relu")(inputs)))


def own_step():
    inputs = keras.Input((6,))
    return OwnStep(inputs, keras.layers.Dense(3)(inputs))


@pytest.mark.parametrize("build", [functional, Subclassed, own_step, lambda: stack(keras.layers.Dense(4))],
                         ids=["functional", "subclassed", "own-train-step", "sequential"])  # fmt: skip
def test_kinds_of_models(build, rng):
    trains(build(), *data(rng))


def test_several_outputs(rng):
    inputs = keras.Input((6,))
    model = keras.Model(inputs, {"kind": keras.layers.Dense(3)(inputs), "size": keras.layers.Dense(1)(inputs)})
    x, y = data(rng)
    trains(model, x, {"kind": y, "size": x[:, :1]}, loss={"kind": LOSS, "size": "mse"})


def test_several_steps_in_one_execution(rng):
    trains(stack(keras.layers.Dense(4)), *data(rng), steps_per_execution=3)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy, rng):
    keras.config.set_dtype_policy(policy)
    trains(stack(keras.layers.Dense(4)), *data(rng))


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_embedding(sparse_as_dense, rng):
    model = keras.Sequential(
        [keras.Input((5,), dtype="int32"), keras.layers.Embedding(11, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), sparse_as_dense=sparse_as_dense)
    trains(model, rng.integers(0, 11, (24, 5)), rng.integers(0, 3, 24), optimizer)


def test_train_on_batch(rng):
    model = stack(keras.layers.Dense(4))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), LOSS, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.variables, *model.optimizer.variables], 0)
    x, y = data(rng)
    for _ in range(3):
        model.train_on_batch(x, y)
    alike_everywhere(model)


def test_frozen_layers_and_those_that_are_thawed_later(rng):
    model = stack(keras.layers.Dense(4, name="early"))
    model.get_layer("early").trainable = False
    trains(model, *data(rng))
    model.get_layer("early").trainable = True
    trains(model, *data(rng))


def test_groups_sums_and_accumulation(rng):
    for settings in ({"groups": 2}, {"op": hvd.Sum}, {"backward_passes_per_step": 2}):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), **settings)
        trains(stack(keras.layers.Dense(4)), *data(rng), optimizer)


def test_batch_normalization_statistics_are_put_together(rng):
    model = stack(keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.5, name="norm"))
    trains(model, *data(rng))
    norm = model.get_layer("norm")
    means = hvd.allgather(np.asarray(norm.moving_mean, np.float64)[None]).numpy()
    variances = hvd.allgather(np.asarray(norm.moving_variance, np.float64)[None]).numpy()
    assert hvd.size() == 1 or (means[0] != means[1]).any(), "each rank has its own until then"
    assert hvd.average_moving_statistics(model) == 1
    np.testing.assert_allclose(norm.moving_mean, means.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(norm.moving_variance, variances.mean(0) + means.var(0), rtol=1e-4, atol=1e-7)
    together = hvd.allgather(np.asarray(norm.moving_variance)[None]).numpy()
    assert all((each == together[0]).all() for each in together)
    assert hvd.average_moving_statistics(stack()) == 0
    model.fit(*data(rng), batch_size=4, verbose=0, callbacks=[hvd.callbacks.MovingStatisticsCallback()])
    together = hvd.allgather(np.asarray(norm.moving_mean)[None]).numpy()
    assert all((each == together[0]).all() for each in together)


def test_a_saved_model_goes_on(tmp_path, rng):
    model = stack(keras.layers.Dense(4))
    trains(model, *data(rng))
    path = tmp_path / "model.keras"
    model.save(path)
    again = hvd.load_model(str(path))
    assert int(again.optimizer.iterations) == int(model.optimizer.iterations)
    again.fit(*data(rng), batch_size=4, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    alike_everywhere(again)


def test_refused(rng):
    model = stack()
    with pytest.raises(UsageError, match="distributed already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    with pytest.raises(UsageError, match="expected Average, Sum or Adasum"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op="mean")
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), LOSS, jit_compile=True)
    with pytest.raises(UsageError, match="jit_compile=True"):
        model.train_on_batch(*data(rng))
