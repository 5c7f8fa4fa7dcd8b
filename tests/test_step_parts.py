"""Where a step's time goes: arithmetic on times made up here; what the report says of it."""

import json

import pytest

from hvd_mnist.bench import scaling, scaling_report, step_parts
from hvd_mnist.errors import HvdMnistError, UsageError


def rows(steps, *, compute=0.1, data=0.02, done=0.2, start=1000.0, per_epoch=100, cpu=0.15):
    """One rank's rows: a step every 0.3 s; gradients ready after data and compute, exchanged 0.2 s into the step."""
    found = []
    for k in range(steps):
        begin = start + 0.3 * k + 0.01
        found.append(
            [k // per_epoch, begin, begin + data, begin + data + compute, begin + done, begin + 0.25, cpu * (k + 1)]
        )
    return found


def test_parts_sum_to_the_step_and_need_no_common_clock():
    fast, slow = rows(8), rows(8, compute=0.16, start=5.0)  # the second host's clock is far off
    found = step_parts.parts([fast, slow], warm_up=3)
    assert [len(rank) for rank in found] == [5, 5]
    for rank, own, wait in ((0, 0.22, 0.06), (1, 0.28, 0.0)):
        for step in found[rank]:
            assert step["step"] == pytest.approx(0.3) and step["cpu"] == pytest.approx(0.15)
            assert sum(step[part] for part in step_parts.PARTS) == pytest.approx(step["step"])
            assert step["communication"] == pytest.approx(0.02) and step["wait"] == pytest.approx(wait, abs=1e-9)
            assert step_parts.own(step) == pytest.approx(own)
            assert step["outside"] == pytest.approx(0.05) and step["data"] == pytest.approx(0.02)


def test_the_first_step_of_an_epoch_has_no_beginning():
    found = step_parts.parts([rows(12, per_epoch=5)], warm_up=1)
    assert len(found[0]) == 12 - 3 and found[0][0]["wait"] == 0


def test_a_slow_rank_is_found_with_its_host():
    steps = step_parts.parts([rows(6), rows(6), rows(6, compute=0.17)], warm_up=1)
    table = step_parts.by_rank(steps, ["h1", "h1", "h2"])
    assert [round(row["factor"], 2) for row in table] == [0.86, 0.86, 1.32]
    worst = step_parts.slowest(table)
    assert (worst["rank"], worst["host"]) == (2, "h2")
    assert step_parts.slowest(step_parts.by_rank(step_parts.parts([rows(6)] * 2, 1), ["h1", "h1"])) is None
    assert step_parts.by_rank(step_parts.parts([rows(6)], 1), ["h1"])[0]["factor"] is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"columns": ["epoch"], "ranks": [1]}'])
def test_what_holds_no_times_is_refused(text, tmp_path):
    (tmp_path / "step-times.json").write_text(text)
    with pytest.raises(UsageError, match="holds no times of steps"):
        step_parts.read(tmp_path / "step-times.json")
    with pytest.raises(UsageError, match="No such file"):
        step_parts.read(tmp_path / "no.json")


def run_folder(folder, ranks, global_batch):
    folder.mkdir()
    told = [{"host": f"h{number}", "steps": steps} for number, steps in enumerate(ranks)]
    (folder / "step-times.json").write_text(
        json.dumps({"schema": 1, "columns": list(step_parts.COLUMNS), "ranks": told})
    )
    (folder / "summary.json").write_text(json.dumps({"backend": "Gloo", "global_batch": global_batch}))
    return folder


def test_sample_of_a_job(tmp_path):
    what = scaling.Scaling(sizes=(1, 2), warm_up=2)
    found = scaling.sample(what, 2, 0, run_folder(tmp_path / "run", [rows(8), rows(8)], 60))
    assert found["steps"] == 6 and found["images_per_second"] == pytest.approx(60 / 0.3)
    assert found["cpu_ms_per_image"] == pytest.approx(1e3 * 2 * 0.15 / 60) and found["hosts"] == 2


def sampled(ranks, repeat, speed, cpu=2.0, factor=1.0):
    by_rank = [
        {
            "rank": rank,
            "host": "h1",
            "own_ms": 10.0,
            "cpu_ms": 5.0,
            "factor": factor if rank and ranks > 1 else None,
            "mean_ms": dict.fromkeys((*step_parts.PARTS, "step"), 1.0),
        }
        for rank in range(ranks)
    ]
    return {
        "ranks": ranks, "repeat": repeat, "backend": "Gloo", "hosts": 1, "steps": 5, "global_batch": 128 * ranks,
        "images_per_second": speed, "cpu_ms_per_image": cpu, "by_rank": by_rank,
    }  # fmt: skip


