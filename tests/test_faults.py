"""The grammar of --inject, and which rank does what when. Nothing here starts a job."""

import errno
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_mnist.config import TrainConfig
from hvd_mnist.errors import DataError, UsageError
from hvd_mnist.faults import KINDS, MOMENTS, WITHOUT_SENSE, Fault, Faults, parse

DOCS = Path(__file__).parents[1] / "docs" / "faults.md"


@pytest.mark.parametrize(
    "text, fault",
    [
        ("kill:rank=1,step=5", ("kill", 1, "step", 5)),
        ("raise:rank=0,step=0", ("raise", 0, "step", 0)),
        ("hang:rank=3,at=save", ("hang", 3, "save", None)),
        ("nan:rank=2,at=evaluate,step=10", ("nan", 2, "evaluate", 10)),
        ("disk-full:rank=0", ("disk-full", 0, "save", None)),
        ("disk-full:rank=0,step=8", ("disk-full", 0, "save", 8)),
        (" skip-collective:rank=1, step = 4 ", ("skip-collective", 1, "step", 4)),
    ],
)
def test_what_is_read(text, fault):
    found = parse(text)
    assert (found.kind, found.rank, found.at, found.step) == fault and found.text == text.strip()


def test_code_and_seconds():
    assert parse("exit:rank=1,step=2,code=7").code == 7 and parse("exit:rank=1,step=2").code == 1
    assert parse("slow:rank=1,step=2,seconds=0.25").seconds == 0.25


@pytest.mark.parametrize(
    "text, message",
    [
        ("kil:rank=1,step=5", "no fault 'kil'; expected raise, exit, .* -> --inject kill:rank=1,step=5"),
        ("", "no fault ''; expected raise, .* -> KIND:rank=R,step=S, as in kill:rank=1,step=5"),
        ("kill", "no rank= -> KIND:rank=R"),
        ("kill:1,5", "found '1'; expected rank=, step="),
        ("kill:rank=1,stp=5", "found 'stp=5'; expected .* -> --inject kill:rank=1,step=5"),
        ("kill:rank=1", "no time; expected step=S, at=save or at=evaluate"),
        ("kill:rank=one,step=5", "found rank=one; expected a number not below 0"),
        ("kill:rank=1,step=-5", "found step=-5; expected a number not below 0"),
        ("kill:rank=1,rank=2,step=5", "rank= is there twice"),
        ("kill:rank=1,at=nowhere", "found at=nowhere; expected at=save or at=evaluate"),
        ("kill:rank=1,step=5,code=3", "code= belongs to exit"),
        ("exit:rank=1,step=5,code=256", "found code=256; expected a number from 0 to 255"),
        ("slow:rank=1,step=5", "no seconds= -> --inject slow:rank=1,step=5,seconds=0.2"),
        ("slow:rank=1,step=5,seconds=inf", "found seconds=inf"),
        ("slow:rank=1,step=5,seconds=nan", "found seconds=nan"),
        ("disk-full:rank=1", "rank 0 alone writes checkpoints -> --inject disk-full:rank=0"),
        ("nan:rank=1,at=save", "a save computes nothing, so nan cannot happen there"),
        ("kill:rank=1,at=save,step=0", "no save follows step 0"),
        ("nan:rank=1,step=0", "no batch is read before the first step"),
    ],
)
def test_what_is_refused_in_one_line(text, message):
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert re.search(message, str(refused.value)) and "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"--inject {text}: ")


@given(st.text(alphabet="abdefiklnrstuvw:=,-0123456789. ", max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        assert isinstance(parse(text), Fault)
    except UsageError:
        pass


def test_every_kind_has_its_moments():
    times = {"start": "step=0", "step": "step=3", "save": "at=save", "evaluate": "at=evaluate"}
    for kind in KINDS:
        for moment in MOMENTS:
            if (kind, moment) == ("disk-full", "step"):
                continue  # step=3 is read as the save after step 3
            text = f"{kind}:rank=0,{times[moment]}" + (",seconds=1" if kind == "slow" else "")
            if (kind, moment) in WITHOUT_SENSE:
                with pytest.raises(UsageError):
                    parse(text)
            else:
                assert parse(text).kind == kind


def test_faults_must_be_allowed():
    fault = "kill:rank=1,step=5"
    with pytest.raises(UsageError, match="makes this job fail on purpose -> --allow-faults"):
        TrainConfig(inject=(fault,))
    assert TrainConfig(inject=(fault,), allow_faults=True).inject == (fault,)
    assert TrainConfig(inject=fault, allow_faults=True).inject == (fault,)  # one line in a config file
    with pytest.raises(UsageError, match="no fault"):
        TrainConfig(inject=("kil:rank=1,step=5",), allow_faults=True)


def test_a_rank_that_the_job_has_not():
    with pytest.raises(UsageError, match="the job has ranks 0 to 1"):
        Faults(["kill:rank=2,step=5"], 0, 2, "host")


@pytest.mark.parametrize("kind", ["hang", "diverge", "skip-collective"])
def test_what_one_rank_alone_could_not_notice(kind):
    with pytest.raises(UsageError, match=f"other ranks notice {kind}, and there are none"):
        Faults([f"{kind}:rank=0,step=5"], 0, 1, "host")
    assert Faults([f"{kind}:rank=0,step=5"], 0, 2, "host")


def test_only_its_rank_only_then_only_once(capfd):
    texts = ["raise:rank=1,step=5", "data-error:rank=1,at=evaluate"]
    assert not Faults(texts, 0, 2, "host")
    faults = Faults(texts, 1, 2, "host")
    assert faults and faults.never_happened() == texts
    for step in (0, 1, 4, 6):
        faults.reach("step", step)
    faults.reach("save", 5)
    with pytest.raises(RuntimeError, match="injected by --inject raise:rank=1,step=5"):
        faults.reach("step", 5)
    faults.reach("step", 5)
    assert faults.never_happened() == texts[1:]
    with pytest.raises(DataError):
        faults.read_data("evaluate", 10)
    assert faults.never_happened() == []
    assert capfd.readouterr().err.splitlines() == [
        "hvd-mnist: injecting raise into rank 1 on host, in step 5",
        "hvd-mnist: injecting data-error into rank 1 on host, in evaluate after step 10",
    ]


def test_slow_goes_on(monkeypatch, capfd):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    faults = Faults(["slow:rank=0,step=3,seconds=0.5"], 0, 1, "host")
    for step in range(1, 6):
        faults.reach("step", step)
    assert slept == [0.5, 0.5, 0.5] and capfd.readouterr().err.count("injecting") == 1


def test_exit_and_disk_full():
    with pytest.raises(SystemExit) as left:
        Faults(["exit:rank=0,step=1,code=7"], 0, 1, "host").reach("step", 1)
    assert left.value.code == 7
    with pytest.raises(OSError) as full:
        Faults(["disk-full:rank=0"], 0, 1, "host").reach("save", 4)
    assert full.value.errno == errno.ENOSPC


def test_the_page_names_every_kind_and_every_reason():
    page = DOCS.read_text(encoding="utf-8")
    assert all(f"`{kind}`" in page for kind in KINDS)
    assert all(reason in page for reason in WITHOUT_SENSE.values())
