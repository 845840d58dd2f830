"""The golden model against float64 and against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinscope_fpga import golden
from twinscope_fpga.error_analysis import (
    band_errors,
    engine_k3,
    exact_k3,
    log_uniform,
    q8_8_k3,
    sum_error,
    value_of,
)
from twinscope_fpga.tables import coefficient_tables

TABLE_CRC = 0x2E99FF81  # of the coefficients as first computed with 60 decimal digits
MODES = (golden.ESTIMATORS, golden.ROW_KL)


def bits(*values: float) -> np.ndarray:
    """float32 bit patterns."""
    return np.array(values, dtype=np.float32).view(np.uint32)


def test_tables_are_the_ones_that_were_measured() -> None:
    """The coefficients never change without this number, the RTL's TABLE_CRC and the docs."""
    assert coefficient_tables().crc == TABLE_CRC


def test_table_lines_stay_close_to_their_functions() -> None:
    """c0 + c1·t of each quarter against math.exp and expm1 in float64."""
    at = np.arange(512 * 8)
    segment, position = at // 8, at % 8 * (1 << 14)
    x = (segment + position / (1 << 17)) / 512
    quarters = {
        0: np.where(x > 0.05, (np.expm1(x) - x) / np.maximum(x, 1e-9) ** 2, np.nan),
        1: np.where(x > 0.05, (np.expm1(-x) + x) / np.maximum(x, 1e-9) ** 2, np.nan),
        2: np.exp(x / 2),
        3: np.exp(-x / 2),
    }
    for quarter, function in quarters.items():
        unit = 2.0**-28 if quarter < 2 else 2.0**-27
        line = golden.interpolate(quarter * 512 + segment, position) * unit
        assert np.nanmax(np.abs(line / function - 1)) < 1e-7


def test_k3_of_one_nat_is_what_pencil_and_paper_say() -> None:
    """Δ = -1: e^-1 - 1 + 1 = 0.36787944; Δ = +1: e - 2 = 0.71828183."""
    results = golden.compute(bits(-1.0, -2.0), bits(-2.0, -1.0))
    assert value_of(results) == pytest.approx([math.exp(-1), math.e - 2], rel=5e-7)
    assert (results.fixed == 1 << 40).all()


def test_a_zero_difference_gives_exact_zeros() -> None:
    """Δ = 0: every result 0 and the token flagged, also for -0 against +0."""
    results = golden.compute(bits(-0.25, -0.0, 0.0), bits(-0.25, 0.0, -0.0))
    assert results.delta_zero.all()
    assert not (results.value_high | results.value_low | results.fixed).any()
    assert results.zero_rollout.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("low", "high", "bar"),
    [(1e-5, 1e-4, 4e-7), (1e-4, 1.0, 1.2e-7), (1.0, 20.0, 5e-7)],
)
def test_token_k3_keeps_its_error_bar(low: float, high: float, bar: float) -> None:
    """Largest relative error against float64 over 400 000 log-uniform differences of both signs."""
    (band,) = band_errors(engine_k3, bands=((low, high),))
    assert band.largest <= bar


def test_k3_has_no_bias_to_speak_of() -> None:
    """Mean error 1e-7, bias 1e-8 over |Δ| log-uniform in 1e-5 to 20."""
    (band,) = band_errors(engine_k3, bands=((1e-5, 20.0),))
    assert band.mean <= 1e-7
    assert abs(band.bias) <= 1e-8


@pytest.mark.parametrize("sigma", [1e-5, 1e-4, 1e-3, 5e-3, 5e-2, 0.5])
def test_sequence_sums_keep_their_error_bar(sigma: float) -> None:
    """Relative error of Σ k3 over 2000 tokens at most 5e-7."""
    assert sum_error(engine_k3, sigma) <= 5e-7


def test_q8_8_as_published_sees_nothing_of_a_healthy_pair() -> None:
    """For |Δ| below 1e-3 the published format returns zero: relative error 1."""
    difference = log_uniform(20_000, 1e-5, 1e-3)
    assert not q8_8_k3(difference).any()


