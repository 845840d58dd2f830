"""The arithmetic of one series: the compiled copy, the robust pieces, the tails."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinscope_service.bench import arl
from twinscope_service.detect import kernels as k
from twinscope_service.detect.thresholds import limits


def run_in_python(y: list[float], s2: list[float], *, seed: int) -> tuple[list[int], list[float]]:
    """Alarm bits of every step, and the scalars at the end, by plain Python on lists."""
    x = [0.0] * k.SLOTS
    x[k.SEED] = float(seed)
    rings = tuple([0.0] * k.RING for _ in range(4))
    ordered, bits = [0.0] * k.WINDOW, []
    for value, variance in zip(y, s2, strict=True):
        k.update(value, variance, x, rings, ordered)
        bits.append(k.alarms(x, limits(200.0)))
    return bits, x


@pytest.mark.parametrize("law", range(len(arl.LAWS)), ids=arl.LAWS)
def test_simulated_code_is_the_code_that_runs_bit_for_bit(law: int) -> None:
    """The numba copy and plain Python agree on every alarm and statistic of a noisy path."""
    y, s2 = arl.noise(law, 700, seed=5)
    y = y + np.where(np.arange(700) > 500, 3.0, 0.0)
    bits, x = run_in_python(y.tolist(), s2.tolist(), seed=7)
    compiled = arl.watcher()(y, s2, 7, np.array(limits(200.0)), False)
    assert compiled.tolist() == bits
    assert any(bits)
    slots = np.arange(k.SLOTS)
    assert arl.tracer()(y, s2, 7, slots)[-1].tolist() == x


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=60))
def test_median_and_mad_of_the_sorted_window_are_exact(values: list[int]) -> None:
    """Against numpy, with ties."""
    ordered = sorted(map(float, values))
    x = [0.0] * k.SLOTS
    x[k.SORTED_N] = float(len(ordered))
    middle = k._middle(x, ordered)
    assert middle == np.median(ordered)
    assert k._mad(middle, x, ordered) == np.median(np.abs(np.array(ordered) - middle))


def test_sorted_window_holds_the_newest_values_whatever_slides_through() -> None:
    """After any number of steps the window is the sorted tail of the raw values."""
    y, s2 = arl.noise(arl.T4, 450, seed=2)
    x = [0.0] * k.SLOTS
    rings = tuple([0.0] * k.RING for _ in range(4))
    ordered = [0.0] * k.WINDOW
    for i, value in enumerate(y.tolist()):
        k.update(value, float(s2[i]), x, rings, ordered)
        n = int(x[k.SORTED_N])
        assert ordered[:n] == sorted(y[i + 1 - n : i + 1].tolist())
    assert n == k.WINDOW


# Tables: Fisher & Yates; NIST Handbook 1.3.6.7.2.
@pytest.mark.parametrize(
    ("t", "nu", "p"),
    [(6.3138, 1, 0.05), (2.9200, 2, 0.05), (10.2145, 3, 0.001), (7.1732, 4, 0.001),
     (5.8934, 5, 0.001), (4.5008, 8, 0.001), (3.3852, 30, 0.001)],
)  # fmt: skip
def test_student_tail_matches_the_printed_table(t: float, nu: int, p: float) -> None:
    """Odd and even degrees of freedom."""
    assert k.student_tail(t, nu) == pytest.approx(p, rel=1e-4)


def test_scores_are_standard_normal_while_nothing_changes() -> None:
    """Mean 0, variance 1 up to the clip: Wallace's transformation, the shrunk correlation."""
    y, _ = arl.noise(arl.NORMAL, 6000, seed=3)
    x = [0.0] * k.SLOTS
    rings = tuple([0.0] * k.RING for _ in range(4))
    ordered, scores = [0.0] * k.WINDOW, []
    for value in y.tolist():
        k.update(value, 0.0, x, rings, ordered)
        scores.append(rings[3][int(x[k.COUNT] - 1) % k.RING])
    inside = np.array(scores[200:])
    clipped = np.clip(np.random.default_rng(0).standard_normal(400_000), -k.CLIP, k.CLIP)
    assert abs(inside.mean()) < 0.05
    assert inside.std() == pytest.approx(clipped.std(), rel=0.08)


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.6])
def test_likelihood_ratio_divides_by_the_standard_deviation_of_an_autocorrelated_sum(
    phi: float,
) -> None:
    """Against the covariance matrix of AR(1), on scores of which no single one decides."""
    u = np.array([0.4, 1.2, 0.9, 1.4, 1.1, 0.8])  # oldest first
    x = [0.0] * k.SLOTS
    x[k.COUNT], x[k.PENDING], x[k.REF_N], x[k.PHI] = 100.0, 6.0, 80.0, phi
    scores = [0.0] * k.RING
    scores[94:100] = u.tolist()
    k._likelihood(x, scores)
    shared = (1.0 + phi) / (1.0 - phi) / 80.0
    expected = {}
    for n in range(2, 7):
        lag = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        variance = (phi**lag).sum() if phi else float(n)
        total = u[-n:].sum() - n * n * k.DRIFT_ALLOWANCE
        expected[n] = total / math.sqrt(variance + n * n * shared)
    best = max(expected, key=expected.__getitem__)
    assert (x[k.GLR_UP], x[k.GLR_UP_N]) == (pytest.approx(expected[best]), best)
    assert x[k.GLR_DOWN] == 0.0


