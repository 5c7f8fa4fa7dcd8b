"""What README promises: its map of the house is true, and each of its commands is run by a test."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.timeout(600)

# Commands that this file does not run itself, and the test that does.
ELSEWHERE = {
    "make train": "tests/parallel/test_make_train.py::test_make_train",
    "make test": None,  # the suite that is running now
    "hvd-mnist train": "tests/parallel/test_training.py::test_alone_and_every_number_of_ranks_end_alike",
    "horovodrun -np 2 hvd-mnist train": "tests/parallel/test_training.py::test_two_ranks",
    "horovodrun -np 8 -H host1:4,host2:4 hvd-mnist train": (
        "tests/cluster/test_launch.py::test_horovodrun_as_it_comes_trains_on_two_hosts"
    ),
    "mpirun -np 8 --hostfile hosts hvd-mnist train": "tests/cluster/test_launch.py::test_launch_trains_over_mpi",
    "srun -N2 -n8 hvd-mnist train": "tests/cluster/test_launch_slurm.py::test_srun_trains_without_mpi",
    "hvd-mnist train --epochs 10 --run-dir runs/ten --resume auto": (
        "tests/parallel/test_training.py::test_resume_in_the_middle_of_an_epoch_is_bitwise"
    ),
    "hvd-mnist launch -np 8 -H host1:4,host2:4 --max-restarts 3 -- train --run-dir runs/ten": (
        "tests/parallel/test_elastic.py::test_a_job_is_started_again_from_its_last_checkpoint"
    ),
    "hvd-mnist launch -np 2 --min-np 1 --host-discovery-script ./hosts.sh -- train --elastic": (
        "tests/parallel/test_elastic.py::test_rank_0_is_killed_in_mid_epoch_and_the_other_goes_on"
    ),
    "hvd-mnist train --data sample --allow-faults --inject kill:rank=0,step=5": (
        "tests/parallel/test_faults.py::test_the_job_ends_says_why_and_goes_on"
    ),
    "hvd-mnist baseline parameter-server --sync --workers 2 --epochs 1": (
        "tests/parallel/test_baselines.py::test_synchronous_systems_end_with_the_weights_of_one_device"
    ),
    "hvd-mnist bench compare -np 2": "tests/cluster/test_compare.py::test_bytes_by_the_law_on_four_hosts",
    "hvd-mnist train --model examples.tiny_resnet:build --data examples.tiny_resnet:load --augment none": (
        "tests/parallel/test_own_model.py::test_example_trains_and_its_saved_model_is_the_one_that_was_evaluated"
    ),
    "horovodrun -np 2 python examples/distributed.py": (
        "tests/parallel/test_examples.py::test_a_plain_script_becomes_distributed_by_five_lines"
    ),
    "hvd-mnist bench scaling -np 1,2": "tests/parallel/test_measuring.py::test_scaling_of_the_trainer",
    "hvd-mnist bench timeline timeline.json": "tests/test_bench_timeline.py::test_json",
    "make bench": "tests/test_bench_targets.py::test_rows_are_told_and_written",
    "hvd-mnist bench allreduce -np 2": "tests/parallel/test_bench_exchange.py::test_allreduce_over_every_backend",
}


def commands():
    """Every line of the sh blocks and every code cell of the table of ways to start, without its comment."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    lines += re.findall(r"^\| [^|]+ \| `((?:hvd-mnist|horovodrun|mpirun|srun) [^`]+)` \|$", README, re.M)
    return [line.split("  #")[0].split("     ")[0].strip() for line in lines]


def map_rows():
    section = README.split("## The map of the house")[1].split("\n## ")[0]
    return re.findall(r"^\| ([^|]+\?) \| `([^`]+)`(?:, `([^`]+)`)? \|$", section, re.M)


@pytest.mark.parametrize("question, path, name", map_rows())
def test_map(question, path, name):
    source = ROOT / path
    assert source.is_file(), f"{question}: no {path}"
    if name:
        names = set()
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names |= {node.name} | {f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
            elif isinstance(node, ast.FunctionDef):
                names.add(node.name)
        assert name in names, f"{question}: {path} has no {name}"


def test_map_is_read():
    assert len(map_rows()) >= 9 and len(commands()) >= 14


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme") / "ten"
    hvd_mnist("train", "--data", "sample", "--model", "mlp", "--epochs", "1", "--run-dir", str(folder))
    return folder


def hvd_mnist(*words, cwd=ROOT):
    told = subprocess.run(
        [sys.executable, "-m", "hvd_mnist", *words],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        env=_environment(),
        stdin=subprocess.DEVNULL,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def _environment():
    import os

    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def test_every_command_is_run_somewhere(run_folder, tmp_path):
    here = {
        "hvd-mnist launch -np 8 -H host1:4,host2:4 --dry-run -- train": lambda w: hvd_mnist(*w),
        "hvd-mnist evaluate runs/ten": lambda w: hvd_mnist("evaluate", str(run_folder), "--data", "sample"),
        "hvd-mnist predict runs/ten digit.png": lambda w: predict(run_folder, tmp_path),
        "hvd-mnist plot runs/ten --out ten.png": lambda w: hvd_mnist(
            "plot", str(run_folder), "--out", str(tmp_path / "a.png")
        ),
        "hvd-mnist hosts check hostfiles/openmpi": lambda w: hvd_mnist(*w),
        "hvd-mnist whoami": lambda w: hvd_mnist(*w),
        "hvd-mnist doctor": lambda w: hvd_mnist(*w),
        "hvd-mnist explain 201": lambda w: hvd_mnist(*w),
        "hvd-mnist report runs/ten": lambda w: hvd_mnist("report", str(run_folder)),
        "hvd-mnist bench predict --alpha-us 20 --bandwidth 1.25 --model cnn --compute-ms 200": (
            lambda w: hvd_mnist(*w)
        ),
    }
    found = commands()
    assert set(found) == here.keys() | ELSEWHERE.keys()
    for command in found:
        if command in here:
            assert here[command](command.split()[1:]).strip(), f"{command} printed nothing"
        elif ELSEWHERE[command]:
            path, _, name = ELSEWHERE[command].partition("::")
            assert name and f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), ELSEWHERE[command]


def predict(run_folder, tmp_path):
    import numpy as np
    from PIL import Image

    from hvd_mnist.data.sources import load

    arrays = load("sample")
    path = tmp_path / "digit.png"
    Image.fromarray(np.kron(255 - arrays.test_images[0], np.ones((5, 5), np.uint8))).save(path)  # dark on light, larger
    told = hvd_mnist("predict", str(run_folder), str(path))
    assert re.match(r"\d +\d+\.\d\d% ", told)
    answer = json.loads(hvd_mnist("predict", str(run_folder), str(path), "--json"))
    assert answer[0]["label"] == int(told[0]) and abs(sum(answer[0]["probabilities"]) - 1) < 1e-4
    return told


def test_links():
    """No file that a document links to is missing."""
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)", document.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_five_lines_distribute_a_script():
    """README shows what stands between the two examples, which tests/parallel/test_examples.py runs."""
    shown = re.search(r"```diff\n(.*?)```", README, re.S)[1].splitlines()
    for sign, name in (("-", "plain"), ("+", "distributed")):
        source = (ROOT / f"examples/{name}.py").read_text(encoding="utf-8").split('"""\n\n')[1]
        assert "".join(f"{line[1:]}\n" for line in shown if line[:1] in ("", " ", sign)) == source


def test_chinese_readme_is_in_step():
    """The same commands, code, places and links, in the same order; only the words differ."""
    chinese = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")

    def skeleton(text):
        commands = re.findall(r"^(?:make|hvd-mnist) [^#\n]*", text, re.M)
        return {
            "headings": [
                len(marks) for marks in re.findall(r"^(#+) ", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
            ],
            "tables": [row.count("|") for row in re.findall(r"^\|.*\|$", text, re.M)],
            "commands": [command.strip() for command in commands],
            "code": re.findall(r"`([^`\n]+)`", text.split("## ", 1)[1]),
            "links": re.findall(r"\]\(([^)]+)\)", text),
            "diff": re.findall(r"```diff\n(.*?)```", text, re.S),
        }

    assert skeleton(chinese) == skeleton(README)
