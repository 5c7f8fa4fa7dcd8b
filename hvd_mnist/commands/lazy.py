"""Groups of commands whose list and help cost no import."""

from __future__ import annotations

import importlib

import click


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are used, not when they are listed."""

    def __init__(self, *args, lazy: dict[str, tuple[str, str, str]], **kwargs):
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx):
        return list(self._lazy)

    def get_command(self, ctx, name):
        if name not in self._lazy:
            return None
        module, attribute, _ = self._lazy[name]
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in self._lazy.items()])
