from hvd_mnist.bench.agreement import summarize


def test_ratios_and_differences_are_of_paired_blocks():
    one = {"with": {"cpu": [0.002, 0.004], "wall": [1, 1]}, "without": {"cpu": [0.001, 0.004], "wall": [2, 2]}}
    found = summarize([one, one])
    assert found["cpu"]["ratio_median"] == 1.5 and found["cpu"]["pairs"] == 4
    assert found["cpu"]["difference_ms_median"] == 0.5 and found["wall"]["difference_ms_median"] == -1000.0
