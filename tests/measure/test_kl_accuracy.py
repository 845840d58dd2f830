"""k3 where it is hard: for small Δ the textbook form has no correct digit in float32."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from numpy.typing import NDArray
from pair_blocks import OPTIONS, make_block

from twinscope_service.measure import cpu_math, formulas
from twinscope_service.measure.cpu_core import core_statistics
from twinscope_service.measure.derive import derive
from twinscope_service.measure.engine import MeasureEngine

SIGMAS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0, 3.0)


def exact_k3(delta: float) -> Decimal:
    """e^Δ − 1 − Δ with 60 digits."""
    with localcontext() as context:
        context.prec = 60
        x = Decimal(delta)
        return x.exp() - 1 - x


def exact_k3s(delta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each of them rounded to float64."""
    return np.array([float(exact_k3(float(x))) for x in delta])


@pytest.fixture
def pairs() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """q, p as float32, 60 for each σ of SIGMAS."""
    rng = np.random.default_rng(0)
    sigma = np.repeat(SIGMAS, 60)
    q = -rng.exponential(0.5, len(sigma)).astype(np.float32)
    p = np.minimum(q + sigma * rng.standard_normal(len(sigma)), 0).astype(np.float32)
    return q, p


def differences(q: NDArray[np.float32], p: NDArray[np.float32]) -> NDArray[np.float64]:
    """Δ, exact: the difference of two float32 in float64."""
    return p.astype(np.float64) - q.astype(np.float64)


def test_the_textbook_form_in_float32_would_fail_here(
    pairs: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    """So that this file cannot pass by measuring the wrong thing: it is off by 10 % and more."""
    d = differences(*pairs)
    small = (np.abs(d) > 1e-6) & (np.abs(d) < 1e-3)
    naive = np.exp(d.astype(np.float32)) - np.float32(1) - d.astype(np.float32)
    error = np.abs(naive[small] / exact_k3s(d[small]) - 1)
    assert np.median(error) > 0.1
    assert (naive[small] < 0).any()  # k3 is never negative; this form is


@pytest.mark.parametrize("scale", [1e-12, 1e-8, 1e-6, 1e-4, 1e-2, 0.3, 0.499, 0.501, 3.0, 19.0])
def test_the_reference_formula_has_every_digit(scale: float) -> None:
    """Against decimal arithmetic with 60 digits, both signs."""
    d = scale * np.linspace(-1, 1, 41)[np.arange(41) != 20]
    np.testing.assert_allclose(formulas.k3(d), exact_k3s(d), rtol=4e-15)


@pytest.mark.parametrize("scale", [1e-12, 1e-8, 1e-6, 1e-4, 1e-2, 0.3, 0.693, 0.7, 3.0, 19.99])
def test_the_compiled_formulas_are_good_to_1e_minus_11(scale: float) -> None:
    """e^{Δ/2}, e^{−Δ/2}, e^Δ − 1 and k3 of one pass, each against numpy or decimals."""
    d = scale * np.linspace(-1, 1, 41)[np.arange(41) != 20]
    warm, cool, rho_m1, k3 = (np.zeros_like(d) for _ in range(4))
    cpu_math.rho_block(d, len(d), warm, cool, rho_m1, k3)
    np.testing.assert_allclose(k3, exact_k3s(d), rtol=1e-11)
    np.testing.assert_allclose(rho_m1, np.expm1(d), rtol=1e-11)
    np.testing.assert_allclose(warm, np.exp(d / 2), rtol=1e-11)
    np.testing.assert_allclose(cool, np.exp(-d / 2), rtol=1e-11)


def test_compiled_exp_and_log_are_good_to_1e_minus_12() -> None:
    """Over the range of log-probs, and of r."""
    x = -np.concatenate([np.linspace(0, 700, 5001), np.geomspace(1e-12, 1, 500)])
    out = np.zeros_like(x)
    cpu_math.exp_block(x, len(x), out)
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-12)
    y = np.geomspace(1e-7, 1e5, 5001)
    out = np.zeros_like(y)
    cpu_math.log_block(y, len(y), out)
    np.testing.assert_allclose(out, np.log(y), atol=1e-12, rtol=0)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_batch_means_are_right_for_every_noise(engine: MeasureEngine, sigma: float) -> None:
    """Mean k3, |Δ| and ρ against decimals, 1e-9 where 1e-6 was promised."""
    rng = np.random.default_rng(1)
    q = -rng.exponential(0.5, 300).astype(np.float32)
    p = np.minimum(q + sigma * rng.standard_normal(300), 0).astype(np.float32)
    d = differences(q, p)
    metrics = derive(engine.measure(make_block([q], [p]), OPTIONS), OPTIONS)
    k3 = float(sum(exact_k3(float(x)) for x in d)) / 300
    assert metrics["k3_mean"] == pytest.approx(k3, rel=1e-9)
    assert metrics["abs_mean"] == pytest.approx(np.abs(d).mean(), rel=1e-12)
    assert metrics["k2_mean"] == pytest.approx((d**2).mean() / 2, rel=1e-12)


def test_every_single_token_is_right(
    engine: MeasureEngine, pairs: tuple[NDArray[np.float32], NDArray[np.float32]]
) -> None:
    """One token per sample, so that a row is a token: k3 to 1e-9, never negative."""
    q, p = pairs
    block = make_block([[x] for x in q], [[x] for x in p])
    rows = engine.measure(block, OPTIONS).rows
    found = {key.tobytes(): row for key, row in zip(rows.keys, rows.sums, strict=True)}
    from twinscope_service.measure.records import COLUMN

    k3 = np.array([found[key.tobytes()][COLUMN["k3"]] for key in block.sample_keys])
    np.testing.assert_allclose(k3, exact_k3s(differences(q, p)), rtol=1e-9)
    assert (k3 >= 0).all()


def test_k3_minus_k1_is_rho_minus_1(engine: MeasureEngine) -> None:
    """The identity that says whether q is the density that was sampled."""
    rng = np.random.default_rng(2)
    q = -rng.exponential(0.5, 500)
    block = make_block([q], [np.minimum(q + rng.normal(0, 0.3, 500), 0)])
    m = derive(engine.measure(block, OPTIONS), OPTIONS)
    assert m["k3_mean"] is not None
    assert m["k1_mean"] is not None
    assert m["rho_mean"] is not None
    assert m["k3_mean"] - m["k1_mean"] == pytest.approx(m["rho_mean"] - 1, abs=1e-12)


def test_the_core_path_gives_the_same_means(
    pairs: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    """With a mask and specials among the tokens."""
    q, p = (np.append(side, [np.nan, -9999.0, 0.3, -np.inf, -1]) for side in pairs)
    mask = np.ones(len(q), np.uint8)
    mask[::7] = 0
    block = make_block([q], [p], mask=mask)
    from twinscope_service.measure.reference import ReferenceEngine

    full = derive(ReferenceEngine().measure(block, OPTIONS), OPTIONS)
    for name, value in core_statistics(block, OPTIONS).items():
        assert value == pytest.approx(full[name], rel=1e-9), name
