"""Horovod's timeline read: arithmetic on events made up here, and excerpts of files that real jobs left behind."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_mnist.bench import timeline, timeline_merge, timeline_report
from hvd_mnist.commands.bench_timeline import timeline as command
from hvd_mnist.errors import UsageError
from hvd_mnist.runtime import timeline as timeline_file

GOLDEN = Path(__file__).parent / "golden" / "timeline"


def step(begin, *, last=1, late=4000, cached=False, communication=3000, tensors=("a", "b"), apart=0):
    """Events of one step of two ranks: all tensors negotiated, then fused. ``apart``: b is ready so much later."""
    events = []
    for pid, name in enumerate(tensors, 1):
        shift = begin + apart * (pid - 1)
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": shift, "pid": pid})
        if not cached:
            events.append({"ph": "X", "name": str(1 - last), "ts": shift, "pid": pid, "dur": 0})
            events.append({"ph": "X", "name": str(last), "ts": shift + late, "pid": pid, "dur": 0})
        events.append({"ph": "E", "ts": shift + late, "pid": pid})
        at = shift + late + 500 if apart else begin + late + 500
        events.append({"ph": "B", "name": "ALLREDUCE", "ts": at, "pid": pid})
        for activity, length in (
            ("MEMCPY_IN_FUSION_BUFFER", 200),
            ("GLOO_ALLREDUCE", communication),
            ("MEMCPY_OUT_FUSION_BUFFER", 100),
        ):
            events.append({"ph": "B", "name": activity, "ts": at, "pid": pid})
            at += length
            events.append({"ph": "E", "ts": at, "pid": pid})
        events.append({"ph": "E", "ts": at, "pid": pid, "args": {"dtype": "float32", "shape": "[10, 5]"}})
    return events


def steps(number, **settings):
    return [event for k in range(number) for event in step(20_000 * k, **settings)]


def test_covered():
    assert timeline.covered([]) == 0
    assert timeline.covered([(0, 2), (1, 3), (5, 6), (5, 5)]) == 4
    assert timeline.covered([(0, 2), (1, 3), (5, 6)], until=2.5) == 2.5


def test_phases_of_tensors_that_travel_together_count_once():
    found = timeline.summarize(steps(8))
    assert (found["ranks"], found["steps"], found["steps_not_counted"]) == (2, 8, 2)
    assert (found["tensors_a_step"], found["bytes_a_step"]) == (2, 400)
    assert {phase: value["median"] for phase, value in found["phases_ms"].items() if value["most"]} == {
        "negotiation": 4.0, "queue": 0.5, "copy in": 0.2, "communication": 3.0, "copy out": 0.1,
    }  # fmt: skip
    assert found["exchange_ms"]["median"] == 7.8 and found["step_ms"] == {"median": 20, "least": 20, "most": 20, "n": 5}
    assert found["hidden_ms"]["most"] == 0
    assert found["ready"]["last"] == {1: {"steps": 6, "late_ms": {"median": 4, "least": 4, "most": 4, "n": 6}}}
    (row, _) = found["tensors"]
    assert row["times"] == 8 and row["bytes"] == 200 and row["phases_ms"]["communication"]["median"] == 3


def test_communication_before_the_last_tensor_is_ready_is_hidden():
    found = timeline.summarize(steps(6, apart=6000))
    # a communicates from 4.7 to 7.7 ms, b is ready everywhere at 10 ms
    assert found["hidden_ms"]["median"] == 3 and found["phases_ms"]["communication"]["median"] == 6


def test_who_is_last():
    assert "rank 1 was ready last in 100% of 6 steps, 4.0 ms after" in timeline_report.advice(
        timeline.summarize(steps(8))
    )[0]  # fmt: skip
    together = timeline.summarize(steps(8, late=50))
    assert together["ready"]["together"] == 6 and not together["ready"]["last"]
    unknown = timeline.summarize(step(0, late=50) + [e for k in range(1, 8) for e in step(20_000 * k, cached=True)])
    assert unknown["ready"]["steps_known"] == 0
    assert any("HOROVOD_CACHE_CAPACITY=0" in line for line in timeline_report.lines(unknown))
    assert "HOROVOD_CACHE_CAPACITY=0 would show who is last" in timeline_report.advice(unknown)[0]


def test_advice_names_what_stands_out():
    def says(**settings):
        return " ".join(timeline_report.advice(timeline.summarize(steps(8, **settings))))

    assert "fewer bytes" in says(late=50, communication=9000) and "groups=" in says(late=50, communication=9000)
    assert "groups=" not in says(late=50, communication=9000, apart=12_000)
    assert "HOROVOD_FUSION_THRESHOLD=0" in says(late=50, communication=10)
    assert timeline_report.advice(timeline.summarize([])) == [
        "no tensor was reduced more than once: there is no step to speak of"
    ]


def test_a_tensor_that_the_end_cut_off_is_left_out():
    events = steps(8)[:-3]
    assert timeline.summarize(events)["steps"] == 7


@pytest.mark.parametrize(
    "name, activity, known, count",
    [
        ("gloo-cached.json", "GLOO_ALLREDUCE", 0, 8),
        ("gloo-no-cache.json", "GLOO_ALLREDUCE", 6, 8),
        ("mpi-no-cache.json", "MPI_ALLREDUCE", 6, 8),
    ],
)
def test_files_of_real_jobs(name, activity, known, count):
    events, cut = timeline_file.read(GOLDEN / name)
    found = timeline.summarize(events)
    assert cut == 0 and found["ranks"] == 2 and found["steps"] == count
    assert found["ready"]["steps_known"] == known
    rows = {row["tensor"]: row for row in found["tensors"]}
    assert activity in rows["DistributedAdam.group0_1of5"]["activities"]
    assert rows["DistributedAdam.group0_1of5"]["bytes"] == 784 * 100 * 4
    for each in found["each_step_ms"]:
        assert 0 < each["communication"] <= each["exchange"]
        assert sum(each[phase] for phase in timeline.PHASES) == pytest.approx(each["exchange"], rel=0.05)


def test_the_file_of_a_killed_job(tmp_path):
    killed = GOLDEN / "killed.json"
    result = CliRunner().invoke(
        command, [str(killed), "--repair", str(tmp_path / "whole.json"), "--plot", str(tmp_path / "p.png")]
    )
    assert result.exit_code == 0, result.output
    events = json.loads((tmp_path / "whole.json").read_text())
    assert timeline.summarize(events)["steps"] == 10  # of the eleventh, the end of its last tensor was not written
    assert events == timeline_file.read(killed)[0] and (tmp_path / "p.png").stat().st_size > 1000
    assert f"{len(events)} events" in result.output and "10 steps" in result.output


def times(clock, late=0.0):
    """step-times.json of one rank whose clock is ``clock`` seconds ahead: 8 steps with the timeline's."""
    rows = []
    for k in range(8):
        at = 5000.0 + clock + 0.02 * k
        jitter = 0.0002 * (k % 3 - 1) * bool(clock)
        rows.append([0, at - 0.01, at - 0.009, at + late, at + 0.0078 + jitter, at + 0.009, 0.01 * k])
    return rows


