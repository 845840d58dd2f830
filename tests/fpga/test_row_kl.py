"""Full-distribution KL of rows: the article's own use, with its two pitfalls solved."""

from __future__ import annotations

import numpy as np
import pytest

from twinscope.errors import ConfigError
from twinscope_fpga import golden
from twinscope_fpga.device import Device
from twinscope_fpga.emulator import EmulatedDevice
from twinscope_fpga.error_analysis import q8_8_row_kl, value_of
from twinscope_fpga.row_kl import EXPONENTIAL, UNIT, measure_rows


def normalised_rows(rows: int, entries: int, spread: float, noise: float, seed: int):  # type: ignore[no-untyped-def]
    """Two float32 log-softmax rows that differ by Gaussian noise of the logits."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (rows, entries))
    return [log_softmax(logits), log_softmax(logits + rng.normal(0, noise, logits.shape))]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float32 log-probs of every row."""
    top = logits.max(axis=1, keepdims=True)
    mass = np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return (logits - top - mass).astype(np.float32)


def exact_kl(rollout: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Σ e^q (q - p) in float64."""
    q, p = rollout.astype(np.float64), train.astype(np.float64)
    return (np.exp(q) * (q - p)).sum(axis=1)


def exact_kl_of_scores(rollout: np.ndarray, train: np.ndarray) -> np.ndarray:
    """KL of the normalised rows as ln E[e^δ] - E[δ], δ centred, extended precision: no term of it
    cancels, however small the KL."""
    q, p = rollout.astype(np.longdouble), train.astype(np.longdouble)
    weight = np.exp(q) / np.exp(q).sum(axis=1, keepdims=True)
    centred = (p - q) - (weight * (p - q)).sum(axis=1, keepdims=True)
    mean = (weight * centred).sum(axis=1)
    return (np.log1p((weight * np.expm1(centred)).sum(axis=1)) - mean).astype(np.float64)


def test_e_to_the_q_is_as_close_as_the_bounds_take_it_to_be() -> None:
    """Half a million q from 0 to -41 nats: EXPONENTIAL relative, UNIT absolute."""
    q = -np.random.default_rng(3).uniform(0, 41, 500_000).astype(np.float32)
    exact = np.exp(q.astype(np.float64))
    found = value_of(golden.compute(q.view(np.uint32), q.view(np.uint32), mode=golden.ROW_KL))
    assert (np.abs(found - exact) <= EXPONENTIAL * exact + UNIT).all()


SHAPES = ("noise", "one entry", "alternating")
OFFSETS = ((0.0, 0.0), (2.5, 0.75), (12.0, 0.0))


def adversarial_rows(shape: str, offset: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """float32 [R,64]: flat to one-hot rows, sides that differ by 1e-6 to 3 nats, for the exact KL
    from 1e-15 to 1; `offset`: what is taken off both sides."""
    rng = np.random.default_rng(SHAPES.index(shape))
    entries = np.arange(64)
    pairs = []
    for spread in (0.0, 0.5, 3.0, 8.0, 20.0):
        logits = rng.normal(0, spread, (12, 64))
        for size in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 3.0):
            change = {
                "noise": rng.normal(0, size, logits.shape),
                "one entry": np.where(entries == 63, 3 * size, 0.0),
                "alternating": np.where(entries % 2, size, -size),
            }[shape]
            pairs.append((log_softmax(logits), log_softmax(logits + change)))
    rollout, train = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return (
        np.minimum(rollout - np.float32(offset[0]), np.float32(0)),
        np.minimum(train - np.float32(offset[1]), np.float32(0)),
    )


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_stated_error_is_never_exceeded(shape: str, offset: tuple[float, float]) -> None:
    """Both results of every row lie within the bound that comes with them."""
    rollout, train = adversarial_rows(shape, offset)
    found = measure_rows(Device(EmulatedDevice()), rollout, train)
    assert (np.abs(found.raw - exact_kl(rollout, train)) <= found.raw_error).all()
    error = np.abs(found.compensated - exact_kl_of_scores(rollout, train))
    assert (error <= found.compensated_error).all()


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_trusted_row_is_within_a_thousandth(shape: str, offset: tuple[float, float]) -> None:
    """`trusted` promises it, and promises it for every row whose KL is above 1e-10."""
    rollout, train = adversarial_rows(shape, offset)
    exact = exact_kl_of_scores(rollout, train)
    found = measure_rows(Device(EmulatedDevice()), rollout, train)
    trusted = found.trusted()
    assert found.compensated[trusted] == pytest.approx(exact[trusted], rel=1e-3)
    assert trusted[exact >= 1e-10].all()
    assert not trusted[exact < 1e-12].any()
    assert 0.1 < found.refined.mean() < 0.9


def test_rows_that_agree_to_the_last_bit_have_no_divergence() -> None:
    """Also after an offset, where the two masses differ in nothing but their size."""
    rollout, _ = normalised_rows(4, 50, 3.0, 0.1, seed=5)
    found = measure_rows(Device(EmulatedDevice()), rollout, rollout)
    shifted = measure_rows(Device(EmulatedDevice()), rollout, rollout - np.float32(2))
    assert found.compensated.tolist() == [0.0] * 4
    assert (shifted.compensated <= shifted.compensated_error).all()
    assert not found.trusted().any()


@pytest.mark.parametrize("shape", SHAPES)
def test_normalised_rows_hold_down_to_a_kl_of_3e_8(shape: str) -> None:
    """No compensation, no masses: only rows below that lose the third digit."""
    rollout, train = adversarial_rows(shape, (0.0, 0.0))
    exact = exact_kl(rollout, train)
    found = measure_rows(Device(EmulatedDevice()), rollout, train)
    held = exact >= 3e-8
    assert held.sum() > 100
    assert found.raw[held] == pytest.approx(exact[held], rel=1e-3)


@pytest.mark.parametrize("spread", [1.0, 4.0])
@pytest.mark.parametrize("noise", [0.01, 0.3, 2.0])
def test_rows_with_tiny_probabilities_are_within_a_thousandth(spread: float, noise: float) -> None:
    """Spread 4 over 1000 entries has probabilities down to 1e-12 and below."""
    rollout, train = normalised_rows(20, 1000, spread, noise, seed=7)
    found = measure_rows(Device(EmulatedDevice()), rollout, train)
    assert found.raw == pytest.approx(exact_kl(rollout, train), rel=1e-3)
    assert found.reverse_raw == pytest.approx(exact_kl(train, rollout), rel=1e-3)
    assert found.mass_rollout == pytest.approx(np.ones(20), abs=1e-5)


def test_scores_that_are_not_normalised_are_compensated() -> None:
    """A common offset per row, different on both sides, changes nothing after compensation."""
    rollout, train = normalised_rows(20, 500, 3.0, 0.5, seed=8)
    shifted_q, shifted_p = rollout - np.float32(2.5), train - np.float32(0.75)
    found = measure_rows(Device(EmulatedDevice()), shifted_q, shifted_p)
    assert found.compensated == pytest.approx(exact_kl_of_scores(shifted_q, shifted_p), rel=1e-3)
    assert (np.abs(found.raw / found.compensated - 1) > 0.1).all()


def test_q8_8_as_published_is_lost_on_the_same_rows() -> None:
    """Probabilities under 1/256 saturate: half of the rows are off by several hundred per cent."""
    rollout, train = normalised_rows(20, 1000, 4.0, 0.3, seed=7)
    exact = exact_kl(rollout, train)
    published = q8_8_row_kl(rollout.astype(np.float64), train.astype(np.float64))
    errors = np.abs(published / exact - 1)
    assert errors.min() > 0.1
    assert np.median(errors) > 3


def test_a_row_by_hand() -> None:
    """(1/2, 1/2) against (1/4, 3/4): ½ ln 2 + ½ ln ⅔."""
    rollout = np.log(np.array([[0.5, 0.5]])).astype(np.float32)
    train = np.log(np.array([[0.25, 0.75]])).astype(np.float32)
    found = measure_rows(Device(EmulatedDevice()), rollout, train)
    assert found.raw[0] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3), rel=1e-6)


def test_entries_that_cannot_count_are_reported() -> None:
    """A removed entry (-inf) is not a number to sum."""
    rollout = np.array([[-0.7, -0.7, -np.inf]], dtype=np.float32)
    found = measure_rows(Device(EmulatedDevice()), rollout, rollout)
    assert found.unseen.tolist() == [1]


def test_rows_of_different_shape_are_refused() -> None:
    """The message names both shapes."""
    rows = np.zeros((2, 3), dtype=np.float32)
    with pytest.raises(ConfigError, match=r"\(2, 3\) and \(2, 2\)"):
        measure_rows(Device(EmulatedDevice()), rows, rows[:, :2])
