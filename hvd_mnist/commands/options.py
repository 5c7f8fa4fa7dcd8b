"""``TrainConfig`` as click options: one option a knob, its source remembered."""

from __future__ import annotations

import dataclasses
import typing

import click

from hvd_mnist.config import TrainConfig, flag, read_config_file

SOURCES = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file", "DEFAULT": "default"}


class GroupedHelp(click.Command):
    """A command whose options are listed under the group of their knob."""

    def format_options(self, ctx, formatter):
        groups: dict[str, list] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(parameter, "group", "Options"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


class _Knob(click.Option):
    group = "Options"


def config_options(command, only: tuple[str, ...] | None = None):
    """Decorator: give a command one option for every knob of TrainConfig (or for those named alone), and --config."""
    types = typing.get_type_hints(TrainConfig)
    for spec in reversed(dataclasses.fields(TrainConfig)):
        if only is not None and spec.name not in only:
            continue
        names = (_declaration(spec, types[spec.name]), *spec.metadata["also"])
        command = click.option(spec.name, *names, **_settings(spec, types[spec.name]))(command)
        command.__click_params__[-1].group = spec.metadata["group"]
    return click.option(
        "--config",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_use_config_file,
        help="YAML file of knobs; flags and environment variables win over it",
    )(command)


def config_from(ctx: click.Context) -> tuple[TrainConfig, dict[str, str]]:
    """The run's config and, for each knob, where its value came from: flag, environment, file or default."""
    names = [spec.name for spec in dataclasses.fields(TrainConfig) if spec.name in ctx.params]
    sources = {name: SOURCES[ctx.get_parameter_source(name).name] for name in names}
    return TrainConfig(**{name: ctx.params[name] for name in names}), sources


def _declaration(spec, kind):
    return f"{flag(spec.name)}/--no-{spec.name.replace('_', '-')}" if kind is bool else flag(spec.name)


def _settings(spec, kind):
    settings = {
        "cls": _Knob,
        "default": spec.default,
        "show_default": spec.default not in (None, ()),
        "envvar": f"HVD_MNIST_{spec.name.upper()}",
        "help": spec.metadata["help"],
    }
    if typing.get_origin(kind) is tuple:
        settings |= {"multiple": True, "type": typing.get_args(kind)[0]}
    elif kind is not bool:
        plain = next(t for t in (*typing.get_args(kind), kind) if t is not type(None))
        settings["type"] = plain
        if spec.metadata["choices"] and not spec.metadata["own"]:
            settings["type"] = click.Choice(spec.metadata["choices"])
    return settings


def _use_config_file(ctx, parameter, path):
    if path:
        ctx.default_map = {**(ctx.default_map or {}), **read_config_file(path)}
