"""The KL controller: hand-worked updates, bounds, and a simulated trainer that settles."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import twinscope
from twinscope import AdaptiveKLController, ConfigError


def test_an_update_by_hand() -> None:
    """KL 20 % and more above target, a batch of a tenth of the horizon: β grows by 2 %."""
    controller = AdaptiveKLController(0.1, target=0.05, horizon=1000)

    assert controller.update(0.06, samples=100) == pytest.approx(0.1 * 1.02)
    assert controller.update(5.0, samples=100) == pytest.approx(0.1 * 1.02**2)
    assert controller.update(0.045, samples=100) == pytest.approx(0.1 * 1.02**2 * 0.99)
    assert controller.update(0.05, samples=100) == pytest.approx(0.1 * 1.02**2 * 0.99)


@pytest.mark.parametrize("kl", [None, math.nan, math.inf])
def test_an_unknown_kl_changes_nothing(kl: float | None) -> None:
    """Steering by nothing is worse than holding still."""
    controller = AdaptiveKLController(0.1, target=0.05)

    assert controller.update(kl, samples=512) == 0.1


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 10**6)), max_size=50))
def test_beta_never_leaves_its_bounds(batches: list[tuple[float, int]]) -> None:
    """Whatever is measured, however large the batches."""
    controller = AdaptiveKLController(0.1, target=0.05, bounds=(0.01, 1.0))
    for kl, samples in batches:
        assert 0.01 <= controller.update(kl, samples=samples) <= 1.0


@given(st.floats(1e-4, 1e4), st.floats(1e-4, 1e4))
def test_a_larger_kl_never_gives_a_smaller_beta(one: float, other: float) -> None:
    """Monotone in the KL."""
    low, high = sorted((one, other))
    betas = [
        AdaptiveKLController(0.1, target=0.5).update(kl, samples=256) for kl in (low, high)
    ]  # fmt: skip

    assert betas[0] <= betas[1]


@pytest.mark.parametrize("start", [0.001, 0.1, 5.0])
def test_a_simulated_trainer_settles_at_the_target(start: float) -> None:
    """A policy whose KL relaxes towards gain / β ends at the target, from either side."""
    controller = AdaptiveKLController(start, target=0.05, horizon=10_000)
    kl = 0.0
    history = []
    for _ in range(1500):
        kl += 0.1 * (0.01 / controller.beta - kl)
        controller.update(kl, samples=512)
        history.append(kl)

    assert history[-1] == pytest.approx(0.05, rel=0.02)
    assert controller.beta == pytest.approx(0.01 / 0.05, rel=0.02)
    assert max(abs(x / 0.05 - 1) for x in history[-200:]) < 0.05


def test_a_checkpoint_goes_on_where_it_was() -> None:
    """β is all there is to keep; new bounds hold for an old β."""
    first = AdaptiveKLController(0.1, target=0.05)
    first.update(1.0, samples=4096)
    second = AdaptiveKLController(1.0, target=0.05)
    second.load_state_dict(first.state_dict())
    narrow = AdaptiveKLController(0.01, target=0.05, bounds=(0.001, 0.05))
    narrow.load_state_dict(first.state_dict())

    assert second.beta == first.beta
    assert narrow.beta == 0.05


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"target": 0.0}, "target"),
        ({"horizon": 0}, "horizon"),
        ({"bounds": (0.0, 1.0)}, "bounds"),
        ({"bounds": (0.5, 1.0)}, "beta"),
        ({"limit": 1.0}, "limit"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, object], named: str) -> None:
    """Field, value and what to use."""
    settings: dict[str, object] = {"target": 0.05, **wrong}

    with pytest.raises(ConfigError, match=f"{named}: got"):
        AdaptiveKLController(0.1, **settings)  # type: ignore[arg-type]


def test_it_is_part_of_the_public_surface() -> None:
    """Loaded on first use."""
    assert "AdaptiveKLController" in twinscope.__all__
