"""What one rank alone finds or is told, decided by all after the same step."""

import json
import os
import signal

import keras
import numpy as np
import pytest

import hvd_mnist.keras as hvd
from hvd_mnist.errors import DataError, NotFinite, ReplicasDiffer, UsageError
from hvd_mnist.keras.nan import VARIABLE, in_words
from hvd_mnist.schedule import Plan
from hvd_mnist.training_callbacks import Patience, Plateau

LAST = hvd.size() - 1
several_ranks = pytest.mark.several_ranks


def model_of_two_layers(rate=0.01):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="one"), keras.layers.Dense(2, name="two")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse", jit_compile=False)
    return model


def data(rng, rows=32):
    return rng.normal(size=(rows, 4)).astype("float32"), rng.normal(size=(rows, 2)).astype("float32")


def alike(value):
    """The value, proven to be the same on all ranks."""
    told = hvd.allgather(np.asarray([value], np.float64)).numpy()
    assert (told == told[0]).all(), told
    return value


class Steps(keras.callbacks.Callback):
    made = 0

    def on_train_batch_end(self, batch, logs=None):
        self.made += 1


class At(keras.callbacks.Callback):
    """Act before one step, on one rank."""

    def __init__(self, step, act, rank=LAST):
        super().__init__()
        self.step, self.act, self.rank, self.made = step, act, rank, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.made += 1
        if self.made == self.step and hvd.rank() == self.rank:
            self.act()


# -- before the first step ---------------------------------------------------------------------------------------


@several_ranks
def test_other_numbers_of_steps_are_one_error_everywhere(rng, capfd):
    model = model_of_two_layers()
    x, y = data(rng, 32 if hvd.rank() < LAST else 40)
    steps = Steps()
    with pytest.raises(UsageError, match=rf"steps: rank {LAST} on \S+ has steps=5, rank 0 has steps=4"):
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), steps])
    assert steps.made == 0
    shown = capfd.readouterr().err
    assert ("ranks differ:" in shown and "steps steps" in shown) == (hvd.rank() == 0)


@several_ranks
def test_another_model_is_one_error_everywhere(rng):
    width = 3 if hvd.rank() < LAST else 5
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width, name="one"), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
    with pytest.raises(ReplicasDiffer, match=r"one/kernel=\(4, 5\)"):
        model.fit(*data(rng), batch_size=8, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])


@several_ranks
def test_what_a_script_wants_compared():
    hvd.agree(data={"train": "abc"}, steps={"steps": 10})
    with pytest.raises(DataError, match=rf"data: rank {LAST} on \S+ has train=b, rank 0 has train=a \(and 1 more"):
        mine = "a" if hvd.rank() < LAST else "b"
        hvd.agree(data={"train": mine}, steps={"steps": mine})


# -- callbacks of Keras that decide by a metric --------------------------------------------------------------------


@several_ranks
def test_early_stopping_and_plateau_decide_alike(rng):
    """Each rank's own val_loss would stop the ranks in different epochs: the shares below say so first."""
    own = np.array([1.0, 0.9, 0.95, 0.8, 0.85, 0.9, 0.95, 0.9]) if hvd.rank() == 0 else np.linspace(2, 3, 8)
    assert int(np.argmin(own)) != int(np.argmin(np.linspace(2, 3, 8))) or hvd.rank()

    class Told(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["val_loss"] = own[epoch]

    model = model_of_two_layers(rate=0.1)
    x, y = data(rng)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=3)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=2, cooldown=0)
    average = hvd.callbacks.MetricAverageCallback()
    history = model.fit(x, y, batch_size=16, epochs=8, verbose=0, callbacks=[Told(), average, stop, plateau]).history
    alike(stop.stopped_epoch)
    alike(float(np.asarray(model.optimizer.learning_rate)))
    for value in history["val_loss"]:
        alike(value)
    assert 0 < stop.stopped_epoch < 7 and float(np.asarray(model.optimizer.learning_rate)) < 0.1


