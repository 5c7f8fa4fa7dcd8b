"""When a failed job is started again, when not, and with which status it ends. Real ranks: parallel/test_restart.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvd_mnist.cluster.hostfile import parse_hosts
from hvd_mnist.cluster.placement import place
from hvd_mnist.errors import DataError, LaunchError, NotFinite, PeerLost, Preempted, RankFailed, UsageError
from hvd_mnist.launch.job import Command
from hvd_mnist.launch.restart import Restarts, going_on, run_dir_of, run_with_restarts

KILLED = RankFailed("rank 1 on h2 was ended by signal 9", None, 137)


class Job:
    """A stand-in: each start saves up to a step, then fails or ends."""

    def __init__(self, *starts):
        self.starts, self.resumed, self.pauses, self.saved = list(starts), [], [], -1

    def start(self, again):
        self.resumed.append(again)
        self.saved, end = self.starts.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    def run(self, most, delay=5.0, until=None):
        return run_with_restarts(self.start, lambda: self.saved, Restarts(most, delay), until, self.pauses.append)


def test_a_job_that_makes_progress_is_started_again_until_it_is_done(capsys):
    job = Job((5, KILLED), (9, PeerLost("lost h2")), (12, LaunchError("no rank said why")), (20, 0))
    assert job.run(most=3) == 0
    assert job.resumed == [False, True, True, True] and job.pauses == [5, 10, 20]
    assert capsys.readouterr().err.splitlines()[0] == (
        "hvd-mnist: rank 1 on h2 was ended by signal 9; step 5 was saved since its start: restart 1 of 3 in 5 s"
    )


@pytest.mark.parametrize(
    "starts, most, status, words",
    [
        ([(-1, KILLED)], 3, 137, "no new complete checkpoint since its last start (there is none)"),
        ([(5, KILLED), (5, PeerLost("lost h2"))], 3, 201, "(step 5 is still the newest)"),
        ([(5, KILLED), (7, KILLED), (9, RankFailed("x", None, 139))], 2, 139, "2 of 2 restarts are used"),
        ([(5, Preempted("STOP"))], 3, 200, "stopped on request"),
        ([(5, RankFailed("preempted", None, 200))], 3, 200, "stopped on request"),
        ([(5, NotFinite("loss"))], 3, 11, "status 11 means that it would fail again"),
        ([(5, DataError("gone"))], 3, 4, "status 4 means that it would fail again"),
        ([(5, KILLED)], 0, 137, ""),
    ],
)
def test_the_end_has_the_status_of_the_last_failure_and_says_why_there_is_no_restart(
    starts, most, status, words, capsys
):
    job = Job(*starts)
    with pytest.raises(Exception) as end:
        job.run(most)
    assert end.value.exit_status == status and not job.starts
    last = capsys.readouterr().err.splitlines()[-1:]
    assert last == [] if not words else words in last[0] and last[0].startswith("hvd-mnist: not started again")


def test_what_the_launcher_returns_is_final():
    job = Job((5, 130))  # Ctrl-C
    assert job.run(most=9) == 130 and job.pauses == []


def test_nothing_is_started_after_the_limit(capsys):
    job = Job((5, LaunchError("the job was still running after 3 s")), (9, 0))
    with pytest.raises(LaunchError):
        job.run(most=9, until=time.monotonic() + 4)  # the pause alone takes 5 s
    assert capsys.readouterr().err == "hvd-mnist: not started again: --timeout is over\n" and len(job.starts) == 1


def test_pauses_double_up_to_five_minutes():
    assert [Restarts(9, 10.0).pause(n) for n in (1, 2, 5, 6, 60)] == [10, 20, 160, 300, 300]


def test_the_run_folder_and_the_words_of_a_restart():
    assert run_dir_of(("train", "--run-dir", "r/1")) == run_dir_of(("x", "--run-dir=r/1")) == Path("r/1")
    for words in (("train",), ("train", "--run-dir")):
        with pytest.raises(UsageError, match="--max-restarts without --run-dir"):
            run_dir_of(words)

    def command(*argv):
        return Command("local", argv, {}, "/", place(parse_hosts("localhost:1")), ())

    assert going_on(command("python", "-m", "hvd_mnist", "train")).argv[-2:] == ("--resume", "auto")
    for words in (("python", "my.py"), ("python", "-m", "hvd_mnist.launch.guard", "--", "python", "my.py")):
        assert going_on(command(*words)).argv == words


def test_the_newest_step_is_read_where_tensorflow_is_not(tmp_path):
    """Folders that are cut, or without a manifest, are no progress."""
    from hvd_mnist.checkpoint.manifest import FileEntry, Manifest, to_bytes
    from hvd_mnist.checkpoint.variables import Fingerprint

    def a_checkpoint(step, cut=False):
        folder = tmp_path / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        files = {"model.keras": b"m" * 9, "state.json": b"{}"}
        for name, content in files.items():
            (folder / name).write_bytes(content[: 1 if cut else None])
        entries = {name: FileEntry(len(content), "0" * 64) for name, content in files.items()}
        manifest = Manifest(step, "2026-01-01T00:00:00+00:00", {}, entries, Fingerprint((), (), None, ()))
        (folder / "manifest.json").write_bytes(to_bytes(manifest))

    program = (
        "import sys, json; sys.modules['tensorflow'] = sys.modules['keras'] = sys.modules['horovod'] = None\n"
        "from pathlib import Path; from hvd_mnist.launch.restart import newest_step\n"
        "print(json.dumps(newest_step(Path(sys.argv[1]))))"
    )

    def newest():
        environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        return json.loads(subprocess.check_output([sys.executable, "-c", program, str(tmp_path)], env=environ))

    assert newest() == -1
    a_checkpoint(12)
    a_checkpoint(40, cut=True)
    (tmp_path / "checkpoints" / "step-00000050").mkdir()
    assert newest() == 12
