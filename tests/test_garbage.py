"""Python's search for garbage: off while a job starts, on afterwards, and as it was in the end."""

from __future__ import annotations

import gc
import weakref

import pytest

from hvd_mnist.errors import HvdMnistError
from hvd_mnist.runtime import garbage


class Knot:
    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def searched():
    enabled = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if enabled else gc.disable)()


def test_a_job_searches_from_settle_on_and_leaves_nothing_behind():
    @garbage.searched_less()
    def job(answer):
        """Its own words."""
        assert not gc.isenabled()
        gone = weakref.ref(Knot())
        garbage.settle()
        assert gc.isenabled() and gc.get_freeze_count() > 1000
        garbage.pause()
        assert not gc.isenabled()
        garbage.settle()
        return answer, gone

    gc.enable()
    answer, gone = job("done")
    assert answer == "done" and job.__doc__ == "Its own words."
    assert gc.isenabled() and gc.get_freeze_count() == 0
    gc.collect()
    assert gone() is None  # was frozen, and is found after the job


@pytest.mark.parametrize("enabled", [True, False])
def test_a_job_that_fails_restores_too(enabled):
    (gc.enable if enabled else gc.disable)()
    with pytest.raises(HvdMnistError), garbage.searched_less():
        garbage.settle()
        garbage.pause()
        raise HvdMnistError("no")
    assert gc.isenabled() is enabled and gc.get_freeze_count() == 0
