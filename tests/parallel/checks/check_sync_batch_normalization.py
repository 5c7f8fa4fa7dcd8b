"""SyncBatchNormalization on N ranks is Keras' own layer in one process that has the batches of all ranks."""

import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_mnist.keras as hvd
import hvd_mnist.tensorflow as hvd_tf
from hvd_mnist import checkpoint
from hvd_mnist.errors import UsageError

EQUAL, UNEQUAL = (lambda rank: 6), (lambda rank: 3 + 4 * rank)


def shared(lengths, shape, seed=0):
    """(all ranks' inputs, all ranks' weights of the outputs, where this rank's are); the same on every rank."""
    ends = np.cumsum([0, *(lengths(rank) for rank in range(hvd.size()))])
    data = np.random.default_rng(seed)
    x, weights = (data.normal(30.0, 3.0, (ends[-1], *shape)).astype(np.float32) for _ in range(2))
    return x, weights, slice(ends[hvd.rank()], ends[hvd.rank() + 1])


def outcome(layer, x, weights, mask=None):
    """Outputs; gradients of a loss by inputs, gamma, beta; moving mean and variance after a step of training."""
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x, training=True, mask=mask)
        loss = tf.reduce_sum(outputs**3 * weights) / 1000
    gradients = tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])
    return outputs, *gradients, tf.identity(layer.moving_mean.value), tf.identity(layer.moving_variance.value)


def assert_equals_one_process(lengths, shape, axis=-1, graph=False, masked=False):
    x, weights, mine = shared(lengths, shape)
    mask = np.random.default_rng(5).random(x.shape[:-1]) < 0.6 if masked else None
    settings = {"axis": axis, "momentum": 0.5, "epsilon": 1e-4}
    plain, synced = keras.layers.BatchNormalization(**settings), hvd.SyncBatchNormalization(**settings)
    for layer in (plain, synced):
        layer.build((None, *shape))
        layer.gamma.assign(np.linspace(0.5, 2.0, layer.gamma.shape[0]))
    run = tf.function(outcome) if graph else outcome
    expected = outcome(plain, x, weights, mask)
    found = run(synced, x[mine], weights[mine], None if mask is None else mask[mine])
    for name, one, all_of_it in zip(("outputs", "by inputs"), found, expected, strict=False):
        scale = float(np.abs(all_of_it).max())
        np.testing.assert_allclose(one, all_of_it[mine], rtol=0, atol=1e-4 * scale, err_msg=name)
    for name, one, all_of_it in zip(("by gamma", "by beta"), found[2:], expected[2:], strict=False):
        summed = hvd.allreduce(one, op=hvd.Sum)  # of ranks' losses; DistributedOptimizer takes their mean
        scale = float(np.abs(all_of_it).max())  # sums of terms of both signs, in float32 on both sides
        np.testing.assert_allclose(summed, all_of_it, rtol=0, atol=2e-3 * scale, err_msg=name)
    for name, one, all_of_it in zip(("moving mean", "moving variance"), found[4:], expected[4:], strict=True):
        np.testing.assert_allclose(one, all_of_it, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(synced(x[mine]), plain(x[mine]), rtol=1e-4, err_msg="inference")
    told = hvd.allgather(np.asarray(synced.moving_variance)[None]).numpy()
    assert (told == told[0]).all()


@pytest.mark.parametrize("lengths", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("shape, axis, graph", [((3,), -1, False), ((4, 5, 3), -1, True), ((3, 4, 5), 1, False)])
def test_equals_one_process_with_the_whole_batch(lengths, shape, axis, graph):
    assert_equals_one_process(lengths, shape, axis, graph)


def test_places_that_a_mask_leaves_out_do_not_count():
    assert_equals_one_process(UNEQUAL, (7, 3), masked=True)


@pytest.mark.several_ranks
def test_a_plain_layer_would_not_have_passed():
    """The control: statistics of a rank's own batch give other outputs."""
    x, weights, mine = shared(UNEQUAL, (3,))
    whole, own = keras.layers.BatchNormalization(), keras.layers.BatchNormalization()
    difference = np.abs(outcome(whole, x, weights)[0][mine] - outcome(own, x[mine], weights[mine])[0])
    assert difference.max() > 0.1


def branches():
    """Two normalizations beside each other, as in a residual block, and one after them."""
    inputs = keras.Input((6,))
    left = hvd.SyncBatchNormalization()(keras.layers.Dense(4)(inputs))
    right = hvd.SyncBatchNormalization()(keras.layers.Dense(4)(inputs))
    outputs = keras.layers.Dense(3)(hvd.SyncBatchNormalization(name="last")(left + right))
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_trains_is_saved_and_loaded(policy, tmp_path, rng, monkeypatch):
    keras.config.set_dtype_policy(policy)
    model = branches()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss)  # jit_compile="auto": Keras asks the layer
    x, y = rng.normal(hvd.rank(), 1.0, (24, 6)).astype(np.float32), rng.integers(0, 3, 24)
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[start])
    assert start.checks >= 3
    assert hvd.average_moving_statistics(model) == 0, "there is nothing to put together"
    for variable in model.non_trainable_variables:
        values = hvd.allgather(np.asarray(variable, np.float32)[None]).numpy()
        assert (values == values[0]).all(), variable.path
    path = tmp_path / "model.keras"
    model.save(path)
    same = np.linspace(-1, 1, 30, dtype=np.float32).reshape(5, 6)
    again = keras.saving.load_model(path)
    assert type(again.get_layer("last")) is hvd.SyncBatchNormalization
    np.testing.assert_array_equal(again(same), model(same))
    # Where hvd_mnist.keras has not been imported, nor perhaps Horovod installed, it is read as Keras' own layer.
    monkeypatch.delitem(keras.saving.get_custom_objects(), "hvd_mnist>SyncBatchNormalization")
    read = checkpoint.load_model(path)
    assert type(read.get_layer("last")) is keras.layers.BatchNormalization
    np.testing.assert_array_equal(read(same), model(same))
    read.save(path)
    with zipfile.ZipFile(path) as archive:
        assert b"hvd_mnist" not in archive.read("config.json")


def test_configuration_and_refusals():
    layer = hvd_tf.SyncBatchNormalization(momentum=0.7, epsilon=0.01, scale=False)
    again = hvd.SyncBatchNormalization.from_config(layer.get_config())
    assert again.get_config() == layer.get_config() and again.momentum == 0.7
    with pytest.raises(UsageError, match="SyncBatchNormalization '.*' cannot be compiled by XLA"):
        tf.function(lambda x: layer(x, training=True), jit_compile=True, autograph=False)(tf.zeros((2, 3)))
