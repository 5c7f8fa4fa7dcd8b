"""How far averaged gradients are from the exact mean."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_mnist.bench.wire_precision import errors


def test_errors_by_hand():
    exact = [np.array([[3.0, 0.0]]), np.array([4.0, -1e-9])]
    found = errors([np.array([[3.0, 0.0]], np.float32), np.array([4.5, 0.0], np.float32)], exact)
    assert found["norm"] == pytest.approx(0.5 / 5, rel=1e-6)
    assert found["median"] == pytest.approx(0.125) and found["p99"] == pytest.approx(1.0, abs=0.02)
    assert found["lost"] == pytest.approx(1 / 3) and found["largest"] == 4.0


def test_equal_gradients_have_no_error():
    exact = [np.array([1.0, 0.5])]
    assert errors([np.array([1.0, 0.5], np.float32)], exact) | {"largest": 0} == dict.fromkeys(
        ("norm", "median", "p99", "lost", "largest"), 0.0
    )


def test_rounding_to_half_precision_is_found():
    """fp16 keeps 11 bits: at most 2**-11 off, relatively; what is below half its smallest number is lost."""
    exact = [np.random.default_rng(0).uniform(0.5, 1, 1000), np.array([2.0**-26])]
    found = errors([each.astype(np.float16).astype(np.float32) for each in exact], exact)
    assert 2.0**-14 < found["norm"] < 2.0**-11 and found["lost"] == pytest.approx(1 / 1001)
