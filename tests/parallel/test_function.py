"""``hvd_mnist.run``: a function of this test on two ranks (with ``hvd_mnist.train`` in it: test_examples.py)."""

import pytest

import hvd_mnist
from hvd_mnist.errors import LaunchError, UsageError

pytestmark = pytest.mark.timeout(400)


def test_results_come_back_in_rank_order(capfd):
    base = 10

    def add(more, *, factor):
        import hvd_mnist.keras as hvd

        hvd.init()
        print(f"this is rank {hvd.rank()}")
        total = hvd.allreduce([float(hvd.rank() + more)], op=hvd.Sum).numpy().tolist()
        hvd.shutdown()
        return base * factor, hvd_rank_of(), total

    def hvd_rank_of():
        import os

        return int(os.environ["HOROVOD_RANK"])

    assert hvd_mnist.run(add, [5], {"factor": 2}, np=2) == [(20, 0, [11.0]), (20, 1, [11.0])]
    printed = capfd.readouterr().out
    assert "this is rank 0" in printed and "this is rank 1" in printed


def test_a_rank_that_fails_is_an_error_with_its_last_words(capfd):
    def fail():
        raise ValueError("this one fails on purpose")

    with pytest.raises(LaunchError, match=r"(?s)ended with status \d+:.*this one fails on purpose"):
        hvd_mnist.run(fail, np=2, quiet=True, timeout=120)
    assert "on purpose" not in capfd.readouterr().out


def test_what_cannot_be_sent_is_said_before_the_start(tmp_path):
    lock = __import__("threading").Lock()
    with pytest.raises(UsageError, match="cannot be pickled"):
        hvd_mnist.run(lambda: lock, np=2)
    with pytest.raises(UsageError, match="needs a folder that every host sees"):
        hvd_mnist.run(print, hosts="host1:1,host2:1")
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        hvd_mnist.walk  # noqa: B018
