"""What a job says of its own time: the timeline, the steps, who is slow; and the trainer on 1 and 2 ranks."""

import json
import re
import socket
import sys

import pytest

from hvd_mnist.bench import overhead, step_parts, targets, timeline, timeline_merge
from hvd_mnist.runtime import timeline as timeline_file
from tests.made_runs import assert_documented
from tests.parallel.ranks import run, train

pytestmark = pytest.mark.timeout(600)

SAMPLE = ("--data", "sample", "--model", "mlp")


def test_timeline_step_times_and_a_straggler(tmp_path):
    folder, file = tmp_path / "run", tmp_path / "new" / "t.json"
    # --timeline itself horovodrun would take for two options of its own
    measure = ("--timeline-filename", str(file), "--step-times", "--watch-stragglers")
    slow = ("--allow-faults", "--inject", "slow:rank=1,step=1,seconds=0.25")
    own = ("--data", "sample", "--model", "tests.parallel.warning_model:build")
    options = (*own, "--no-tensorboard", "--steps", "45", *measure, *slow, "--run-dir", str(folder))
    ended = train(*options, launcher="gloo", np=2, timeout=500, HOROVOD_CACHE_CAPACITY=0)
    ended.assert_ok()

    events = json.loads(file.read_text())
    found = timeline.summarize(events)
    assert (found["ranks"], found["steps"]) == (2, 45)
    assert found["ready"]["steps_known"] == 43 and found["ready"]["last"][1]["steps"] >= 30
    assert f"timeline {file}: {len(events)} events" in ended.output

    told = step_parts.read(folder / "step-times.json")
    steps = step_parts.parts([rank["steps"] for rank in told["ranks"]], warm_up=5)
    slowest = step_parts.slowest(step_parts.by_rank(steps, [rank["host"] for rank in told["ranks"]]))
    assert (slowest["rank"], slowest["host"]) == (1, socket.gethostname())
    assert min(step["data"] for step in steps[1]) >= 0.25
    both, lines = timeline_merge.merged(events, told)
    assert len(both) > len(events) and len(lines) == 1
    assert timeline_file.events_in(json.dumps(both), "both")[1] == 0

    assert f"straggler: rank 1 on {socket.gethostname()} takes" in ended.output
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    noted = [record for record in records if record["kind"] == "straggler"]
    assert noted and {record["rank"] for record in noted} == {1} and noted[0]["step"] == 40
    assert_documented(folder)
    # Rank 0 waits 0.25 s in each step for rank 1.
    shares = [record["communication"] for record in records if record["kind"] == "step"]
    assert shares and all(0 < share < 1 for share in shares) and max(shares) > 0.1
    assert re.search(r"images/s  communication \d+%", ended.output)

    # Both ranks have warned while they built the model, rank 1 of something of its own, too.
    assert ended.output.count("ranks 0, 1 warned: UserWarning: an old kind of layer (warning_model.py:") == 1
    assert ended.output.count("rank 1 warned: UserWarning: little memory is left (warning_model.py:") == 1
    assert ended.output.count("an old kind of layer") == 2, "rank 0 at once, then all together"


def test_scaling_of_the_trainer(tmp_path):
    words = ("bench", "scaling", "-np", "1,2", *SAMPLE, "--warm-up", "3", "--steps", "4", "--repeats", "1")
    ended = run([sys.executable, "-m", "hvd_mnist", *words, "--json", str(tmp_path / "s.json")], timeout=500)
    ended.assert_ok()
    found = json.loads((tmp_path / "s.json").read_text())
    assert found["complete"] and [row["ranks"] for row in found["rows"]] == [1, 2]
    one, two = found["rows"]
    assert one["efficiency"]["median"] == 1 and two["global_batch"] == 256 and len(two["by_rank"]) == 2
    for sample in found["samples"]:
        assert sample["steps"] == 4
        for rank in sample["by_rank"]:
            parts = sum(rank["mean_ms"][part] for part in step_parts.PARTS)
            assert parts == pytest.approx(rank["mean_ms"]["step"]) and rank["mean_ms"]["compute"] > 0
    assert one["parts_ms"]["wait"]["most"] == 0
    assert "1 of 2" in ended.output and "test accuracy" not in ended.output


def test_the_sides_of_a_step():
    """Ours and the loop by hand must end with the same weights, or the benchmark itself fails."""
    sides = [*overhead.SIDES, *overhead.PARTS]
    words = ("--model", "mlp", "--batch", "8", "--steps", "2", "--blocks", "6", "--sides", ",".join(sides))
    ended = run([sys.executable, "-m", "hvd_mnist.bench.overhead", *words], launcher="gloo", np=2)
    ended.assert_ok()
    found = json.loads(re.search(r"^\{$.*^\}$", targets.MARK.sub("", ended.output), re.MULTILINE | re.DOTALL)[0])
    for clock in ("cpu", "wall"):
        assert list(found[clock]) == sides and all(side["ms"] > 0 for side in found[clock].values())
        for side in sides[1:]:
            low, high = found[clock][side]["interval"]
            assert low <= found[clock][side][f"ours / {side}"] <= high and found[clock][side]["n"] == 6
