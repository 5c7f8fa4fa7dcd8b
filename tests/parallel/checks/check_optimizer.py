"""Gradients are averaged, and then the wrapped optimizer does what it would do with the average."""

import sys
import warnings

import horovod.tensorflow as stock
import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_mnist.keras as hvd
from hvd_mnist.errors import ReplicasDiffer, UsageError
from hvd_mnist.keras import groups

STEPS = 4
SHAPES = [(3, 2), (2,), (5,)]


def gradients_of(rank, step):
    rng = np.random.default_rng([rank, step])
    return [rng.normal(size=shape).astype(np.float32) * (1 + rank) for shape in SHAPES]


def mean_gradients(step):
    return [np.mean(parts, axis=0) for parts in zip(*(gradients_of(r, step) for r in range(hvd.size())), strict=True)]


def variables():
    return [keras.Variable(np.full(shape, 0.5, np.float32), name=f"v{i}") for i, shape in enumerate(SHAPES)]


class Halving(keras.optimizers.Optimizer):
    """An optimizer of a user's own: subtracts half the gradient."""

    def __init__(self, **kwargs):
        super().__init__(learning_rate=1.0, **kwargs)

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient * 0.5)


FACTORIES = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.1),
    "global clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.05),
    "ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 10)),
    "own": Halving,
}


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("kind", FACTORIES)
def test_equals_plain_optimizer_on_mean_gradients(kind, graph):
    ours, expected = variables(), variables()
    wrapped, plain = hvd.DistributedOptimizer(FACTORIES[kind]()), FACTORIES[kind]()
    wrapped.build(ours)
    plain.build(expected)
    apply = (lambda g: wrapped.apply(g, ours)) if not graph else tf.function(lambda g: wrapped.apply(g, ours))
    for step in range(STEPS):
        apply([tf.constant(g) for g in gradients_of(hvd.rank(), step)])
        plain.apply([tf.constant(g) for g in mean_gradients(step)], expected)
    for mine, theirs in zip([*ours, *wrapped.variables], [*expected, *plain.variables], strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=2e-6, atol=2e-6)
    assert int(np.asarray(wrapped.iterations)) == STEPS


@pytest.mark.parametrize("together", [True, False])
def test_a_sum_in_the_gradient_s_memory_leaves_what_is_read_later(together):
    """Our Horovod sums a gradient in its own memory, unless another operation is still to read it (mended_speed.py)."""
    rank, size = hvd.rank(), hvd.size()
    all_ranks = sum(range(1, size + 1))

    @tf.function
    def step(x):
        given_away, kept = x * 3.0, x * 5.0
        if together:
            first, second = stock.grouped_allreduce([given_away, kept], op=stock.Sum, name="in_place")
        else:
            first, second = (
                stock.allreduce(each, op=stock.Sum, name=f"in_place.{i}") for i, each in enumerate((given_away, kept))
            )
        with tf.control_dependencies([first, second]):
            return first, second, kept + 1.0

    x = tf.constant(np.full(50_000, rank + 1, np.float32))
    for _ in range(3):
        first, second, kept = step(x)
        np.testing.assert_array_equal(first, np.full(50_000, 3.0 * all_ranks))
        np.testing.assert_array_equal(second, np.full(50_000, 5.0 * all_ranks))
        np.testing.assert_array_equal(kept, np.full(50_000, 5.0 * (rank + 1) + 1))
    eager = stock.allreduce(x, op=stock.Sum, name="in_place.eager")
    np.testing.assert_array_equal(eager, np.full(50_000, float(all_ranks)))
    np.testing.assert_array_equal(x, np.full(50_000, rank + 1.0))  # the caller's own


def test_instance_and_class_stay():
    schedule = keras.optimizers.schedules.CosineDecay(0.01, 10)
    optimizer = keras.optimizers.Adam(schedule)
    wrapped = hvd.DistributedOptimizer(optimizer)
    assert wrapped is optimizer and isinstance(wrapped, keras.optimizers.Adam)
    assert wrapped._learning_rate is schedule and wrapped.__class__ is keras.optimizers.Adam
    with pytest.raises(UsageError, match="distributed already"):
        hvd.DistributedOptimizer(wrapped)
    with pytest.raises(UsageError, match="found str"):
        hvd.DistributedOptimizer("adam")


