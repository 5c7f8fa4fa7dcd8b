"""This folder is run by ``tests/parallel/test_checks.py`` on every rank of a real job, by pytest on each."""

import os

import keras
import numpy as np
import pytest

import hvd_mnist.keras as hvd
from hvd_mnist.cluster.identity import identity_from
from hvd_mnist.runtime import devices, world

if identity_from(os.environ).size > 1:
    # Read by init, for the check of start_timeline. Not alone, where elastic checks start Horovod a second time: with a
    # dynamic timeline Horovod crashes in that.
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
hvd.init(process_sets="dynamic")
devices.pin(hvd.local_rank(), hvd.local_size(), world.hostname(), threads=1)


@pytest.fixture(autouse=True)
def fresh_keras():
    keras.backend.clear_session()
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(1)
    yield


@pytest.fixture
def rng():
    """Different numbers on each rank."""
    return np.random.default_rng(hvd.rank())


def pytest_collection_modifyitems(config, items):
    unfit = "several_ranks" if hvd.size() == 1 else "alone"
    fit = [item for item in items if item.get_closest_marker(unfit) is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in fit])
    items[:] = fit


def pytest_configure(config):
    config.addinivalue_line("markers", "several_ranks: needs two ranks or more; left out in a world of one")
    config.addinivalue_line("markers", "alone: needs a world of one; left out among several ranks")


def pytest_sessionfinish(session, exitstatus):
    print(f"rank {hvd.rank()} of {hvd.size()}: {session.testscollected} checks, status {int(exitstatus)}")