def test_real_validation_metrics_are_averaged_before_early_stopping(rng):
    model = model_of_two_layers()
    seen = {}

    class Monitor(keras.callbacks.EarlyStopping):
        def on_epoch_end(self, epoch, logs=None):
            seen.update(logs)
            super().on_epoch_end(epoch, logs)

    model.fit(
        *data(rng),
        batch_size=16,
        verbose=0,
        validation_data=data(rng),
        callbacks=[hvd.callbacks.MetricAverageCallback(), Monitor("val_loss")],
    )
    assert {"loss", "val_loss"} <= set(seen)
    alike(seen["loss"])
    alike(seen["val_loss"])


def test_the_table_of_docs_callbacks(rng, tmp_path):
    """What docs/callbacks.md puts on every rank, and on rank 0: one training, equal replicas, files of rank 0 alone."""
    calls = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.TerminateOnNaN(tmp_path),
        hvd.callbacks.PreemptionCallback(folder=tmp_path),
        keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss"),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    ]
    if hvd.rank() == 0:
        calls += [
            keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), save_best_only=True),
            keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        ]
    model = model_of_two_layers()
    model.fit(*data(rng), batch_size=8, epochs=2, verbose=0, validation_data=data(rng), callbacks=calls)
    for variable in model.trainable_variables:
        alike(float(np.asarray(variable, np.float64).sum()))
    assert {path.name for path in tmp_path.iterdir()} == ({"best.keras", "log.csv"} if hvd.rank() == 0 else set())


def test_patience_ends_after_so_many_evaluations_without_a_better_loss():
    patience = Patience(2)
    told = []
    for loss in (1.0, 0.9, 0.95, 0.8, 0.8, 0.81):
        patience.evaluated(loss)
        told.append(patience.is_over)
    assert told == [False] * 5 + [True]
    resumed = Patience(2, **Patience.part_of({"step": 9, **patience.state()}))
    assert resumed.is_over and resumed.best_loss == 0.8
    forever = Patience(None)
    for _ in range(9):
        forever.evaluated(1.0)
    assert not forever.is_over and Patience.part_of(None) == {}


# -- a loss that is not finite -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [2, 7], ids=["in the middle", "in the epoch's last step"])
def test_nan_stops_all_ranks_and_names_the_first(batch, rng, tmp_path):
    x, y = data(rng, 64)
    if hvd.rank() == LAST:
        x[batch * 8 + 3] = np.nan
    model = model_of_two_layers()
    steps = Steps()
    finite = hvd.callbacks.TerminateOnNaN(tmp_path, sample_ids=lambda number: range(number * 8, number * 8 + 8))
    with pytest.raises(NotFinite) as error:
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[finite, steps])
    alike(steps.made)
    assert f"loss (nan) is not finite on rank {LAST}, " in str(error.value)
    assert f"at step {batch + 1}; first variable that is not: 'sequential/one/kernel'" in str(error.value)
    if hvd.rank() == LAST:
        kept = json.loads((tmp_path / f"nan-rank-{LAST}.json").read_text())
        assert kept["step"] == batch + 1 and kept["sample_ids"] == list(range(batch * 8, batch * 8 + 8))


# -- what several ranks found, in one line


def finding(rank, step, what="loss (nan)", **more):
    return {"rank": rank, "host": f"h{rank}", "step": step, "what": what, "first_variable": "dense/kernel", **more}


def test_the_earliest_step_is_the_cause():
    line = in_words([finding(0, 6), finding(1, 5, file="logs/nan-rank-1.json"), finding(2, 6)])
    assert line == (
        "loss (nan) is not finite on rank 1, h1, at step 5; first variable that is not: 'dense/kernel'; "
        "samples in logs/nan-rank-1.json"
    )


def test_a_loss_comes_before_the_variables_that_it_spoiled():
    assert in_words([finding(0, 5, VARIABLE), finding(1, 5)]).startswith("loss (nan) is not finite on rank 1, h1")


def test_everybody_at_once_means_that_the_variables_were_spoiled():
    line = in_words([finding(rank, 5) for rank in range(4)])
    assert "on rank 0, h0, at step 5 (and on 3 more: the variables were not finite before)" in line


