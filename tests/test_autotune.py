"""What Horovod is asked for, and what its log says."""

from __future__ import annotations

import pytest

from hvd_mnist.config import TrainConfig
from hvd_mnist.errors import UsageError
from hvd_mnist.runtime import autotune

HEAD = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,"
    "tensor_fusion_threshold,score\n"
)
FEW = {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "2"}  # three pairs


def log(*pairs: tuple[float, float, float]) -> str:
    """As Horovod 0.28.1 writes it: (cycle in ms, threshold in MiB, score)."""
    return HEAD + "".join(f"0,0,0, 1,{cycle:g},{threshold:g},{score:g}\n" for cycle, threshold, score in pairs)


def test_only_rank_0_has_a_log_and_what_is_set_stays(tmp_path):
    environ = {"HOROVOD_CACHE_CAPACITY": "7"}
    autotune.request(1, environ)
    assert environ == {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
    }
    environ["HOROVOD_AUTOTUNE_LOG"] = str(tmp_path / "mine.csv")
    autotune.request(0, environ)
    assert environ["HOROVOD_AUTOTUNE_LOG"] == str(tmp_path / "mine.csv")


def test_nothing_left_to_tune():
    with pytest.raises(UsageError, match="nothing is left to tune"):
        autotune.request(0, dict.fromkeys(autotune.TUNED, "5"))


@pytest.mark.parametrize("value, on", [("1", True), ("0", False), ("", False), ("yes", False), (None, False)])
def test_is_on_as_horovod_reads_it(value, on):
    assert autotune.is_on({} if value is None else {"HOROVOD_AUTOTUNE": value}) is on


def test_steps():
    assert (autotune.samples({}), autotune.steps({})) == (21, 1200)
    fast = FEW | {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "2"}
    assert (autotune.samples(fast), autotune.steps(fast)) == (3, 30)


def test_a_search_that_is_under_way():
    assert autotune.read("", FEW) is None and autotune.read(HEAD, FEW) is None
    found = autotune.read(log((5, 4, 11.5), (50, 32, 4)) + "0,0,0, 1,25,1", FEW)  # the last line is being written
    assert found == autotune.Tuned(False, 2, 5.0, 4 * 2**20, 11.5e6)
    said = autotune.words(found, 100, FEW)
    assert "not settled, 2 of 3 pairs" in said and "this run made 100" in said
    assert said.endswith("HOROVOD_CYCLE_TIME=5 HOROVOD_FUSION_THRESHOLD=4194304")


def test_a_search_that_is_over():
    found = autotune.read(log((5, 4, 11.5), (50, 32, 4), (25, 16, 12), (25, 16, 12)), FEW)
    assert found == autotune.Tuned(True, 3, 25.0, 16 * 2**20, 12e6)
    said = autotune.words(found, 300, FEW | {"HOROVOD_CYCLE_TIME": "25"})
    assert "settled on a cycle of 25 ms and a fusion threshold of 16 MiB" in said
    assert said.endswith("from the start: HOROVOD_FUSION_THRESHOLD=16777216")


def test_no_pair_at_all():
    assert "no pair was tried; it takes about 1200 steps, this run made 3" in autotune.words(None, 3, {})


def test_the_log_is_kept_and_ours_goes_away(tmp_path):
    ours, theirs = tmp_path / "hvd-mnist-autotune-x.csv", tmp_path / "theirs.csv"
    for file in (ours, theirs):
        file.write_text(log((5, 4, 11.5)))
        found = autotune.collect(tmp_path / "autotune.csv", FEW | {"HOROVOD_AUTOTUNE_LOG": str(file)})
        assert found.tried == 1 and (tmp_path / "autotune.csv").read_text() == log((5, 4, 11.5))
    assert theirs.exists() and not ours.exists()
    assert autotune.collect(tmp_path / "autotune.csv", {"HOROVOD_AUTOTUNE_LOG": str(tmp_path / "none")}) is None


def test_not_with_elastic():
    with pytest.raises(UsageError, match="--autotune with --elastic: Horovod"):
        TrainConfig(autotune=True, elastic=True)
