"""The site of docs/: it builds strictly, loads nothing from elsewhere, and a link that leads nowhere is an error."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-docs/bin/python"
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}

pytestmark = pytest.mark.timeout(400)


def build(config: Path, site: Path) -> subprocess.CompletedProcess:
    if not PYTHON.exists():
        assert "CI" not in os.environ, "scripts/setup.sh test did not make .venv-docs"
        pytest.skip("no .venv-docs: scripts/docs.sh setup makes it")
    command = [PYTHON, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", site]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    env.pop("PYTHONPATH", None)
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


class Page(HTMLParser):
    """What a page has (ids), where it leads (links), and what a browser loads to show it."""

    def __init__(self, text: str):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if LOADED.get(tag) in given:
            self.loaded.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_every_document_is_a_page_that_the_menu_reaches(site, pages):
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"index", "index.zh-CN"}
    reached = {link.split("#")[0] for link in pages[site / "index.html"].links}
    assert {f"{name}.html" for name in documents} <= reached
    assert "Horovod ring-allreduce" in (site / "index.html").read_text(encoding="utf-8")


def test_every_link_leads_to_a_place_on_a_page(site, pages):
    dead = []
    for path, page in pages.items():
        for link in page.links:
            if "://" in link or link.startswith("mailto:") or path.name == "404.html":
                continue
            target, _, place = unquote(link).partition("#")
            there = (path.parent / target).resolve() if target else path
            if there.is_dir():
                there /= "index.html"
            if not there.is_file() or (place and there in pages and place not in pages[there].ids):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert not dead, dead
    assert sum(len(page.links) for page in pages.values()) > 1000


def test_nothing_is_loaded_from_another_host(site, pages):
    loaded = {what for page in pages.values() for what in page.loaded}
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert loaded and styles
    assert not [what for what in loaded if re.match(r"(https?:)?//", what)]
    assert not [found for text in styles for found in re.findall(r"url\(['\"]?(?:https?:)?//[^)]*", text)]


def test_tables_and_lists_are_drawn(site):
    """Where a list needs an empty line before it, a repository's page draws it without one, and the site does not."""
    undrawn = {
        (path.name, line)
        for path in site.glob("*.html")
        for line in re.sub(r"<pre.*?</pre>", "", path.read_text(encoding="utf-8"), flags=re.S).splitlines()
        if re.match(r"(<p>)?(\||- |\d+\. |```|#+ )", line)
    }
    assert not undrawn, undrawn


def test_file_of_the_repository_is_shown(site, pages):
    assert "source/examples/tiny_resnet.py.html" in pages[site / "own-model.html"].links
    assert "def build" in re.sub(r"<[^>]+>", "", (site / "source/examples/tiny_resnet.py.html").read_text())


def test_reference_has_all_that_is_exported(site, pages):
    """By the text of the package: no import of TensorFlow."""
    tree = ast.parse((ROOT / "hvd_mnist/keras/__init__.py").read_text())
    exported, horovods = set(), set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            exported = set(ast.literal_eval(node.value))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("horovod."):
            horovods |= {alias.name for alias in node.names}
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    unchanged = set(re.findall(r"`(\w+)`", text.split("Horovod's own, unchanged:")[1].split(":::")[0]))
    assert unchanged == exported & horovods
    ids = pages[site / "api.html"].ids
    shown = {name for name in exported if any(re.fullmatch(rf"hvd_mnist\.keras(\.\w+)*\.{name}", i) for i in ids)}
    headings = {"callbacks", "elastic"}
    assert exported - horovods - headings == shown - headings
    for module, names in (("callbacks", None), ("elastic", None)):
        tree = ast.parse((ROOT / f"hvd_mnist/keras/{module}.py").read_text())
        (names,) = [
            ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__"
        ]
        assert not [name for name in names if not any(i.endswith(f".{name}") for i in ids)]
    for name in (
        "launch.function.run",
        "config.TrainConfig",
        "errors.HvdMnistError",
        "keras.tape.DistributedGradientTape",
    ):
        assert f"hvd_mnist.{name}" in ids


def test_dead_links_and_lost_pages_are_errors(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "hvd_mnist", tmp_path / "hvd_mnist", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("mkdocs.yml", "README.md", "README.zh-CN.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "docs/gpu.md").write_text(
        "# GPUs\n\n[a](nowhere.md) [b](launching.md#nowhere) [c](../hvd_mnist/nowhere.py)\n"
    )
    (tmp_path / "docs/lost.md").write_text("# In no menu\n")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    for words in ("nowhere.md", "#nowhere", "nowhere.py", "lost.md"):
        assert words in said, said
    assert "4 warnings" in said, said