def test_a_gradient_that_is_not_finite_under_a_finite_loss_names_its_rank(rng, tmp_path):
    """sqrt(0) is finite and its slope is not: the loss says nothing, the gradient does, in the same step."""

    def loss(y, prediction):
        return keras.ops.mean(keras.ops.sqrt(keras.ops.abs(y[:, :1])) + 0 * prediction[:, :1]) + keras.ops.mean(
            keras.ops.where(y[:, :1] == 0, keras.ops.sqrt(keras.ops.abs(0 * prediction[:, :1])), prediction[:, :1])
        )

    x, y = data(rng, 64)
    if hvd.rank() == LAST:
        y[19, 0] = 0
    model = model_of_two_layers()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss, jit_compile=False)
    steps, finite = Steps(), hvd.callbacks.TerminateOnNaN(tmp_path, gradients=True)
    with pytest.raises(
        NotFinite, match=rf"the gradient of 'sequential/one/kernel' is not finite on rank {LAST}, .* step 3"
    ):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[steps, finite])
    assert alike(steps.made) == 3


# -- told to stop or to save ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_one_rank_stops_all_after_the_same_step(number, rng):
    saved, steps = [], Steps()
    stop = hvd.callbacks.PreemptionCallback(lambda: saved.append(steps.made))
    before = signal.getsignal(number)
    tell = At(3, lambda: os.kill(os.getpid(), number))
    model_of_two_layers().fit(
        *data(rng, 80),
        batch_size=8,
        epochs=3,
        verbose=0,
        callbacks=[hvd.callbacks.MetricAverageCallback(), tell, steps, stop],
    )
    assert alike(steps.made) in (3, 4) and saved == [steps.made]
    assert stop.reason.startswith(f"{signal.Signals(number).name} on rank {LAST}, ")
    assert signal.getsignal(number) is before


def test_files_and_the_clock(rng, tmp_path):
    """SAVE saves and goes on; STOP saves and stops; STOP with "now" stops; each file is gone when it was obeyed."""
    for word, expected in (("", "save"), ("now", "stop")):
        (tmp_path / "SAVE").touch()
        saved, steps = [], Steps()
        stop = hvd.callbacks.PreemptionCallback(lambda: saved.append(1), folder=tmp_path)  # noqa: B023
        stop_at = At(4, lambda: (setattr(stop, "_next_look", 0), (tmp_path / "STOP").write_text(word)), rank=0)  # noqa: B023
        model = model_of_two_layers()
        model.fit(*data(rng, 80), batch_size=8, verbose=0, callbacks=[stop_at, steps, stop])
        assert alike(steps.made) == 4
        assert len(saved) == (2 if expected == "save" else 1)
        assert "STOP on rank 0" in stop.reason
        if hvd.rank() == 0:
            assert list(tmp_path.iterdir()) == []
    steps, stop = Steps(), hvd.callbacks.PreemptionCallback(time_limit=0)
    model_of_two_layers().fit(*data(rng, 80), batch_size=8, verbose=0, callbacks=[steps, stop])
    assert alike(steps.made) == 1 and stop.reason.startswith("time is up on rank 0")


def test_votes_arrive_with_accumulation_and_compression(rng):
    for options in ({"backward_passes_per_step": 2}, {"compression": hvd.Compression.bf16}, {"op": hvd.Sum}):
        model = model_of_two_layers()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.001), **options), "mse", jit_compile=False)
        steps, stop = Steps(), hvd.callbacks.PreemptionCallback()
        tell = At(3, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        model.fit(*data(rng, 80), batch_size=8, verbose=0, callbacks=[tell, steps, stop])
        assert alike(steps.made) in (3, 4), options


def test_an_optimizer_without_votes_is_refused(rng):
    model = model_of_two_layers()
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    with pytest.raises(UsageError, match="PreemptionCallback needs an optimizer that meets the other ranks"):
        model.fit(*data(rng), batch_size=8, verbose=0, callbacks=[hvd.callbacks.PreemptionCallback()])


def test_plateau_starts_to_count_anew_when_the_rate_has_fallen():
    plateau = Plateau(Plan("plateau", 1.0, 0, 99), lambda: 0, patience=2)
    fell = [plateau.evaluated(loss) for loss in (1.0, 1.1, 1.2, 1.3, 0.5, 0.6)]
    assert fell == [False, False, True, False, False, False] and plateau.rate(7) == pytest.approx(0.3)
    resumed = Plateau(plateau.plan, lambda: 0, 2, plateau.state())
    assert resumed.evaluated(0.7) and resumed.rate(7) == pytest.approx(0.09)
