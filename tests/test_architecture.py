"""docs/architecture.md is true: its drawing is the linter's list, and every place that it names exists."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hvd_mnist"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def drawn_layers() -> list[set[str]]:
    """One line of the drawing, right of the words, is one layer."""
    drawing = PAGE.split("```text\n")[1].split("```")[0]
    lines = [line[20:].split() for line in drawing.splitlines() if not line.startswith("─")]
    return [set(line) for line in lines if line]


def linted_layers() -> list[set[str]]:
    layers = CONTRACTS[0]["layers"]
    return [set(re.sub("[()]", "", layer).split(" : ")) for layer in layers]


def test_drawing_is_the_linters_list():
    assert [{name.rstrip("/") for name in layer} for layer in drawn_layers()] == linted_layers()


def test_every_part_is_drawn_as_what_it_is():
    drawn = set().union(*drawn_layers())
    folders = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert drawn == folders | modules


def test_rules_in_words_are_the_linters():
    for contract, words in zip(
        CONTRACTS[1:], ("`keras/` knows nothing", "import neither TensorFlow", "no job imports a command"), strict=True
    ):
        assert words in PAGE, contract["name"]
    light = {name.split(".")[1] for name in CONTRACTS[2]["source_modules"]}
    row = next(line for line in PAGE.splitlines() if "import neither TensorFlow" in line).split("|")[1]
    assert {name.rstrip("/") for name in re.findall(r"`(\w+/?)`", row)} == light


def names_in(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            names |= {node.name} | {f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def places() -> list[tuple[str, str]]:
    """Every `file.py`, `name` of the page; a file stands for itself."""
    return re.findall(r"`((?:hvd_mnist/)?[a-z_]+/[a-z_/]+\.py)`(?:, `([A-Za-z_.]+)`)?", PAGE)


@pytest.mark.parametrize("path, name", places())
def test_place(path, name):
    source = PACKAGE / path.removeprefix("hvd_mnist/")
    assert source.is_file(), path
    assert not name or name in names_in(source), f"{path} has no {name}"


def test_places_are_found():
    assert len(places()) >= 18
