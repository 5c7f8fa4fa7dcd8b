"""Which rank is called slow: a rule on numbers."""

from hvd_mnist.runtime.slow_ranks import Judge, Slow, in_words


def test_a_rank_is_named_after_windows_in_a_row_and_again():
    judge = Judge(3, factor=1.5, windows=3)
    slow, even = [1.0, 1.0, 1.6], [1.0, 1.0, 1.1]
    assert [judge.look(slow), judge.look(slow), judge.look(even)] == [[], [], []]
    assert [judge.look(slow), judge.look(slow)] == [[], []]
    assert judge.look(slow) == [Slow(2, 3, 1.6)]
    assert [judge.look(slow), judge.look(slow)] == [[], []]
    assert judge.look(slow) == [Slow(2, 6, 1.6)]
    assert judge.look(even) == [Slow(2, 6, 0.0)] and judge.look(even) == []


def test_of_two_ranks_the_other_is_the_measure():
    judge = Judge(2, factor=1.5, windows=1)
    assert judge.look([1.0, 1.4]) == [] and judge.look([3.0, 2.0]) == [Slow(0, 1, 1.5)]


def test_a_window_without_figures_is_none_and_a_world_of_one_has_no_straggler():
    judge = Judge(2, windows=2)
    assert judge.look([1.0, 9.0]) == [] and judge.look([0.0, 9.0]) == [] and judge.look([1.0, 9.0]) != []
    assert Judge(1, windows=1).look([5.0]) == []


def test_words():
    line = in_words(Slow(3, 3, 2.04), "gpu7", 30)
    assert line.startswith("straggler: rank 3 on gpu7 takes 2.0 times as long as the others") and "30 steps now" in line
    assert "keeps up again, after 60 slow steps" in in_words(Slow(3, 6, 0.0), "gpu7", 60)