def test_none_stays_none():
    ours = variables()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    gradients = [tf.constant(g) for g in gradients_of(hvd.rank(), 0)]
    gradients[1] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of the variable without a gradient
        optimizer.apply(gradients, ours)
    np.testing.assert_array_equal(np.asarray(ours[1]), 0.5)
    np.testing.assert_allclose(np.asarray(ours[0]), 0.5 - mean_gradients(0)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(as_dense):
    """Two sparse gradients of different shapes, beside a dense one; rows that only one rank touches."""
    tables = [keras.Variable(np.zeros((8, 2), np.float32)), keras.Variable(np.zeros((4, 3), np.float32))]
    dense = keras.Variable(np.zeros(2, np.float32))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=as_dense)
    rank, size = hvd.rank(), hvd.size()

    @tf.function
    def step():
        sparse = [
            tf.IndexedSlices(tf.ones((1, 2)), [rank], dense_shape=[8, 2]),
            tf.IndexedSlices(tf.ones((1, 3)), [0], dense_shape=[4, 3]),
        ]
        optimizer.apply([sparse[0], tf.constant([1.0, 2.0]) * (rank + 1.0), sparse[1]], [tables[0], dense, tables[1]])

    step()
    expected = np.zeros((8, 2))
    expected[:size] = -1.0 / size
    np.testing.assert_allclose(np.asarray(tables[0]), expected, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(tables[1])[0], -1.0, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(dense), -np.array([1.0, 2.0]) * (size + 1) / 2, rtol=1e-6)


@pytest.mark.parametrize("name, tolerance", [("none", 1e-6), ("fp16", 2e-3), ("bf16", 2e-2)])
def test_compression(name, tolerance):
    ours = variables()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=getattr(hvd.Compression, name))
    tf.function(lambda: optimizer.apply([tf.constant(g) for g in gradients_of(hvd.rank(), 0)], ours))()
    for mine, mean in zip(ours, mean_gradients(0), strict=True):
        assert np.asarray(mine).dtype == np.float32
        np.testing.assert_allclose(np.asarray(mine), 0.5 - mean, atol=tolerance * (1 + hvd.size()))
    bits = hvd.allgather(np.concatenate([np.asarray(v).reshape(-1) for v in ours])[None]).numpy()
    assert (bits == bits[0]).all()


@pytest.mark.parametrize(
    "name, predivide, expected",
    [("none", 1, 60_000.0), ("bf16", 1, 59_904.0), ("fp16", 1, None), ("fp16", max(2, hvd.size()), 60_000.0)],
)
def test_a_sum_beyond_the_range_of_fp16_is_infinite_and_seen(name, predivide, expected):
    """fp16 ends at 65 504 and is summed before it is divided; what overflows is infinite on all ranks, never wrong."""
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=getattr(hvd.Compression, name), gradient_predivide_factor=predivide
    )
    variable = keras.Variable(np.zeros(2, np.float32))
    (mean,) = optimizer.average_gradients([tf.constant([60_000.0, 1.0])], [variable])
    overflows = expected is None and hvd.size() > 1
    np.testing.assert_allclose(mean.numpy(), [np.inf if overflows else expected or 60_000.0, 1.0], rtol=2e-3)


@pytest.mark.parametrize(
    "settings", [{"groups": 2}, {"num_groups": 3}, {"groups": 100}, {"gradient_predivide_factor": 2.0}]
)
def test_groups_and_predivide_change_nothing(settings):
    ours = variables()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **settings)
    optimizer.apply([tf.constant(g) for g in gradients_of(hvd.rank(), 0)], ours)
    for mine, mean in zip(ours, mean_gradients(0), strict=True):
        np.testing.assert_allclose(np.asarray(mine), 0.5 - mean, rtol=2e-6, atol=2e-6)


def test_groups_of_variables():
    ours = variables()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=[[ours[2], ours[0]]])
    optimizer.apply([tf.constant(g) for g in gradients_of(hvd.rank(), 0)], ours)
    for mine, mean in zip(ours, mean_gradients(0), strict=True):
        np.testing.assert_allclose(np.asarray(mine), 0.5 - mean, rtol=2e-6, atol=2e-6)


@pytest.fixture
def exchanges(monkeypatch):
    """Shapes of each exchange of gradients, in order, votes left out."""
    seen = []
    original = stock.grouped_allreduce

    def exchange(tensors, **settings):
        seen.append([tuple(tensor.shape) for tensor in tensors if tuple(tensor.shape) != (4,)])
        return original(tensors, **settings)

    monkeypatch.setattr(stock, "grouped_allreduce", exchange)
    return seen


