"""What a row of the targets is, and how children are read; the rows themselves are measured by hand (make bench)."""

from __future__ import annotations

import json
import sys

import pytest

from hvd_mnist.bench import targets
from hvd_mnist.commands.bench_targets import ROWS
from hvd_mnist.errors import HvdMnistError, UsageError


def test_the_command_lists_the_rows():
    assert tuple(targets.ROWS) == ROWS


def test_met():
    row = {"what": "", "wish": 2.0, "unit": "x", "samples": ()}
    assert targets.Found(value=2.0, at_least=True, **row).met and targets.Found(value=2.0, at_least=False, **row).met
    assert not targets.Found(value=1.9, at_least=True, **row).met
    assert not targets.Found(value=2.1, at_least=False, **row).met


@pytest.mark.parametrize("mark", ["", "[1,0]<stdout>:", "[0]<stdout>:"])
def test_json_under_a_launchers_marks(mark):
    output = f"{mark}a line first\n" + "".join(f"{mark}{line}\n" for line in ("{", ' "a": {"b": 1}', "}", "and after"))
    assert targets.json_in(output) == {"a": {"b": 1}}


def test_a_child_that_fails_is_one_line():
    with pytest.raises(HvdMnistError, match=r"status 3 from .*: the reason$"):
        targets.child(sys.executable, "-c", "import sys; print('x\\nthe reason', file=sys.stderr); sys.exit(3)")


def test_a_child_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(targets, "LIMIT_SECONDS", 0.5)
    with pytest.raises(HvdMnistError, match="still running after 0.5 s"):
        targets.child(sys.executable, "-c", "import time; time.sleep(600)")


def test_cpu_seconds_are_the_childs():
    spend = "import time\nwhile time.process_time() < 0.5: pass"
    assert targets._cpu_seconds(sys.executable, "-c", spend) > 0.45  # a difference of sums of ticks


def test_torch_is_asked_for_by_name(tmp_path):
    with pytest.raises(UsageError, match="needs a Python with PyTorch"):
        targets.run(("torch",), targets.Setting())
    with pytest.raises(UsageError, match="no such file"):
        targets.run((), targets.Setting(torch=str(tmp_path / "python")))


def test_rows_are_told_and_written(tmp_path, monkeypatch, capsys):
    rows = [targets.Found("a thing", 1.0, 0.95, True, "x", (1.0,), "a note")]
    monkeypatch.setattr(targets, "ROWS", {"allreduce": lambda setting: rows})
    told = tmp_path / "targets.json"
    assert targets.run((), targets.Setting(), str(told)) == rows
    assert "at least 0.95 x" in capsys.readouterr().out and '"met": true' in told.read_text()


def test_sides_are_measured_in_turn_and_compared(monkeypatch):
    asked = []

    def answer(*words):
        theirs = "other" in words
        asked.append("theirs" if theirs else "ours")
        assert words[-4:] == ("--blocks", "4", "--steps", "10")
        if theirs:
            return '{"name": "x", "cpu_ms": 30.0, "wall_ms": 10.0}'
        return '{"cpu": {"ours": {"ms": 20.0}}, "wall": {"ours": {"ms": 20.0}}}'

    monkeypatch.setattr(targets, "child", answer)
    wall, cpu = targets._against(targets.Setting(repeats=2), ("other",), 1.1, lambda told: told["name"])
    assert asked == ["ours", "theirs", "theirs", "ours"]
    assert (wall.value, wall.met, cpu.value, cpu.met) == (0.5, False, 1.5, True)
    assert cpu.what == "cnn, 2 ranks, images a CPU second against x" and cpu.samples == (1.5, 1.5)


def test_a_row_that_cannot_be_measured_here_says_why(monkeypatch, capsys):
    monkeypatch.setattr(targets.os, "geteuid", lambda: 1000)
    rows = [targets.Found("a thing", 1.0, 0.95, True, "x", (1.0,), "a note")]
    monkeypatch.setitem(targets.ROWS, "memory", lambda setting: rows)
    assert targets.run(("memory", "predictions"), targets.Setting()) == rows
    assert "predictions: left out, pretended hosts need root" in capsys.readouterr().out


def test_rows_of_other_benchmarks_are_read(monkeypatch):
    spread = {"median": 0.9, "least": 0.81, "most": 0.92, "n": 3}
    files = {
        "scaling": {
            "rows": [{"ranks": 1}, {"ranks": 2, "efficiency": spread, "cpu_efficiency": spread | {"median": 1}}]
        },
        "compare": {
            "systems": {
                name: {"images_per_second": {"median": speed}, "cpu_ms_per_image": {"median": cpu}}
                for name, speed, cpu in (("single", 50, 3.0), ("ring", 90, 2.0))
            }
        },
    }

    def write(*words):
        with open(words[words.index("--json") + 1], "w") as file:
            json.dump(files[words[4]], file)
        return ""

    monkeypatch.setattr(targets, "child", write)
    wall, cpu = targets.scaling(targets.Setting())
    assert (wall.value, wall.met, cpu.value, cpu.met) == (0.9, False, 1, True) and wall.note == "0.81 to 0.92, n 3"
    wall, cpu = targets.older_ways(targets.Setting())
    assert (wall.value, wall.met, cpu.value, cpu.met) == (1.8, True, 1.5, True) and "single" in wall.what
    monkeypatch.setattr(targets, "child", lambda *words: "links of 10mbit; the worst prediction is 9.8% off\n")
    monkeypatch.setattr(targets.os, "geteuid", lambda: 0)
    (worst,) = targets.predictions(targets.Setting())
    assert worst.value == 9.8 and worst.met
