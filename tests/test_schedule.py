"""Learning rates, by table and at the borders."""

import math

import numpy as np
import pytest

from hvd_mnist.schedule import FINAL, WARMUP_START, Plan, make_optimizer, scaled_rate


@pytest.mark.parametrize(
    "rule, size, expected", [("linear", 8, 0.8), ("sqrt", 4, 0.2), ("none", 8, 0.1), ("linear", 1, 0.1)]
)
def test_scaled_rate(rule, size, expected):
    assert scaled_rate(0.1, size, rule) == pytest.approx(expected)


def test_cosine_with_warmup():
    plan = Plan("cosine", peak=1.0, warmup=10, total=110)
    assert plan.rate(0) == pytest.approx(WARMUP_START)
    assert plan.rate(5) == pytest.approx((1 + WARMUP_START) / 2)
    assert plan.rate(10) == pytest.approx(1.0)
    assert plan.rate(60) == pytest.approx(FINAL + (1 - FINAL) / 2)
    assert plan.rate(110) == pytest.approx(FINAL)
    rates = [plan.rate(step) for step in range(10, 111)]
    assert rates == sorted(rates, reverse=True)


def test_no_warmup_starts_at_the_peak():
    assert Plan("cosine", 0.5, 0, 100).rate(0) == pytest.approx(0.5)


def test_constant():
    plan = Plan("constant", peak=0.3, warmup=4, total=100)
    assert plan.rate(0) == pytest.approx(0.03)
    assert [plan.rate(s) for s in (4, 50, 99)] == pytest.approx([0.3] * 3)


def test_plateau_climbs_and_stays():
    plan = Plan("plateau", peak=0.5, warmup=4, total=100)
    assert plan.rate(0) == plan.to_keras() == pytest.approx(0.5 * WARMUP_START)
    assert [plan.rate(s) for s in (2, 4, 99)] == pytest.approx([0.5 * 0.55, 0.5, 0.5])
    assert Plan("plateau", 0.5, 0, 9).rate(0) == 0.5


def test_step():
    plan = Plan("step", peak=1.0, warmup=20, total=200)
    assert plan.rate(0) == pytest.approx(WARMUP_START)
    assert [plan.rate(s) for s in (21, 99)] == pytest.approx([1.0, 1.0])
    assert plan.rate(120) == pytest.approx(0.1) and plan.rate(180) == pytest.approx(0.01)
    warm = [plan.rate(s) for s in range(20)]
    assert warm == sorted(warm) and len(set(np.round(warm, 6))) == 10


@pytest.mark.parametrize("warmup, total", [(0, 1), (1, 2), (3, 4), (50, 40), (7, 9)])
def test_short_runs_have_a_rate_at_every_step(warmup, total):
    for kind in ("cosine", "step", "constant", "plateau"):
        rates = [Plan(kind, 0.1, warmup, total).rate(step) for step in range(total)]
        assert all(0 < rate <= 0.1 + 1e-6 and math.isfinite(rate) for rate in rates)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_make_optimizer(name):
    schedule = Plan("cosine", 0.1, 0, 10).to_keras()
    optimizer = make_optimizer(name, schedule)
    assert optimizer._learning_rate is schedule and type(optimizer).__name__.lower() == name
