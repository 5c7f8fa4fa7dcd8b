"""Shell completion, as docs/shell-completion.md sets it up: asked as a shell asks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def asked(**variables) -> str:
    told = subprocess.run(
        [sys.executable, "-m", "hvd_mnist"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


@pytest.mark.parametrize(
    "line, expected",
    [
        ("hvd-mnist re", {"plain,report"}),
        ("hvd-mnist train --log-l", {"plain,--log-level"}),
        ("hvd-mnist train --log-level w", {"plain,warning"}),
        ("hvd-mnist report RU", {"dir,RU"}),
    ],
)
def test_words_are_completed(line, expected):
    words = str(len(line.split()) - 1)
    assert set(asked(_HVD_MNIST_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=words).splitlines()) == expected


def test_the_documented_lines_give_scripts():
    page = (ROOT / "docs" / "shell-completion.md").read_text()
    kinds = re.findall(r"_HVD_MNIST_COMPLETE=(\w+) hvd-mnist", page)
    assert kinds == ["bash_source", "zsh_source", "fish_source"]
    for kind in kinds:
        script = asked(_HVD_MNIST_COMPLETE=kind)
        assert "hvd-mnist" in script and "_HVD_MNIST_COMPLETE" in script
        if kind == "bash_source" and shutil.which("bash"):
            subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=30)
