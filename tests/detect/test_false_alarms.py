"""Realised false-alarm rates at the default target, by the compiled kernels.

The full experiment (a million steps per law and more) is `twinscope bench arl`, with its figures in
docs/detectors.md. Here each law gets 200 000 steps: at the promised rate 20 alarms or so, hence a
bound is the promise plus three standard deviations of that count.
"""

from __future__ import annotations

import math

import pytest

from twinscope_service.bench import arl

STEPS = 200_000
TARGET = 10_000.0

# Alarms of all detectors per target run length that DESIGN promises not to exceed.
PROMISES = {"normal": 1.5, "t4": 2.0, "gamma4": 4.0, "ar03": 2.0, "outliers": 2.0, "drift": 2.0}


def most(promised: float) -> float:
    """Promise plus sampling error, in alarms per target run length."""
    expected = promised * STEPS / TARGET
    return (expected + 3.0 * math.sqrt(expected)) * TARGET / STEPS


@pytest.mark.parametrize("law", PROMISES)
def test_false_alarms_of_all_detectors_together_stay_within_the_promise(law: str) -> None:
    """Spike, pair, shift up and down, certified and growth count, whatever their size."""
    found = arl.rates(arl.LAWS.index(law), arl=TARGET, steps=STEPS, seed=11)
    assert found.steps == STEPS
    assert found.total <= most(PROMISES[law])
    if law == "normal":
        assert found.total >= 1 / 1.5 - 3.0 * math.sqrt(0.67 * TARGET / STEPS)
    if law in ("normal", "t4", "gamma4"):  # exchangeable: the theorem
        assert found.certified_alone <= most(1.0)


@pytest.mark.parametrize("at", [60, 220])
def test_a_shift_of_1_75_sigma_is_confirmed_within_1_4_of_lordens_bound(at: int) -> None:
    """Mean delay of 4000 normal runs, at the default target, after 60 healthy steps or more."""
    _, confirmed = arl.delays(1.75, at, arl=TARGET, paths=4000, seed=5)
    assert confirmed <= 1.4 * arl.lorden(1.75, TARGET)
