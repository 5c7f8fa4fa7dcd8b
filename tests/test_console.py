"""What a rank says at which level, and the words of its progress."""

import sys
import warnings

import pytest

from hvd_mnist import console
from hvd_mnist.config import TrainConfig
from hvd_mnist.errors import UsageError


@pytest.mark.parametrize(
    "level, shown",
    [("debug", ["said", "warned", "logged"]), ("info", ["said", "warned"]), ("warning", ["warned"])],
)
def test_levels(level, shown, tmp_path, capsys):
    voice = console.Console(level=level)
    voice.open_log(tmp_path / "rank-0.log")
    voice.say("said")
    voice.warn("warned")
    voice.log("logged")
    voice.close()
    assert capsys.readouterr().out.splitlines() == shown
    kept = [line.split(" ", 2)[2] for line in (tmp_path / "rank-0.log").read_text().splitlines()]
    assert kept == ["said", "warning: warned", "logged"], "the log file holds everything at every level"


def test_a_rank_that_does_not_speak_is_silent_at_every_level(capsys):
    for level in console.LEVELS:
        voice = console.Console(rank=1, speaks=False, level=level)
        voice.say("said")
        voice.warn("warned")
        voice.log("logged")
    assert capsys.readouterr().out == ""


def test_warnings_of_all_ranks_are_folded(capsys):
    told = [["lost", "own"], ["lost"], [], ["lost", "late"]]
    assert console.folded(told) == ["ranks 0, 1, 3 warned: lost", "rank 3 warned: late"]
    ranks = [console.Console(rank, speaks=rank == 0) for rank in range(3)]
    for voice in ranks:
        voice.warn("slow disk")
        voice.warn("slow disk")
    ranks[2].warn("old driver")
    assert capsys.readouterr().out.splitlines() == ["slow disk"] * 2, "rank 0 shows its own at once"
    told = [voice.take_warnings() for voice in ranks]
    assert told == [["slow disk"], ["slow disk"], ["slow disk", "old driver"]]
    for voice in ranks:
        voice.show_folded(told)
    assert capsys.readouterr().out.splitlines() == ["ranks 0, 1, 2 warned: slow disk", "rank 2 warned: old driver"]
    assert [voice.take_warnings() for voice in ranks] == [[], [], []]


def test_where_all_ranks_speak_nothing_is_said_twice():
    voice = console.Console(rank=1, speaks=True)
    voice.warn("slow disk")
    assert voice.take_warnings() == []


def test_warnings_of_python_are_heard_until_the_end(tmp_path, capsys):
    voice = console.Console(rank=1, speaks=False)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning
        voice.hear_python()
        warnings.warn("an old name", DeprecationWarning, stacklevel=1)
        (found,) = voice.take_warnings()
        assert found.startswith("DeprecationWarning: an old name (test_console.py:")
        voice.close()
        assert warnings.showwarning is before
    assert capsys.readouterr() == ("", "")


def test_progress_without_a_terminal_is_a_line_now_and_then_with_eta(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    assert not sys.stdout.isatty()
    voice = console.Console()
    with voice.progress(100):
        for step, at in ((1, 100.0), (2, 101.0), (3, 106.0)):
            now[0] = at
            voice.advance(step, console.progress_words(0, 0.31934, 0.9023, 0.0042, 7837.0, 0.118), 131.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"step {step}/100  epoch 1  loss 0.3193  accuracy 90.23%  rate 0.0042  7837 images/s  "
        "communication 12%  ETA 2:11"
        for step in (1, 3)
    ]


def test_words():
    assert console.progress_words(1, 0.5, 0.75, 5.93970e-3) == "epoch 2  loss 0.5000  accuracy 75.00%  rate 0.00594"
    assert [console.clock(s) for s in (0, 9.4, 131, 3723, -1)] == ["0:00", "0:09", "2:11", "1:02:03", "0:00"]


def test_debug_lets_tensorflow_and_horovod_speak():
    assert console.library_defaults("debug")["TF_CPP_MIN_LOG_LEVEL"] == "0"
    for level in ("info", "warning"):
        assert console.library_defaults(level) == {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}


def test_the_setting_is_checked():
    assert TrainConfig().log_level == "info"
    with pytest.raises(UsageError, match="--log-level waring: expected debug, info, warning -> --log-level warning"):
        TrainConfig(log_level="waring")
