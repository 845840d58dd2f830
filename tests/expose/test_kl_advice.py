"""Advice on reward against KL: each kind from curves made for it, none from noise."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from twinscope_service.expose.kl_advice import LEAST, TEXTS, advise

F64 = NDArray[np.float64]
STEPS = np.arange(60.0)


def _noise(seed: int, size: float) -> F64:
    return np.random.default_rng(seed).normal(size=60) * size


def _curves(kind: str, seed: int) -> tuple[F64, F64]:
    """Reward and KL of 60 steps, with noise."""
    up = STEPS / 60
    reward = {
        "fine": up, "beta_small": up, "beta_large": 0 * up, "drift": 0 * up,
        "ratio_rising": np.sqrt(up),
    }[kind]  # fmt: skip
    kl = {
        "fine": 0 * up, "beta_small": np.log1p(3 * up), "beta_large": 0 * up,
        "drift": 2 * up, "ratio_rising": np.log(0.05 + up**2) - np.log(0.05),
    }[kind]  # fmt: skip
    return 0.2 + 0.5 * reward + _noise(seed, 0.01), 0.01 * np.exp(kl + _noise(seed + 99, 0.02))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", [kind for kind in TEXTS if kind != "too_early"])
def test_each_kind_is_recognised(kind: str, seed: int) -> None:
    """On curves with one per cent of noise, whatever the seed."""
    reward, kl = _curves(kind, seed)

    assert advise(reward.tolist(), kl.tolist()).kind == kind


def test_noise_alone_is_not_a_trend() -> None:
    """Two hundred pairs of flat curves: at most one in twenty is taken for a change."""
    kinds = [
        advise((0.5 + _noise(s, 0.05)).tolist(), np.exp(_noise(s + 999, 0.2)).tolist()).kind
        for s in range(200)
    ]

    assert kinds.count("beta_large") >= 190


def test_the_advice_carries_its_numbers() -> None:
    """Change of the reward and factor of the KL between the first and the last third, exactly."""
    advice = advise((STEPS / 59).tolist(), np.full(60, 0.02).tolist())

    assert advice.reward_change == pytest.approx(40 / 59)
    assert advice.kl_factor == pytest.approx(1.0)
    assert "60 steps" in advice.text


def test_too_few_steps_give_no_advice() -> None:
    """Steps where one of the two is unknown do not count."""
    reward: list[float | None] = [0.5] * 40
    kl: list[float | None] = [0.01] * (LEAST - 1) + [None] * (41 - LEAST)

    advice = advise(reward, kl)

    assert (advice.kind, advice.steps) == ("too_early", LEAST - 1)
    assert str(LEAST) in advice.text
