"""Rules for the whole suite: in CI nothing that needs real ranks, hosts or a browser may be skipped; no test leaks.

The time limit of each test is pytest-timeout's, in pyproject.toml.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MUST_RUN_IN_CI = (HERE / "parallel", HERE / "cluster", HERE / "test_report_browser.py")
JOB_VARIABLES = ("HOROVOD_", "OMPI_", "OPAL_", "PMIX_", "SLURM_")


def must_run(path: Path) -> bool:
    return bool(os.environ.get("CI")) and any(place in (path, *path.parents) for place in MUST_RUN_IN_CI)


def fail_if_skipped(report, path: Path) -> None:
    """Turn a skip into a failure that keeps its reason; an expected failure (xfail) stays what it is."""
    if report.skipped and not hasattr(report, "wasxfail") and must_run(path):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{path.name}: skipped, and CI is set: this must run there. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    fail_if_skipped(report, item.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    fail_if_skipped(report, Path(getattr(collector, "path", HERE)))
    return report


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that started pytest in the background has it ignore Ctrl-C; so would every job that a test sends one.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def job_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(JOB_VARIABLES)}


BEFORE_COLLECTION = job_variables()


def pytest_collection_finish(session):
    ranks_run_these = any("checks" in item.path.parts for item in session.items)
    if job_variables() != BEFORE_COLLECTION and not ranks_run_these:
        # A folder whose conftest joins a job was imported; each later job would inherit this process's place in it.
        raise pytest.UsageError("collecting the tests made this process join a job: it set launcher variables")


@pytest.fixture(autouse=True)
def no_leaked_job_variables():
    """A variable of a launcher that one test leaves behind would send the next one into a job that is not there."""
    before = job_variables()
    yield
    after = job_variables()
    for name in after.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    assert not changed, f"the test left {', '.join(changed)} changed in os.environ (use monkeypatch.setenv)"


@pytest.fixture
def digits():
    """Arrays of a small data set, by the names of `files.ARRAYS`: 20 images to train on, 10 to test."""
    import numpy as np

    draw = np.random.default_rng(0)
    return {
        "train_images": draw.integers(0, 256, (20, 28, 28), dtype=np.uint8),
        "train_labels": np.arange(20, dtype=np.uint8) % 10,
        "test_images": draw.integers(0, 256, (10, 28, 28), dtype=np.uint8),
        "test_labels": np.arange(10, dtype=np.uint8),
    }
