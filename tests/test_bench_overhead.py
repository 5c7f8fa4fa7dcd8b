from hvd_mnist.bench.overhead import summarize


def test_ratios_are_of_paired_blocks():
    one = {"ours": {"cpu": [2.0, 4.0], "wall": [1.0, 1.0]}, "by hand": {"cpu": [1.0, 4.0], "wall": [2.0, 2.0]}}
    found = summarize([one, one])
    assert found["cpu"]["ratio_median"] == 1.5 and found["cpu"]["n"] == 4
    assert found["wall"] == {
        "ours_ms": 1000.0,
        "by_hand_ms": 2000.0,
        "ratio_median": 0.5,
        "ratio_quartiles": [0.5, 0.5],
        "n": 4,
    }
