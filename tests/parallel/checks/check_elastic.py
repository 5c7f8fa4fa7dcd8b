"""Elastic training's parts: the state and the three callbacks. Ranks that die and join: ../test_elastic.py."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_mnist.keras as hvd
from hvd_mnist.errors import PeerLost, UsageError


def make_model():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), loss="mse", jit_compile=False)
    return model


def variables(model):
    return [v.numpy() for v in [*model.variables, *model.optimizer.variables]]


def one_step(model, batches=1):
    x = np.ones((8 * batches, 4), np.float32)
    return model.fit(x, np.zeros((8 * batches, 3), np.float32), batch_size=8, verbose=0, shuffle=False)


def test_restore_brings_back_every_variable_and_attribute_of_the_last_save():
    model = make_model()
    one_step(model)
    state = hvd.elastic.KerasState(model, epoch=2, batch=7)
    before = variables(model)
    one_step(model, batches=3)
    state.epoch, state.batch = 3, 0
    assert any((a != b).any() for a, b in zip(before, variables(model), strict=True))
    state.restore()
    assert (state.epoch, state.batch) == (2, 7)
    for then, now in zip(before, variables(model), strict=True):  # weights, moments, iterations, the dropout's seed
        np.testing.assert_array_equal(then, now)
    state.batch = 9
    one_step(model)
    after = variables(model)
    state.save()
    state.batch = 11
    state.restore()
    assert state.batch == 9
    for then, now in zip(after, variables(model), strict=True):
        np.testing.assert_array_equal(then, now)


def test_a_reset_traces_anew_and_proves_equality_again():
    model = make_model()
    state = hvd.elastic.KerasState(model)
    calls = []
    state.register_reset_callbacks([lambda: calls.append(hvd.size())])
    one_step(model, batches=3)
    proof = model.optimizer._exchange.proof
    assert int(proof._applied) == proof.CHECKED and model.train_function is not None
    state.on_reset()
    assert int(proof._applied) == 0 and model.train_function is None and calls == [hvd.size()]
    one_step(model, batches=3)
    assert int(proof._applied) == proof.CHECKED


def test_sync_gives_every_rank_the_variables_and_attributes_of_rank_0():
    model = make_model()
    one_step(model)
    state = hvd.elastic.KerasState(model, epoch=hvd.rank(), place={"seen": [hvd.rank()]})
    for variable in model.trainable_variables:
        variable.assign(variable + 1 + hvd.rank())
    mine = variables(model)
    state.sync()
    assert state.epoch == 0 and state.place == {"seen": [0]}
    if hvd.rank() == 0:
        for then, now in zip(mine, variables(model), strict=True):
            np.testing.assert_array_equal(then, now)
    proof = hvd.callbacks.ReplicaCheckCallback()
    proof.set_model(model)
    proof.check("after sync")


@pytest.mark.alone  # a launcher that is not elastic cannot let its ranks meet again
def test_run_goes_back_to_the_last_commit_where_a_rank_was_lost():
    """What TensorFlow raises when a peer dies, in place of a real death; the real one is in parallel/."""
    state = hvd.elastic.KerasState(make_model(), batch=0)
    seen = []

    @hvd.elastic.run
    def train(state, more):
        seen.append(state.batch)
        state.batch += 1
        state.commit()
        if len(seen) == 1:
            state.batch = 99
            raise tf.errors.UnknownError(None, None, "{{node HorovodGroupedAllreduce}} Horovod has been shut down.")
        return state.batch + more

    assert train(state, more=10) == 12 and seen == [0, 1]

    for error in (ValueError("a fault of the program"), PeerLost("too many resets: the program gives up")):

        @hvd.elastic.run
        def broken(state, error=error):
            raise error

        with pytest.raises(type(error), match=str(error)):
            broken(state)


def test_callbacks_count_batches_and_epochs_over_resets():
    model = make_model()
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    commits = []
    state.commit = lambda: commits.append((state.epoch, state.batch))

    def fit(**how):
        x = np.ones((40, 4), np.float32)  # 5 batches
        elastic = hvd.elastic
        callbacks = [elastic.UpdateEpochStateCallback(state), elastic.UpdateBatchStateCallback(state)]
        callbacks.append(elastic.CommitStateCallback(state, batches_per_commit=2))
        model.fit(x, x[:, :3], batch_size=8, verbose=0, shuffle=False, callbacks=callbacks, **how)

    fit(epochs=2)
    assert commits == [(0, 2), (0, 4), (1, 0), (1, 2), (1, 4), (2, 0)]
    # A reset in mid-epoch, two of five batches done: the epoch is shorter, and the next one whole again.
    commits.clear()
    state.batch = 2
    fit(epochs=4, initial_epoch=2)
    assert commits == [(2, 4), (3, 0), (3, 2), (3, 4), (4, 0)]


def test_a_state_needs_a_built_model_with_an_optimizer():
    with pytest.raises(UsageError, match="model that is built"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(3)]))
    with pytest.raises(UsageError, match="needs an optimizer"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)]))