def apply_in_graph(optimizer, ours):
    tf.function(lambda: optimizer.apply([tf.constant(g) for g in gradients_of(hvd.rank(), 0)], ours))()
    for mine, mean in zip(ours, mean_gradients(0), strict=True):
        np.testing.assert_allclose(np.asarray(mine), 0.5 - mean, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, [[(3, 2), (2,), (5,)]]),  # the ranks of one host
        ({"groups": 2}, [[(2,), (5,)], [(3, 2)]]),
        ({"groups": 3}, [[(5,)], [(2,)], [(3, 2)]]),
    ],
)
def test_last_layers_travel_first(settings, expected, exchanges):
    apply_in_graph(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **settings), variables())
    assert exchanges == expected


@pytest.mark.parametrize(
    "least, most, expected",
    [
        (1, 8, [[(5,)], [(2,)], [(3, 2)]]),
        (21, 8, [[(2,), (5,)], [(3, 2)]]),  # 20 bytes are too few
        (1, 2, [[(2,), (5,)], [(3, 2)]]),  # half of 52 bytes
        (1000, 8, [[(3, 2), (2,), (5,)]]),
    ],
)
def test_where_groups_pay_they_have_a_size(least, most, expected, exchanges, monkeypatch):
    monkeypatch.setattr(groups, "pays", lambda: True)
    monkeypatch.setattr(groups, "LEAST_BYTES", least)
    monkeypatch.setattr(groups, "MOST_GROUPS", most)
    apply_in_graph(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), variables())
    assert exchanges == expected
    exchanges.clear()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([tf.constant(g) for g in gradients_of(hvd.rank(), 0)], variables())
    assert len(exchanges) == 1  # an eager step has all gradients before it exchanges any


@pytest.mark.parametrize(
    "size, nccl, elastic, expected", [(2, 0, "0", False), (2, 21805, "0", True), (1, 21805, "0", False),
                                      (2, 21805, "1", False)],
)  # fmt: skip
def test_groups_pay_over_nccl(size, nccl, elastic, expected, monkeypatch):
    """Not where an elastic job's ranks could come to other answers."""
    monkeypatch.setattr(groups.hvd, "size", lambda: size)
    monkeypatch.setattr(groups.hvd, "nccl_built", lambda: nccl)
    monkeypatch.setenv("HOROVOD_ELASTIC", elastic)
    assert groups.pays() is expected


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_gradient_that_is_not_finite_is_named_whatever_group_it_is_in(count, exchanges):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=count)
    votes, ours = optimizer._exchange.votes, variables()
    votes.watch_gradients = True
    for place, bad in enumerate([*ours, None]):
        parts = [tf.constant(g) for g in gradients_of(hvd.rank(), 0)]
        if bad is not None and hvd.rank() == hvd.size() - 1:
            parts[place] *= float("nan")
        tf.function(lambda parts=parts: optimizer.average_gradients(parts, ours))()
        assert votes.heard() == (() if bad is None else ("not finite",))
        last = hvd.rank() == hvd.size() - 1
        assert votes.bad_gradient() == (bad.path if bad is not None and last else None)


def test_sum():
    ours = variables()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.apply([tf.constant(g) for g in gradients_of(hvd.rank(), 0)], ours)
    np.testing.assert_allclose(np.asarray(ours[0]), 0.5 - hvd.size() * mean_gradients(0)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_backward_passes_per_step(average, graph, monkeypatch):
    """Two passes, one exchange, one update; the sum of both passes, or their mean."""
    ours = variables()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
    )
    exchanges = []
    original = stock.grouped_allreduce
    monkeypatch.setattr(stock, "grouped_allreduce", lambda *a, **k: exchanges.append(1) or original(*a, **k))
    apply = tf.function(lambda g: optimizer.apply(g, ours)) if graph else lambda g: optimizer.apply(g, ours)
    for step in range(4):
        apply([tf.constant(g) for g in gradients_of(hvd.rank(), step)])
        if step == 0:
            np.testing.assert_array_equal(np.asarray(ours[0]), 0.5)
    expected = sum(mean_gradients(step)[0] for step in range(4)) / (2 if average else 1)
    np.testing.assert_allclose(np.asarray(ours[0]), 0.5 - expected, rtol=1e-5, atol=1e-5)
    assert int(np.asarray(optimizer.iterations)) == 2
    assert graph or len(exchanges) == 2  # a graph calls it when it is traced, however often it runs
    assert len(optimizer.variables) == 2  # iterations and rate: the sums are not saved with the model


@pytest.mark.several_ranks
def test_process_set():
    """The ranks of a set average among themselves: here each rank alone."""
    alone = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    ours = variables()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=alone[hvd.rank()])
    optimizer.apply([tf.constant(g) for g in gradients_of(hvd.rank(), 0)], ours)
    np.testing.assert_allclose(np.asarray(ours[0]), 0.5 - gradients_of(hvd.rank(), 0)[0], rtol=1e-6, atol=1e-6)
    removed = [hvd.remove_process_set(one) for one in alone]  # a collective: every rank removes every set
    assert all(removed)