def test_ranks_on_one_clock(tmp_path):
    began = {"ph": "M", "name": "process_name", "pid": 0, "args": {"start_time_since_epoch_in_micros": 5_000_000_000}}
    events = [began, *steps(8)]
    told = {"ranks": [{"host": "h1", "steps": times(0.0)}, {"host": "h2", "steps": times(3.5, late=0.004)}]}
    both, lines = timeline_merge.merged(events, told)
    assert lines == ["rank 1 on h2: its clock is +3500.00 ms from rank 0's, give or take 0.20 ms"]
    assert both[: len(events)] == events
    begun = [event["ts"] for event in both if event.get("name") == "exchange" and event["pid"] == 1_000_001]
    assert begun == pytest.approx([20_000 * k + 4000 for k in range(8)], abs=1)
    assert timeline.summarize(both) == timeline.summarize(events)
    with pytest.raises(UsageError, match="not of one run"):
        timeline_merge.merged(events, {"ranks": [{"host": "h1", "steps": times(1e6)}]})
    with pytest.raises(UsageError, match="does not say when it began"):
        timeline_merge.merged(events[1:], told)


def test_json(tmp_path):
    name = str(GOLDEN / "mpi-no-cache.json")
    found = json.loads(CliRunner().invoke(command, [name, "--json", "-"]).output)
    assert found["schema"] == 1 and found["files"][name]["steps"] == 8


def test_what_is_wrong_is_said():
    with pytest.raises(UsageError, match="no.json: No such file or directory -> a file that train"):
        CliRunner().invoke(command, ["no.json"], catch_exceptions=False)
    with pytest.raises(UsageError, match="--merge puts the ranks' steps into one timeline"):
        CliRunner().invoke(command, ["a", "--merge", "c"], catch_exceptions=False)
    with pytest.raises(UsageError, match="--repair with 2 files: expected one"):
        CliRunner().invoke(command, ["a", "b", "--repair", "c"], catch_exceptions=False)
