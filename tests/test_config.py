"""One source for every knob: dataclass, flags, environment, file."""

import dataclasses
import json

import click
import pytest
from click.testing import CliRunner

from hvd_mnist.commands.options import config_from, config_options
from hvd_mnist.config import TrainConfig, flag, read_config_file
from hvd_mnist.errors import UsageError


@click.command()
@config_options
@click.pass_context
def show(ctx, **_):
    config, sources = config_from(ctx)
    click.echo(json.dumps({"config": dataclasses.asdict(config), "sources": sources}))


def told(*words, **environ):
    result = CliRunner().invoke(show, words, env=environ, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_defaults():
    answer = told()
    assert answer["config"] == json.loads(json.dumps(dataclasses.asdict(TrainConfig())))
    assert set(answer["sources"].values()) == {"default"}


def test_flag_over_environment_over_file_over_default(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("epochs: 7\nbatch-size: 32\nlearning_rate: 0.5\ntensorboard: false\n")
    answer = told("--config", str(file), "--epochs", "9", HVD_MNIST_BATCH_SIZE="16", HVD_MNIST_EPOCHS="8")
    config, sources = answer["config"], answer["sources"]
    assert (config["epochs"], sources["epochs"]) == (9, "flag")
    assert (config["batch_size"], sources["batch_size"]) == (16, "environment")
    assert (config["learning_rate"], sources["learning_rate"]) == (0.5, "file")
    assert config["tensorboard"] is False
    assert (config["seed"], sources["seed"]) == (TrainConfig().seed, "default")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("epoch: 3", "unknown key 'epoch' -> did you mean 'epochs'?"),
        ("- 3", "expected 'knob: value' lines, found list"),
        ("epochs: [", "while parsing"),
    ],
)
def test_bad_file(text, expected, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        read_config_file(file)
    assert expected in str(error.value) and str(file) in str(error.value) and "\n" not in str(error.value)


def test_missing_file():
    with pytest.raises(UsageError, match="No such file"):
        read_config_file("no/such/file.yaml")


@pytest.mark.parametrize(
    "knobs, message",
    [
        ({"epochs": 0}, "--epochs 0: expected at least 1"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0: expected more than 0.0"),
        ({"target_accuracy": 99.0}, "--target-accuracy 99.0: expected at most 1.0"),
        ({"model": "smal"}, "--model smal: expected small, cnn, mlp or MODULE:FUNCTION -> --model small"),
        ({"global_batch": 100, "accumulate": 3}, "--global-batch 100 does not divide by --accumulate 3"),
        ({"plateau_patience": 5}, "--plateau-patience without --schedule plateau -> --schedule plateau"),
        (
            {"schedule": "plateau", "elastic": True},
            "--schedule plateau with --elastic: when ranks change, so does the rate that a plateau would lower -> "
            "--schedule cosine, step or constant",
        ),
    ],
)
def test_out_of_range(knobs, message):
    with pytest.raises(UsageError) as error:
        TrainConfig(**knobs)
    assert str(error.value) == message


def test_rank_batch():
    assert TrainConfig(batch_size=64).rank_batch(8) == 64
    assert TrainConfig(global_batch=512, accumulate=2).rank_batch(8) == 32
    with pytest.raises(UsageError, match="does not divide by 8 ranks x 1 passes -> --global-batch 96"):
        TrainConfig(global_batch=100).rank_batch(8)


def test_every_knob_has_help_and_a_flag():
    from hvd_mnist.commands.train import train

    options = {name for parameter in train.params for name in parameter.opts}
    for spec in dataclasses.fields(TrainConfig):
        assert spec.metadata["help"] and spec.metadata["group"]
        assert flag(spec.name) in options