def small_model(policy="float32"):
    keras.config.set_dtype_policy(policy)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2, dtype="float32")])


def test_loss_scaling_is_inside_the_average(rng):
    """One rank's infinity: all ranks skip the step and lower the scale; nobody waits."""
    model = small_model("mixed_float16")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    model.compile(optimizer, "mse", jit_compile=False)
    assert model.optimizer is optimizer
    x, y = rng.normal(size=(8, 4)).astype("float32"), np.zeros((8, 2), "float32")
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    before = [np.asarray(v).copy() for v in model.trainable_variables]
    scale = float(np.asarray(optimizer.dynamic_scale))
    y = y if hvd.rank() else np.full_like(y, np.inf)
    model.fit(x, y, batch_size=8, verbose=0)
    for v, old in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(np.asarray(v), old)
    assert float(np.asarray(optimizer.dynamic_scale)) == scale / 2


def test_average_inside_loss_scaling_is_refused():
    model = small_model()
    model.compile(keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))), "mse")
    with pytest.raises(UsageError, match="inside a LossScaleOptimizer"):
        model.fit(np.zeros((4, 4)), np.zeros((4, 2)), verbose=0)


def test_xla(monkeypatch):
    model = small_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
    with pytest.raises(UsageError, match="cannot be compiled by XLA"):
        model.fit(np.zeros((4, 4)), np.zeros((4, 2)), verbose=0)
    # Where there is a GPU, Keras would choose XLA by itself.
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [tf.config.PhysicalDevice("g", "GPU")])
    plain, ours = small_model(), small_model()
    plain.compile(keras.optimizers.SGD(0.1), "mse")
    ours.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    assert plain.jit_compile and not ours.jit_compile


def test_saved_model_needs_no_horovod(tmp_path, rng):
    import subprocess

    model = small_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01, clipnorm=1.0)), "mse")
    model.fit(
        rng.normal(size=(8, 4)),
        np.zeros((8, 2)),
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    path = tmp_path / "model.keras"
    model.save(path)
    again = hvd.load_model(path)
    assert hasattr(type(again.optimizer), "average_gradients")
    for mine, theirs in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
    if hvd.rank() == 0:
        program = (
            "import sys; sys.modules['horovod'] = sys.modules['hvd_mnist'] = None\n"
            "import keras; m = keras.saving.load_model(sys.argv[1])\n"
            "print(type(m.optimizer).__name__, int(m.optimizer.iterations), m.optimizer.clipnorm)"
        )
        told = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120)
        assert told.stdout.split() == ["Adam", "1", "1.0"], told.stderr
    hvd.allreduce(0.0)  # the others wait here for rank 0


@pytest.mark.parametrize("kind, tolerance", [("sgd", 1e-6), ("adam", 1e-5)])
def test_ranks_at_part_batch_equal_one_at_the_whole(kind, tolerance):
    """A convolutional model in fit: N ranks at B / N end where one process at B ends."""

    def build():
        keras.utils.set_random_seed(7)
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(5),
            ]
        )

    rank, size, batch, steps = hvd.rank(), hvd.size(), 16, 6
    data = np.random.default_rng(0)
    x, y = data.normal(size=(batch * steps, 8, 8, 1)).astype("float32"), data.integers(0, 5, batch * steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ours, alone = build(), build()
    ours.compile(hvd.DistributedOptimizer(FACTORIES[kind]()), loss)
    alone.compile(FACTORIES[kind](), loss)
    part = batch // size
    mine = np.concatenate([np.arange(s * batch + rank * part, s * batch + (rank + 1) * part) for s in range(steps)])
    ours.fit(
        x[mine],
        y[mine],
        batch_size=part,
        shuffle=False,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0, check_replicas_every=1)],
    )
    alone.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    for mine, theirs in zip(ours.trainable_variables, alone.trainable_variables, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=0, atol=tolerance)


@pytest.mark.several_ranks
def test_first_steps_catch_a_missing_broadcast(rng):
    """No callback at all: the optimizer itself finds that ranks started apart."""
    keras.utils.set_random_seed(hvd.rank())
    model = small_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer, "mse")
    with pytest.raises(tf.errors.OpError, match="replicas differ in model variables before step 2"):
        model.fit(rng.normal(size=(32, 4)), np.zeros((32, 2)), batch_size=8, verbose=0)
    assert isinstance(hvd.proof_failure(optimizer), ReplicasDiffer)
    assert "BroadcastGlobalVariablesCallback" in str(hvd.proof_failure(optimizer))
