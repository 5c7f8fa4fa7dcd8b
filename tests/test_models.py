"""The networks: sizes, shapes, names, and that asking for their names costs nothing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hvd_mnist import models
from hvd_mnist.errors import UsageError


def test_names_are_read_without_tensorflow_or_keras():
    code = """if True:
        import sys
        from hvd_mnist import models
        print(*models.NAMES)
        assert not {"keras", "tensorflow"} & {*sys.modules}"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    assert tuple(told.stdout.split()) == models.NAMES


def test_the_trainer_offers_exactly_these_names():
    import dataclasses

    from hvd_mnist.config import TrainConfig

    (knob,) = [field for field in dataclasses.fields(TrainConfig) if field.name == "model"]
    assert set(knob.metadata["choices"]) == set(models.NAMES)
    assert knob.default in models.NAMES


@pytest.mark.parametrize("name, near", [("smal", "small"), ("cn", "cnn"), ("MLP", None), ("resnet", None)])
def test_unknown_name(name, near):
    with pytest.raises(UsageError, match="expected one of small, cnn, mlp") as caught:
        models.build(name)
    assert caught.value.hint == (f"--model {near}" if near else None)


@pytest.mark.parametrize("name", ["cnn", "small"])
def test_image_too_small(name):
    with pytest.raises(UsageError, match="found 5 x 28"):
        models.build(name, (5, 28, 1))


@pytest.mark.parametrize("name", ["cnn", "small"])
def test_smallest_image(name):
    least = models.SMALLEST[name]
    assert models.build(name, (least, least, 1)).output_shape == (None, 10)


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("shape, classes", [((28, 28, 1), 10), ((32, 32, 3), 7)])
def test_logits_of_the_asked_shape(name, shape, classes):
    model = models.build(name, shape, classes)
    assert model.input_shape == (None, *shape)
    logits = np.asarray(model(np.random.default_rng(0).random((4, *shape), np.float32)))
    assert logits.shape == (4, classes) and logits.dtype == np.float32
    assert (logits < 0).any(), "logits, not probabilities"


def test_cnn_is_the_network_of_the_examples():
    model = models.build("cnn")
    parameters = [layer.count_params() for layer in model.layers if layer.count_params()]
    assert parameters == [320, 18_496, 1_179_776, 1_290]
    assert model.count_params() == 1_199_882
    assert [layer.rate for layer in model.layers if hasattr(layer, "rate")] == [0.25, 0.5]


def test_small_is_the_network_of_the_recipe():
    """Figures in docs/recipe.md belong to this network: measure again if it changes."""
    model = models.build("small")
    parameters = [layer.count_params() for layer in model.layers if layer.count_params()]
    assert parameters == [832, 9_248, 18_496, 131_200, 1_290]
    assert [layer.rate for layer in model.layers if hasattr(layer, "rate")] == [0.2, 0.2]


def test_mlp_is_784_100_10():
    assert models.build("mlp").count_params() == 784 * 100 + 100 + 100 * 10 + 10


@pytest.mark.parametrize("name", models.NAMES)
def test_every_variable_is_trained(name):
    """So that no running statistic can differ between ranks."""
    import keras

    model = models.build(name)
    others = [v for v in model.non_trainable_variables if not isinstance(v, keras.random.SeedGenerator)]
    assert [v.path for v in others if "seed" not in v.path] == []


@pytest.mark.parametrize("name", models.NAMES)
def test_same_seed_same_start(name):
    import keras

    starts = []
    for seed in (3, 3, 4):
        keras.utils.set_random_seed(seed)
        starts.append(np.concatenate([np.asarray(v).ravel() for v in models.build(name).trainable_variables]))
    assert np.array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])


@pytest.mark.parametrize("name", models.NAMES)
def test_logits_stay_float32_under_mixed_precision(name):
    import keras

    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = models.build(name)
    finally:
        keras.config.set_dtype_policy(policy)
    assert model.layers[-2].compute_dtype == "bfloat16"
    assert model(np.zeros((1, 28, 28, 1), np.float32)).dtype == "float32"


@pytest.mark.parametrize("name", models.NAMES)
def test_learns_a_handful_of_images(name):
    import keras

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    images, labels = rng.random((32, 28, 28, 1), np.float32), np.arange(32) % 10
    model = models.build(name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss=loss, jit_compile=False)
    first = model.evaluate(images, labels, verbose=0)
    model.fit(images, labels, epochs=20, batch_size=32, verbose=0)
    assert model.evaluate(images, labels, verbose=0) < 0.5 * first


@pytest.mark.parametrize("name", models.NAMES)
def test_saved_and_loaded(name, tmp_path):
    import keras

    model = models.build(name)
    model.save(tmp_path / "model.keras")
    images = np.random.default_rng(1).random((2, 28, 28, 1), np.float32)
    assert np.array_equal(
        np.asarray(model(images)), np.asarray(keras.models.load_model(tmp_path / "model.keras")(images))
    )
