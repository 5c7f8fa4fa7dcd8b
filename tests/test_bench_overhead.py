from hvd_mnist.bench.overhead import summarize


def test_ratios_are_of_paired_blocks():
    one = {
        "ours": {"cpu": [2.0, 4.0], "wall": [1.0, 1.0]},
        "by hand": {"cpu": [1.0, 4.0], "wall": [2.0, 2.0]},
        "apart": {"cpu": [2.0, 2.0], "wall": [4.0, 4.0]},
    }
    found = summarize([one, one])
    assert found["cpu"]["ours"] == {"ms": 3000.0}
    assert found["cpu"]["by hand"]["ours / by hand"] == 1.5 and found["cpu"]["by hand"]["n"] == 4
    assert found["wall"]["apart"] == {"ms": 4000.0, "ours / apart": 0.25, "quartiles": [0.25, 0.25], "n": 4}


def test_one_side_alone_has_no_ratio():
    found = summarize([{"ours": {"cpu": [2.0], "wall": [1.0]}}])
    assert found == {"cpu": {"ours": {"ms": 2000.0}}, "wall": {"ours": {"ms": 1000.0}}}