def test_difference_is_ieee_subtraction_with_denormals_as_zero() -> None:
    """Random log-probs of all sizes: the same bits as numpy's float32 p - q."""
    rng = np.random.default_rng(3)
    q, p = (-np.exp(rng.uniform(-80, 6.9, 100_000)).astype(np.float32) for _ in range(2))
    results = golden.compute(q.view(np.uint32), p.view(np.uint32))
    exact = p.astype(np.float64) - q.astype(np.float64)
    normal = np.abs(exact) >= 2.0**-126
    assert (results.difference.view(np.float32)[normal] == exact.astype(np.float32)[normal]).all()
    assert results.delta_zero[~normal].all()


def test_sums_of_differences_are_exact_above_two_to_minus_17() -> None:
    """Σ |Δ| in units of 2^-40 equals integer arithmetic on the float32 differences."""
    difference = log_uniform(10_000, 2.0**-17, 20.0)
    q, p = np.minimum(-difference, 0), np.minimum(difference, 0)
    results = golden.compute(q.view(np.uint32), p.view(np.uint32))
    exact = [round(math.ldexp(abs(float(d)), 40)) for d in difference]
    assert results.fixed.tolist() == exact


def test_every_token_has_exactly_one_fate() -> None:
    """Masked, nonfinite, sentinel, positive or counted, in this order of precedence."""
    words = [0x7FC00000, 0xFF800000, *bits(-1000.0, -999.9999, 1e-30, -1.0, 0.0, -9999.0).tolist()]
    q, p = np.repeat(words, len(words)), np.tile(words, len(words))
    masked = np.arange(len(q)) % 5 == 0
    results = golden.compute(q.astype(np.uint32), p.astype(np.uint32), masked)
    fates = np.stack(
        [results.masked, results.nonfinite, results.sentinel, results.positive, results.counted]
    )
    assert (fates.sum(axis=0) == 1).all()
    one = golden.compute(bits(-1000.0, 1.0, -1000.0), bits(float("nan"), -9999.0, 1.0))
    assert one.nonfinite.tolist() == [True, False, False]
    assert one.sentinel.tolist() == [False, True, True]


def test_clamp_flags_and_limits() -> None:
    """Beyond the clamp Δ counts as the clamp, and the largest |Δ| keeps the raw value."""
    results = golden.compute(bits(-50.0, -3.0), bits(-1.0, -2.0), clamp=2.0)
    assert results.clamped.tolist() == [True, False]
    assert results.fixed.tolist() == [2 << 40, 1 << 40]
    assert golden.sum_tokens(results)[2] == int(bits(49.0)[0])


@given(st.floats(2.0**-16, 19.875, width=32), st.booleans())
@settings(max_examples=200, deadline=None)
def test_k3_grows_with_the_difference(size: float, negative: bool) -> None:
    """A difference 1e-5 larger never has a smaller k3 (errors are far below that step)."""
    larger = np.float32(size) * np.float32(1 + 1e-5)
    pair = np.array([size, larger], dtype=np.float32) * np.float32(-1 if negative else 1)
    first, second = engine_k3(pair)
    assert 0 < first <= second
    assert second == pytest.approx(float(exact_k3(pair[1:].astype(np.float64))[0]), rel=4e-6)


@pytest.mark.parametrize("mode", MODES)
def test_sums_do_not_depend_on_order_or_pieces(mode: int) -> None:
    """Any permutation and any cut give the same integers."""
    rng = np.random.default_rng(4)
    q, p = (rng.integers(0, 1 << 32, 4000, dtype=np.uint32) | np.uint32(1 << 31) for _ in "qp")
    whole = golden.sum_tokens(golden.compute(q, p, mode=mode), mode=mode)
    order = rng.permutation(len(q))
    parts = [
        golden.sum_tokens(golden.compute(q[o], p[o], mode=mode), mode=mode)
        for o in np.array_split(order, 7)
    ]
    assert (sum(part[0] for part in parts) == whole[0]).all()
    assert (sum(part[1] for part in parts) == whole[1]).all()
    assert max(part[2] for part in parts) == whole[2]
