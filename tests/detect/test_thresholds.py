"""Limits follow from the average run length, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from twinscope.errors import ConfigError
from twinscope_service.bench import arl
from twinscope_service.detect import kernels as k
from twinscope_service.detect.findings import DetectOptions
from twinscope_service.detect.thresholds import (
    LIKELIHOOD_TABLE,
    likelihood_arl,
    likelihood_limit,
    limits,
    student_quantile,
)


def test_the_shipped_table_is_what_the_simulation_gives() -> None:
    """Its first cells again, from another seed and 1.5 million steps."""
    again = dict(arl.likelihood_table(paths=300, seed=2))
    shipped = dict(LIKELIHOOD_TABLE)
    for run_length in (300.0, 1_000.0, 3_000.0):
        assert again[run_length] == pytest.approx(shipped[run_length], abs=0.06)


def test_a_longer_run_length_never_lowers_a_limit() -> None:
    """Every detector becomes stricter with the target."""
    rows = np.array([limits(target) for target in (100, 1e3, 1e4, 1e5, 1e6, 1e8)])
    rising = [k.LIMIT_UP, k.LIMIT_DOWN, k.LIMIT_CERTIFIED, k.LIMIT_GROWTH]
    falling = [k.LIMIT_SPIKE, k.LIMIT_PAIR]
    assert (np.diff(rows[:, rising], axis=0) >= 0).all()
    assert (np.diff(rows[:, falling], axis=0) < 0).all()


@pytest.mark.parametrize("target", [150.0, 2_500.0, 1e4, 4e7])
def test_run_length_and_limit_are_inverse_to_each_other(target: float) -> None:
    """Inside and beyond the table."""
    assert likelihood_arl(likelihood_limit(target)) == pytest.approx(target, rel=1e-6)


def test_student_quantile_matches_the_printed_table() -> None:
    """8 degrees of freedom, one sided 0.001 (NIST Handbook)."""
    assert student_quantile(0.001, 8) == pytest.approx(4.501, abs=1e-3)


@pytest.mark.parametrize("target", [1.0, 0, -5, 99.9, float("nan"), float("inf"), "10000"])
def test_an_impossible_run_length_is_refused_with_name_value_and_fix(target: object) -> None:
    """The three things an operator needs."""
    with pytest.raises(ConfigError, match=r"detect_target_arl: got .*; give the mean number"):
        DetectOptions(target_arl=target)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["min_ratio", "spike_ratio", "resolve_steps", "silence_steps", "silence_seconds"]
)
def test_nonsense_options_are_refused_by_name(name: str) -> None:
    """Negative windows and ratios below 1."""
    with pytest.raises(ConfigError, match=f"detect_{name}: got -1; give a number of at least"):
        DetectOptions(**{name: -1})
