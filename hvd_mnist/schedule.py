"""Learning rates as arithmetic: how the rate follows the number of ranks, and how it moves during a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

WARMUP_START = 0.1  # the first step's rate, as a part of the peak
FINAL = 0.01  # the last step's rate under "cosine", as a part of the peak
STEP_AT, STEP_FACTOR = (0.5, 0.75), 0.1  # "step": where in the run the rate falls, and by how much
PLATEAU_FACTOR = 0.3  # "plateau": by how much the rate falls where the test loss no longer does
WARMUP_STAIRS = 10  # "step" climbs in stairs, because Keras' piecewise schedule has no slope


def scaled_rate(base: float, size: int, rule: str) -> float:
    """The peak rate of a job of ``size`` ranks from the rate that suits one.

    linear: Goyal et al. 2017 (arXiv:1706.02677), for SGD. sqrt: keeps the variance of the update, usual for
    Adam (Krizhevsky 2014, arXiv:1404.5997, section 5). none: for a global batch that does not grow.
    """
    return base * {"linear": size, "sqrt": math.sqrt(size), "none": 1}[rule]


def make_optimizer(name: str, schedule):
    """A new Keras optimizer by the name of the ``optimizer`` knob."""
    import keras

    if name == "sgd":
        return keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
    # Shorter memories than Adam's own (0.9, 0.999) suit a run of a few hundred steps (docs/recipe.md).
    return keras.optimizers.Adam(schedule, beta_1=0.8, beta_2=0.95)


@dataclass(frozen=True)
class Plan:
    """A run's rates: ``peak`` after ``warmup`` steps, then ``kind`` until ``total`` steps."""

    kind: str
    peak: float
    warmup: int
    total: int

    def rate(self, step: int) -> float:
        """The rate that step ``step`` (from 0) uses; what the Keras object of ``to_keras`` computes.

        Under "plateau" the rate as long as the test loss falls: ``training_callbacks.Plateau`` has the real one.
        """
        if self.kind == "plateau":
            climbed = min(1.0, step / self.warmup) if self.warmup else 1.0
            return self.peak * (WARMUP_START + (1 - WARMUP_START) * climbed)
        return float(self.to_keras()(step))

    def to_keras(self):
        """The same as one of Keras' own schedules, so that a saved model needs no code of ours.

        Returns:
            keras.optimizers.schedules.LearningRateSchedule; under "plateau" the first step's rate, a number, which
            becomes a variable that ``training_callbacks.Plateau`` sets.
        """
        from keras.optimizers.schedules import CosineDecay, PiecewiseConstantDecay

        if self.kind == "plateau":
            return self.rate(0)
        if self.kind == "step":
            return PiecewiseConstantDecay(*self._stairs())
        return CosineDecay(
            initial_learning_rate=self.peak * (WARMUP_START if self.warmup else 1.0),
            decay_steps=max(1, self.total - self.warmup),
            alpha=FINAL if self.kind == "cosine" else 1.0,
            warmup_target=self.peak if self.warmup else None,
            warmup_steps=self.warmup,
        )

    def _stairs(self) -> tuple[list[int], list[float]]:
        stairs = min(WARMUP_STAIRS, self.warmup)
        ends, rates = [], []
        for stair in range(stairs):
            ends.append(self.warmup * (stair + 1) // stairs - 1)
            rates.append(self.peak * (WARMUP_START + (1 - WARMUP_START) * stair / stairs))
        rate = self.peak
        for part in STEP_AT:
            end = max(int(part * self.total), (ends[-1] + 1) if ends else 0)
            ends.append(end)
            rates.append(rate)
            rate *= STEP_FACTOR
        return ends, [*rates, rate]
