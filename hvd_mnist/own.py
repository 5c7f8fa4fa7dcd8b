"""A function of yours, named as ``package.module:function``: imported and called, its errors told in one line."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable

from hvd_mnist.errors import UsageError


def is_own(name: str) -> bool:
    """``module:function``, and not a path that exists."""
    return ":" in name and not os.path.exists(name)


def function(name: str, option: str, *expected: str) -> Callable:
    """The function, from the folder where the command was typed or from what is installed.

    Args:
        name: ``package.module:function``.
        option: the flag it was given with, for errors.
        expected: its signature, as in ``build(input_shape, classes)``; or several that are welcome.

    Raises:
        UsageError: no such module or function, the module fails while it is imported, or it takes other arguments.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise UsageError(
            f"{option} {name}: expected MODULE:FUNCTION", f"{option} my_module:{expected[0].partition('(')[0]}"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"{option} {name}: {module_name} imports {error.name}, which is not installed") from error
        raise UsageError(
            f"{option} {name}: no module {module_name} in {os.getcwd()} or among what is installed",
            "start the job in the folder of the module, on every host",
        ) from None
    except Exception as error:
        raise UsageError(f"{option} {name}: importing {module_name} failed: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        functions = [each for each, value in vars(module).items() if inspect.isfunction(value) and each[0] != "_"]
        there = f"has {', '.join(functions[:6])}" if functions else "has no functions"
        raise UsageError(
            f"{option} {name}: no function {attribute} in {module.__file__}, which {there}", f"def {expected[0]}"
        )
    if not any(takes(found, each) for each in expected):
        raise UsageError(
            f"{option} {name}: takes {inspect.signature(found)}, expected to be called as {' or '.join(expected)}",
            f"def {expected[0]}: ...",
        )
    return found


def takes(found: Callable, expected: str) -> bool:
    """Can it be called with the arguments of this signature?"""
    wanted = [word.strip() for word in expected.partition("(")[2].rstrip(")").split(",") if word.strip()]
    try:
        inspect.signature(found).bind(*wanted)
    except TypeError:
        return False
    return True


def call(name: str, option: str, expected: str, *arguments):
    """``function(...)`` called; what it raises is one line with its name.

    Raises:
        UsageError: as ``function``; or the function raised.
    """
    own = function(name, option, expected)
    try:
        return own(*arguments)
    except Exception as error:
        where = inspect.getsourcefile(own) or name
        raise UsageError(f"{option} {name} raised {type(error).__name__}: {error} ({where})") from error


def files(*names: str) -> dict[str, str]:
    """{module: file} of those of ``names`` that are functions of one's own; their modules have been imported."""
    modules = {name.partition(":")[0] for name in names if is_own(name)}
    return {
        name: sys.modules[name].__file__ for name in sorted(modules) if getattr(sys.modules.get(name), "__file__", None)
    }