def test_efficiency_is_of_pairs_of_one_repeat():
    samples = [sampled(1, 0, 100), sampled(2, 0, 180), sampled(1, 1, 50), sampled(2, 1, 98), sampled(2, 2, 7)]
    figure = lambda each: each["images_per_second"] / each["ranks"]  # noqa: E731
    found = scaling.efficiency(samples, 2, figure)
    assert found == {"median": pytest.approx(0.94), "least": 0.9, "most": 0.98, "n": 2}
    assert scaling.efficiency(samples, 1, figure)["median"] == 1


def report(samples, cores=2, load=0.0, timelines=None, **settings):
    what = scaling.Scaling(sizes=(1, 2), **settings)
    return {"load": load} | scaling.summarize(what, samples, timelines or {}, cores)


def test_lines_say_what_spoils_the_figures():
    samples = [sampled(1, 0, 100), sampled(2, 0, 180, factor=1.6), sampled(4, 0, 200)]
    told = "\n".join(
        scaling_report.lines(report(samples, load=3.0, timelines={2: {"communication_ms": 4.0, "hidden_ms": 1.0}}))
    )
    assert "4 ranks on 2 cores: they take turns" in told and "2 ranks on 2 cores" not in told
    assert "the machine's load was 3.0" in told
    assert "slow: rank 1 of 2 on h1 takes 1.60 times the others' median" in told and "rank 1 of 4" not in told
    assert "25% of communication is hidden" in told
    assert scaling_report.lines(report([sampled(2, 0, 1)], threads=2))[0].startswith("2 ranks on 2 cores")


def test_tables_and_picture(tmp_path, capsys):
    from hvd_mnist.console import Console

    result = report([sampled(1, 0, 100), sampled(2, 0, 180), sampled(1, 1, 100), sampled(2, 1, 190)])
    scaling_report.tell(result, Console())
    shown = capsys.readouterr().out
    assert "92% (90% to 95%)" in shown and "1 of 2" in shown
    scaling_report.plot(result, tmp_path / "s.png")
    assert (tmp_path / "s.png").stat().st_size > 1000
    json.dumps(result, allow_nan=False)


def test_words_of_a_job(tmp_path):
    words = scaling.Scaling(sizes=(1, 2), kind="strong", batch=64).words(tmp_path)
    assert words[words.index("--global-batch") + 1] == "64" and "--timeline" not in words
    with pytest.raises(UsageError, match=r"--batch 100 does not divide by 8 ranks -> --batch 96"):
        scaling.Scaling(sizes=(1, 8), kind="strong", batch=100)


@pytest.fixture
def pretended(monkeypatch):
    """Jobs that only leave a run folder behind; ``made`` is their order, ``ends`` may end one of them by hand."""
    made, ends = [], {}

    def make(command, folder, limit, say):
        size = command.placement.size
        made.append((size, "--timeline" in command.argv))
        if len(made) in ends:
            return ends[len(made)]()
        run_folder(folder, [rows(8)] * size, 128 * size)
        (folder / "timeline.json").write_text("[]")
        return True

    monkeypatch.setattr(scaling, "_make", make)
    monkeypatch.setattr(scaling, "by_timeline", lambda path: {"communication_ms": 1.0, "hidden_ms": 0.0})
    return made, ends


def interrupted():
    raise KeyboardInterrupt


def measure(**settings):
    from hvd_mnist.cluster.hostfile import parse_hosts

    what = scaling.Scaling(sizes=(1, 2), warm_up=2, repeats=2, **settings)
    return scaling.run(what, parse_hosts("localhost:2"), 10, lambda line: None)


def test_repeats_go_back_and_forth_and_the_timeline_comes_last(pretended):
    samples, timelines, complete = measure(timeline=True)
    assert pretended[0] == [(1, False), (2, False), (2, False), (1, False), (2, True)]
    assert complete and len(samples) == 4 and list(timelines) == [2]


@pytest.mark.parametrize("end", [lambda: False, interrupted], ids=["in a job", "between two"])
def test_what_was_measured_before_a_signal_is_kept(pretended, end):
    made, ends = pretended
    ends[3] = end
    samples, _, complete = measure()
    assert not complete and [each["ranks"] for each in samples] == [1, 2] and len(made) == 3


def test_a_run_folder_on_another_host_is_said(tmp_path):
    with pytest.raises(HvdMnistError, match="on another host, where it cannot be read from here -> this machine first"):
        scaling.sample(scaling.Scaling(sizes=(2,)), 2, 0, tmp_path)
