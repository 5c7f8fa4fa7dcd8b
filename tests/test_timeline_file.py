"""The file of Horovod's timeline: checked before the start, read whatever is left of it."""

import json

import pytest

from hvd_mnist.config import TrainConfig
from hvd_mnist.errors import UsageError
from hvd_mnist.runtime import timeline

EVENTS = [{"ph": "B", "name": "ALLREDUCE", "ts": 1, "pid": 1}, {"ph": "E", "ts": 5, "pid": 1}]


def test_request_on_rank_0_makes_the_folder(tmp_path):
    environ = {}
    assert timeline.request(str(tmp_path / "new" / "t.json"), 0, environ) is None
    assert environ["HOROVOD_TIMELINE"] == str(tmp_path / "new" / "t.json")
    assert (tmp_path / "new" / "t.json").exists()


def test_other_ranks_ask_alike_and_look_at_nothing(tmp_path):
    environ = {}
    assert timeline.request(str(tmp_path / "new" / "t.json"), 3, environ) is None
    assert environ and not (tmp_path / "new").exists()


def test_a_folder_gets_a_file(tmp_path):
    assert timeline.checked(str(tmp_path)) == tmp_path / "timeline.json"


@pytest.mark.parametrize("name, words", [("/proc/no/t.json", "cannot write"), ("{}/file/t.json", "cannot write")])
def test_where_nothing_can_be_written(name, words, tmp_path):
    (tmp_path / "file").write_text("x")
    environ = {}
    wrong = timeline.request(name.format(tmp_path), 0, environ)
    assert words in str(wrong) and "\n" not in str(wrong)
    assert environ["HOROVOD_TIMELINE"] == "DYNAMIC"  # on, as on the other ranks, but without a file
    with pytest.raises(UsageError):
        timeline.confirm(wrong)


def test_another_file_is_not_written_over(tmp_path):
    (tmp_path / "train.py").write_text("import os")
    assert "is no timeline; it stays" in str(timeline.request(str(tmp_path / "train.py"), 0, {}))
    assert (tmp_path / "train.py").read_text() == "import os"


def test_whole_and_cut_anywhere():
    whole = json.dumps(EVENTS)
    assert timeline.events_in(whole, "t") == (EVENTS, 0)
    for end in range(len(whole)):
        events, cut = timeline.events_in(whole[:end], "t")
        assert events == EVENTS[: len(events)]
        left = whole[:end].rstrip(" ,").removesuffix("]")
        assert (cut > 0) == (len(events) < left.count("{")), whole[:end]
    assert timeline.events_in("", "t") == ([], 0)


@pytest.mark.parametrize("text", ["no", '{"a": 1}', "\x7fELF"])
def test_what_is_no_timeline(text):
    with pytest.raises(UsageError, match="t is no timeline"):
        timeline.events_in(text, "t")


def test_finish_mends(tmp_path):
    file = tmp_path / "t.json"
    file.write_text(json.dumps(EVENTS)[:-4] + ', {"ph": "E')
    assert "characters of an unfinished one left out" in timeline.finish(file)
    assert json.loads(file.read_text()) == EVENTS[:1]
    file.write_text(json.dumps(EVENTS)[:-1])  # whole events, no end
    assert timeline.finish(file).endswith(f"2 events; hvd-mnist bench timeline {file}")
    assert json.loads(file.read_text()) == EVENTS
    file.write_text("")
    assert "nothing was exchanged" in timeline.finish(file)
    file.unlink()
    assert timeline.finish(file).startswith("no timeline: ")


def test_not_in_an_elastic_job():
    with pytest.raises(UsageError, match="--timeline with --elastic: Horovod begins its file anew"):
        TrainConfig(elastic=True, timeline="t.json")
