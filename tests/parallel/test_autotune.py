"""Horovod's search for its cycle time and fusion threshold, to its end, over Gloo and MPI."""

import json

import pytest

from tests.parallel.ranks import train

# Four pairs, five steps each.
SHORT = {
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": 0,
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": 1,
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": 3,
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("launcher", ["gloo", "mpirun"])
def test_a_search_settles_and_is_told(launcher, tmp_path):
    options = ("--data", "sample", "--model", "mlp", "--steps", "30", "--no-tensorboard", "--autotune")
    ended = train(*options, "--run-dir", str(tmp_path), launcher=launcher, np=2, **SHORT)
    ended.assert_ok()
    told = json.loads((tmp_path / "summary.json").read_text())["autotune"]
    assert told["settled"] and told["tried"] == 4
    assert 1 <= told["cycle_time_ms"] <= 100 and 0 <= told["fusion_threshold_bytes"] <= 64 * 2**20
    assert "settled on a cycle of" in ended.output and "HOROVOD_FUSION_THRESHOLD=" in ended.output
    lines = (tmp_path / "autotune.csv").read_text().splitlines()
    assert len(lines) == 1 + 4 + 1
    cycles = {line.split(",")[4] for line in lines[1:]}
    assert len(cycles) == 4, "the cycle time was not tuned: is it set in the environment?"
