import pytest

from hvd_mnist.bench.overhead import interval_of, summarize


def test_ratios_are_of_paired_blocks():
    one = {
        "ours": {"cpu": [2.0, 4.0], "wall": [1.0, 1.0]},
        "by hand": {"cpu": [1.0, 4.0], "wall": [2.0, 2.0]},
        "apart": {"cpu": [2.0, 2.0], "wall": [4.0, 4.0]},
    }
    other = one | {"by hand": {"cpu": [3.0, 4.0], "wall": [2.0, 2.0]}}
    found = summarize([one, other])
    assert found["cpu"]["ours"] == {"ms": 3000.0}
    assert found["cpu"]["by hand"]["ours / by hand"] == 1.0 and found["cpu"]["by hand"]["n"] == 2  # (2 + 2) / (1 + 3)
    expected = {"ms": 4000.0, "ours / apart": 0.25, "interval": None, "quartiles": [0.25, 0.25], "n": 2}
    assert found["wall"]["apart"] == expected


def test_one_side_alone_has_no_ratio():
    found = summarize([{"ours": {"cpu": [2.0], "wall": [1.0]}}])
    assert found == {"cpu": {"ours": {"ms": 2000.0}}, "wall": {"ours": {"ms": 1000.0}}}


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, None), (5, None), (6, [0, 5]), (8, [0, 7]), (9, [1, 7]), (20, [5, 14]), (100, [39, 60])],
)
def test_the_interval_of_a_median_is_that_of_the_tables(count, expected):
    """Ranks of the order statistics as in the tables of the sign test, two-sided 5 %."""
    assert interval_of([float(value) for value in reversed(range(count))]) == expected
