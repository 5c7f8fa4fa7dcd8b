"""scripts/ are thin, and say what launch says: job files are what ``launch --to`` renders; docs agree with the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_mnist import errors
from hvd_mnist.cluster.hostfile import parse_hosts
from hvd_mnist.cluster.placement import place
from hvd_mnist.errors import LaunchError
from hvd_mnist.launch.environment import ALLOWED, SECRET
from hvd_mnist.launch.job import Job
from hvd_mnist.launch.render import render

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"
RENDERED = {"slurm": "slurm.sbatch", "pbs": "pbs.sh", "k8s": "mpijob.yaml"}
MINE = [*SCRIPTS.glob("train_*.sh"), *(SCRIPTS / name for name in RENDERED.values())]


def job(hosts="host1:4,host2:4", words=("train", "--epochs", "10"), **more) -> Job:
    return Job(words=words, placement=place(parse_hosts(hosts)), **more)


@pytest.mark.parametrize("target", RENDERED)
def test_job_files_are_what_launch_renders(target):
    command = [sys.executable, "-m", "hvd_mnist", "launch", "-H", "host1:4,host2:4", "--to", target]
    told = subprocess.run(
        [*command, "--", "train", "--epochs", "10"],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert told.stdout == (SCRIPTS / RENDERED[target]).read_text(), f"render it again: launch --to {target}"


@pytest.mark.parametrize("path", MINE, ids=lambda path: path.name)
def test_scripts_are_thin_and_say_what_they_are(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 15
    assert lines[0].startswith("#") and lines[1 if lines[0].startswith("#!") else 0].startswith("# ")
    if path.suffix != ".yaml":
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
        assert "set -euo pipefail" in lines
    if path.name.startswith("train_"):
        assert os.access(path, os.X_OK)


def test_the_mpijob_is_yaml_of_the_operator():
    import yaml

    told = yaml.safe_load(render(job(words=("train", "--data", "a 'b' \"c\"")), "k8s"))
    assert (told["apiVersion"], told["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    replicas = told["spec"]["mpiReplicaSpecs"]
    assert (told["spec"]["slotsPerWorker"], replicas["Worker"]["replicas"]) == (4, 2)
    words = replicas["Launcher"]["template"]["spec"]["containers"][0]["command"]
    assert words[words.index("--") :] == ["--", "train", "--data", "a 'b' \"c\""]


def test_job_files_quote_words_and_hand_on_exports():
    for target in ("slurm", "pbs"):
        text = render(job(words=("train", "--data", "my file; x"), exports=("MODE=a b", "KEEP")), target)
        assert text.rstrip().endswith("-x 'MODE=a b' -x KEEP -- train --data 'my file; x'")
    assert "--nodes=2" in render(job(), "slurm") and "--ntasks-per-node=4" in render(job(), "slurm")
    with pytest.raises(LaunchError, match="host1: 4, host2: 2"):
        render(job("host1:4,host2:2"), "pbs")


STAND_IN = '#!/bin/sh\nprintf "%s " "$(basename "$0")" "$CUDA_VISIBLE_DEVICES" "$@"\n'


@pytest.mark.parametrize(
    ("script", "environ", "expected"),
    [
        ("train_one_gpu.sh", {}, "hvd-mnist 0 train --steps 100 --seed 1 "),
        ("train_one_node.sh", {}, "hvd-mnist  launch -- train --seed 1 "),
        ("train_one_node.sh", {"NP": "2"}, "hvd-mnist  launch -np 2 -H localhost:2 -- train --seed 1 "),
        ("train_two_nodes.sh", {}, "horovodrun  --gloo -np 8 -H host1:4,host2:4 hvd-mnist train --seed 1 "),
        (
            "train_mpirun.sh",
            {"HOSTFILE": "my hosts", "DRY": "--dry-run"},
            "hvd-mnist  launch --launcher mpirun --hostfile my hosts --dry-run -- train --seed 1 ",
        ),
    ],
)
def test_what_the_scripts_run(script, environ, expected, tmp_path):
    for name in ("hvd-mnist", "horovodrun"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", **environ}
    done = subprocess.run([SCRIPTS / script, "--seed", "1"], env=environ, capture_output=True, text=True, timeout=20)
    assert done.stdout == expected, done.stderr


# Documents.


def kinds(kind=errors.HvdMnistError):
    return [kind, *(one for child in kind.__subclasses__() for one in kinds(child))]


def test_the_table_of_exit_statuses_is_that_of_the_code():
    rows = re.findall(r"^\| `?([\w ]+?)`? \| `(\w+)` \|", (ROOT / "docs" / "exit-codes.md").read_text(), re.M)
    expected = {
        kind.__name__: "any" if kind is errors.RankFailed else str(kind.exit_status)
        for kind in kinds()
        if kind.__module__ == "hvd_mnist.errors"
    }
    assert {name: status for status, name in rows} == expected


def test_the_allow_list_in_the_guide_is_that_of_the_code():
    text = (ROOT / "docs" / "launching.md").read_text()
    named = set(re.findall(r"`([A-Z_*]+)`", text[text.index("<!-- allow-list -->") : text.index("<!-- end -->")]))
    assert named == set(ALLOWED) | set(SECRET)


def test_each_command_of_the_guide_is_known_to_a_test():
    """Commands in docs/launching.md are run by the test that its section names, or are marked "not run here"."""
    text = (ROOT / "docs" / "launching.md").read_text()
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        title, body = section.split("\n", 1)
        if not re.search(r"^    \S", body, re.M):
            continue
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", body)
        assert tests or "not run here" in body, f"{title}: no test is named, and it is not marked"
        for path, name in tests:
            assert f"def {name}(" in (ROOT / path).read_text(), f"{title}: no {name} in {path}"
