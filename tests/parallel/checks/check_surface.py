"""All of Horovod's public names are here, and the collectives and wrappers that are new give the right answer."""

import types

import horovod.keras
import horovod.tensorflow.keras
import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_mnist.keras as hvd
import hvd_mnist.tensorflow as hvd_tf
from hvd_mnist.errors import UsageError


def public(module):
    """Names that a module of Horovod offers: its own functions, classes and constants."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and str(getattr(value, "__module__", "horovod")).startswith("horovod")
    }


def test_every_name_of_horovods_keras_is_here():
    helpers = {"is_version_greater_equal_than"}
    for module in (horovod.tensorflow.keras, horovod.keras):
        assert public(module) - helpers <= set(hvd.__all__), module.__name__
    for name in ("callbacks", "elastic"):
        theirs, ours = getattr(horovod.tensorflow.keras, name), getattr(hvd, name)
        assert public(theirs) - helpers - {"K", "TensorFlowKerasState"} <= set(dir(ours)), name
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    assert "DistributedGradientTape" in hvd_tf.__all__ and hvd_tf.allreduce is hvd.allreduce


def test_collectives_that_are_several_or_scatter(rng):
    rank, size = hvd.rank(), hvd.size()
    rows = np.arange(2 * size * 3, dtype=np.float32).reshape(2 * size, 3)
    mine = slice(2 * rank, 2 * rank + 2)
    np.testing.assert_array_equal(hvd.reducescatter(rows * (rank + 1), op=hvd.Sum), rows[mine] * size * (size + 1) / 2)
    np.testing.assert_allclose(hvd.reducescatter(rows * rank), rows[mine] * (size - 1) / 2)
    one, two = hvd.grouped_reducescatter([rows, rows + rank], op=hvd.Sum)
    np.testing.assert_array_equal(one, rows[mine] * size)
    np.testing.assert_array_equal(two, rows[mine] * size + size * (size - 1) / 2)
    one, two = hvd.grouped_allreduce([[1.0], [2.0 * rank]], op=hvd.Sum)
    assert one.numpy().tolist() == [size] and two.numpy().tolist() == [size * (size - 1)]
    one, two = hvd.grouped_allgather([tf.constant([rank]), tf.constant([[rank, 7]])])
    assert one.numpy().tolist() == list(range(size)) and two.numpy().tolist() == [[r, 7] for r in range(size)]
    out, splits = hvd.alltoall(tf.constant([10 * rank + to for to in range(size)]), splits=tf.ones(size, tf.int32))
    assert out.numpy().tolist() == [10 * r + rank for r in range(size)] and splits.numpy().tolist() == [1] * size
    assert hvd.allgather_object({"rank": rank}) == [{"rank": r} for r in range(size)]
    assert hvd.broadcast_object_fn(root_rank=0)({"rank": rank}) == {"rank": 0}
    hvd.barrier()


@pytest.mark.several_ranks
def test_timeline_starts_and_stops(tmp_path):
    hvd.start_timeline(str(tmp_path / f"timeline-{hvd.rank()}.json"))
    hvd.allreduce([1.0], name="in.the.timeline")
    hvd.stop_timeline()
    if hvd.rank() == 0:
        assert "HorovodAllreduce" in (tmp_path / "timeline-0.json").read_text()


@pytest.mark.parametrize("scaled", [True, False])
def test_layers_that_stay_each_ranks_own(scaled, rng):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="all"), keras.layers.Dense(1, name="own")])
    own, all_ranks = model.get_layer("own"), model.get_layer("all")
    own.kernel.assign(own.kernel + float(hvd.rank()))
    start = np.asarray(own.kernel)
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0, momentum=0.9), local_layers=own, scale_local_gradients=scaled
    )
    model.compile(optimizer, "mse", jit_compile=False)
    x, y = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=(4, 1)).astype(np.float32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradient = tape.gradient(loss, own.kernel.value).numpy()
    model.fit(x, y, batch_size=4, epochs=1, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    kernels = np.asarray(hvd.allgather(np.asarray(all_ranks.kernel)[None]))
    assert all((kernel == kernels[0]).all() for kernel in kernels)
    part = hvd.size() if scaled else 1
    if hvd.rank() == 0:  # whose other layer is the one that all have got
        np.testing.assert_allclose(np.asarray(own.kernel), start - gradient / part, rtol=1e-4, atol=1e-6)
    owns = np.asarray(hvd.allgather(np.asarray(own.kernel)[None]))
    assert hvd.size() == 1 or not (owns[0] == owns[1]).all()
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


def test_local_layers_must_be_layers_with_weights():
    with pytest.raises(UsageError, match="expected keras layers, found str"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=["own"])
    with pytest.raises(UsageError, match="layer 'flat' has no trainable variables"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=keras.layers.Flatten(name="flat"))


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("kind", ["keras", "tensorflow"])
def test_gradient_tape(kind, graph):
    rank, size = hvd.rank(), hvd.size()
    make = keras.Variable if kind == "keras" else tf.Variable
    weight, bias = make(np.ones(2, np.float32)), make(np.zeros(1, np.float32))

    def step(x):
        with hvd_tf.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(tf.convert_to_tensor(weight) * x) + 3.0 * tf.reduce_sum(tf.convert_to_tensor(bias))
        gradients = tape.gradient(loss, {"weight": weight, "bias": bias})
        for variable, gradient in ((weight, gradients["weight"]), (bias, gradients["bias"])):
            variable.assign(tf.convert_to_tensor(variable) - 0.5 * gradient)
        return gradients

    run = tf.function(step) if graph else step
    for number in range(1, 4):
        gradients = run(tf.constant([1.0, 2.0]) * float(rank + number))
        mean = (size - 1) / 2 + number
        np.testing.assert_allclose(gradients["weight"], [mean, 2 * mean])
        np.testing.assert_allclose(gradients["bias"], [3.0])


def test_gradient_tape_leaves_local_sources_and_refuses_others(rng):
    local, shared = tf.Variable(1.0), tf.Variable(1.0)
    with hvd_tf.DistributedGradientTape(tf.GradientTape(), scale_local_gradients=False) as tape:
        tape.register_local_source(local)
        loss = float(hvd.rank()) * (local + shared)
    mine, mean = tape.gradient(loss, [local, shared])
    assert float(mine) == hvd.rank() and float(mean) == (hvd.size() - 1) / 2
    with pytest.raises(UsageError, match="wraps a tf.GradientTape; found int"):
        hvd_tf.DistributedGradientTape(3)


def test_two_sets_of_sources_in_one_step():
    """As a GAN does; the names of the collectives must differ."""
    one, two = tf.Variable(1.0), tf.Variable(2.0)

    @tf.function
    def step(x):
        with hvd_tf.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            losses = one * x, two * two * x
        return tape.gradient(losses[0], one), tape.gradient(losses[1], two)

    for _ in range(3):
        first, second = step(tf.constant(float(hvd.rank())))
        mean = (hvd.size() - 1) / 2
        assert (float(first), float(second)) == (mean, 4 * mean)
