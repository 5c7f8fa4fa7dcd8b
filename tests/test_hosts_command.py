"""``hvd-mnist hosts ...`` and ``whoami`` as typed: what is printed where, the status, and how light they are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAUNCHER_VARIABLES = ("HOROVOD_", "OMPI_", "PMI_", "PMIX_", "MPI_", "MV2_", "SLURM_", "WORLD_SIZE")


def clean_environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **more}


def typed(*words, stdin="", **environ):
    return subprocess.run(
        [sys.executable, "-m", "hvd_mnist", *words],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=clean_environment(**environ),
        timeout=60,
    )


def test_check_shows_hosts_slots_and_notes():
    done = typed("hosts", "check", "-", stdin="h1 slots=4 max_slots=8\nalice@host2\nh1 slots=4\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "host   slots  max  user",
        "h1     8      12   -",
        "host2  1      -    alice",
        "2 hosts, 9 slots, dialect openmpi",
        "note: named more than once, slots added as Open MPI does: h1:8"
        " (horovodrun itself would put two ranks on one GPU)",
        "note: no slots given, 1 each: host2 (Open MPI would count cores in a file); for more write host2:4",
    ]


def test_check_lists_every_bad_line_with_a_caret(tmp_path):
    file = tmp_path / "my hosts"
    file.write_text("h1 slots=4\nh2 slot=4\n\nh3 slots：4\n", encoding="utf-8")
    done = typed("hosts", "check", str(file))
    assert done.returncode == 6 and done.stdout == ""
    assert done.stderr.splitlines() == [
        f"{file}:2:4: slot= is not read in host files -> did you mean slots=4?",
        "    h2 slot=4",
        "       ^",
        "    h3 slots：4",
        "       ^",
        f"hvd-mnist: error: {file}:4:4: 'slots：4' after the host -> write h3 slots=4 (2 bad lines in all)",
    ]


def test_check_as_another_tool_reads_it():
    assert typed("hosts", "check", "-", stdin="# c\nh slots=2\n").returncode == 0
    done = typed("hosts", "check", "-", "--dialect", "horovodrun", stdin="# c\nh slots=2\n")
    assert done.returncode == 6 and "IndexError at a comment" in done.stderr


def test_missing_file_is_status_6():
    done = typed("hosts", "check", "no-such-file")
    assert done.returncode == 6 and "No such file" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("openmpi", "n1 slots=2\nalice@n2 slots=2\n"),
        ("mpich", "n1:2\nn2:2 user=alice\n"),
        ("horovodrun", "n1 slots=2\nn2 slots=2\n"),
        ("slurm", "SLURM_JOB_NODELIST=n[1-2]\nSLURM_TASKS_PER_NODE=2(x2)\n"),
    ],
)
def test_convert(target, expected):
    done = typed("hosts", "convert", "-", "--to", target, stdin="n1:2\nalice@n2:2\n")
    assert (done.returncode, done.stdout) == (0, expected)
    assert ("cannot say user" in done.stderr) is (target in ("horovodrun", "slurm"))


def test_convert_from_slurm_says_where_the_numbers_disagree():
    done = typed(
        "hosts", "convert", "-", "--to", "openmpi", stdin="SLURM_JOB_NODELIST=n[1-3]\nSLURM_TASKS_PER_NODE=2\n"
    )
    assert done.returncode == 6 and "tasks for 1 nodes" in done.stderr


def test_expand():
    done = typed("hosts", "expand", "rack[1-2]n[3-4]")
    assert done.stdout == "rack1n3\nrack1n4\nrack2n3\nrack2n4\n"
    done = typed("hosts", "expand", "n[4-1]")
    assert done.returncode == 6 and "    n[4-1]\n      ^" in done.stderr


@pytest.mark.skipif(not shutil.which("scontrol"), reason="no scontrol")
def test_expand_as_slurm_does(tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n")
    text = "rack[1-2]n[3-4],node[08-11],a[1,3,5-6],x"
    theirs = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        capture_output=True,
        text=True,
        env={**os.environ, "SLURM_CONF": str(conf)},
        timeout=20,
    )
    if theirs.returncode:
        pytest.skip(f"scontrol does not run here: {theirs.stderr.strip()[:80]}")
    assert typed("hosts", "expand", text).stdout == theirs.stdout


def test_whoami_alone():
    done = typed("whoami")
    assert done.returncode == 0
    assert done.stdout.startswith("rank 0 of 1, local rank 0 of 1 on ")
    assert "note: one process, no launcher" in done.stdout


def test_whoami_json_is_one_line():
    done = typed("whoami", "--json", SLURM_JOB_ID="5", SLURM_NTASKS="8")
    (line,) = done.stdout.splitlines()
    said = json.loads(line)
    assert (said["size"], said["launcher"], said["job_id"]) == (1, "none", "5")
    assert "8 tasks" in said["notes"][0]


def test_whoami_with_half_set_variables_is_status_7():
    done = typed("whoami", HOROVOD_RANK="0")
    assert done.returncode == 7
    assert done.stderr == (
        "hvd-mnist: error: HOROVOD_RANK set, but HOROVOD_SIZE is not"
        " -> unset HOROVOD_RANK, or start the program with its launcher\n"
    )


def test_needs_neither_tensorflow_nor_horovod():
    code = (
        "import sys\n"
        "for name in ('tensorflow', 'keras', 'horovod', 'numpy', 'rich', 'mpi4py'): sys.modules[name] = None\n"
        "from hvd_mnist.cli import cli\n"
        "for words in (['whoami'], ['hosts', 'expand', 'h[1-2]:4']): cli.main(words, standalone_mode=False)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean_environment(), timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("h1:4\nh2:4\n")
