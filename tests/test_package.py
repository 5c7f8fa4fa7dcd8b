"""The package as pip gets it: the archive builds, the wheel built from it is whole, and starts where little is."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

import hvd_mnist
from hvd_mnist import cli

ROOT = Path(__file__).parent.parent
TWINE = ROOT / ".venv-docs/bin/python"
# What stands in the source tree and must be in the package; Python files are compared one by one.
DATA = ("*.h", "*.j2", "py.typed", "checked_ssh/ssh")


def done(command, **settings) -> subprocess.CompletedProcess:
    told = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240, **settings)
    assert told.returncode == 0, told.stdout + told.stderr
    return told


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source archive of this tree, and the wheel that pip builds from that archive."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT / "hvd_mnist", tree / "hvd_mnist", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    backend = f"from setuptools import build_meta; build_meta.build_sdist({str(out)!r})"
    done([sys.executable, "-c", backend], cwd=tree)
    (archive,) = out.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", out]
    done([*command, archive])
    (wheel,) = out.glob("hvd_mnist-*.whl")
    return archive, wheel


def in_tree(*patterns: str) -> set[str]:
    found = {path.relative_to(ROOT).as_posix() for pattern in patterns for path in (ROOT / "hvd_mnist").rglob(pattern)}
    return {name for name in found if "__pycache__" not in name}


def test_archive_and_wheel_have_every_file_of_the_package(built):
    archive, wheel = built
    with tarfile.open(archive) as opened:
        in_archive = {name.partition("/")[2] for name in opened.getnames()}
    with zipfile.ZipFile(wheel) as opened:
        in_wheel = {name for name in opened.namelist() if ".dist-info/" not in name}
    wanted = in_tree("*.py", *DATA)
    assert any(name.endswith(".h") for name in wanted) and any(name.endswith(".j2") for name in wanted)
    assert in_wheel == wanted
    assert wanted | {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= in_archive


def test_metadata_says_what_is_known_and_no_more(built):
    with zipfile.ZipFile(built[1]) as opened:
        folder = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
        said = email.message_from_string(opened.read(f"{folder}/METADATA").decode())
        entry_points = opened.read(f"{folder}/entry_points.txt").decode()
        assert any(name.startswith(f"{folder}/") and name.endswith("LICENSE") for name in opened.namelist())
    assert said["Name"] == "hvd-mnist" and said["Version"] == hvd_mnist.__version__
    assert "Apache-2.0" in (said["License"], said["License-Expression"])
    assert set(said["Requires-Python"].split(",")) == {">=3.10", "<3.14"}
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)} <= set(
        said.get_all("Classifier")
    )
    assert "Typing :: Typed" in said.get_all("Classifier")
    assert not said.get_all("Project-URL") and not said["Home-page"] and not said["Author-email"]  # nobody knows one
    assert said.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
    assert "hvd-mnist = hvd_mnist.cli:main" in entry_points
    asked = {re.match(r"[\w-]+", line)[0] for line in said.get_all("Requires-Dist")}
    assert "horovod" not in asked
    assert {cli.OTHER_NAMES.get(name, name) for name in cli.NEEDED} <= asked


def test_twine_finds_nothing_to_complain_of(built):
    if not TWINE.exists():
        assert "CI" not in os.environ, "scripts/setup.sh test did not make .venv-docs"
        pytest.skip("no .venv-docs: scripts/docs.sh setup makes it")
    told = done([TWINE, "-m", "twine", "check", "--strict", *built])
    assert told.stdout.count("PASSED") == 2, told.stdout


def test_wheel_starts_in_an_environment_that_has_next_to_nothing(built, tmp_path):
    """No TensorFlow, no Horovod, no numpy: this environment lends click and rich, and then psutil."""
    done([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    python = tmp_path / "venv/bin/python"
    there = Path(done([python, "-c", "import site; print(site.getsitepackages()[0])"]).stdout.strip())

    def lend(*names):
        for file in (file for name in names for file in distribution(name).files):
            if ".." not in file.parts and file.suffix in (".py", ".so"):
                (there / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), there / file)

    lend("click", "rich", "markdown-it-py", "mdurl", "pygments")
    with zipfile.ZipFile(built[1]) as opened:
        opened.extractall(there)
    hosts = tmp_path / "hosts"
    hosts.write_text("host1 slots=2\nhost2 slots=2\n")
    dry_run = ("launch", "-np", "4", "--hostfile", str(hosts), "--dry-run", "--", "train")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HVD_", "HOROVOD_"))}
    place = {"cwd": tmp_path, "env": environ}

    def said(*words):
        return done([python, "-m", "hvd_mnist", *words], **place).stdout

    assert "launch" in said("--help")
    assert hvd_mnist.__version__ in said("--version")
    assert "host2" in said("hosts", "check", hosts)
    assert "rank 0 of 1" in said("whoami")
    assert "rank" in said("explain", "201")
    refused = subprocess.run([python, "-m", "hvd_mnist", *dry_run], capture_output=True, text=True, timeout=60, **place)
    assert refused.returncode == 3
    assert re.fullmatch(r"hvd-mnist: error: this needs the package psutil, .* -> pip install psutil\n", refused.stderr)
    lend("psutil")
    shown = said(*dry_run)
    assert "horovodrun" in shown and "-np 4" in shown and "host1:2,host2:2" in shown, shown