def test_skewness_of_the_reference_is_taken_out_of_a_score() -> None:
    """Cornish and Fisher's first term, half believed at fifty values; none without skewness."""
    values = np.tile([-1.0, -1.0, 0.0, 0.0, 2.0], 10)
    x = [0.0] * k.SLOTS
    x[k.REF_N], x[k.REF_SUM] = 50.0, 0.0
    x[k.REF_SQ], x[k.REF_CU] = float((values**2).sum()), float((values**3).sum())
    spread = float(values.var())
    skew = 0.5 * float((values**3).mean()) / spread**1.5
    assert k._straighten(2.0, spread, x) == pytest.approx(2.0 - skew / 6.0 * 3.0)
    assert k._straighten(-2.0, spread, x) == pytest.approx(-2.0 - skew / 6.0 * 3.0)
    assert k._straighten(9.0, spread, x) == k._straighten(k.BENT, spread, x)
    x[k.REF_CU] = 0.0
    assert k._straighten(2.0, spread, x) == 2.0


def test_ranks_of_the_certified_detector_make_a_martingale() -> None:
    """E[R] never exceeds the ticks, on a skewed law: the theorem, by simulation."""
    slots = np.array([k.SR])
    ends = []
    for seed in range(2000):
        y, s2 = arl.noise(arl.GAMMA4, k.BURN_IN + 12, seed=seed)
        ends.append(arl.tracer()(y, s2, seed + 1, slots)[-1, 0])
    # Only history A bets from the start (B is empty for 8 values): mean of both is below 12.
    assert 0.5 * 12 * 0.7 < float(np.mean(ends)) < 12.0


def test_random_ties_do_not_depend_on_the_platform() -> None:
    """The Lehmer stream from seed 1: the published check value after 10 000 draws."""
    x = [0.0] * k.SLOTS
    x[k.SEED] = 1.0
    for _ in range(10_000):
        k._bet(0, 0, 0, k.BETS, 1.0, x)
    assert x[k.SEED] == 399268537.0  # minstd_rand, C++ standard


def test_a_constant_series_has_no_noise_and_a_jump_of_it_is_seen() -> None:
    """MAD and variance 0: the floor of the scale keeps the arithmetic finite."""
    bits, x = run_in_python([1.5] * 100 + [1.6] * 6, [0.0] * 106, seed=1)
    assert not any(bits[:100])
    assert any(bit & k.UP for bit in bits[100:])
    assert all(map(math.isfinite, x))
