"""Full-distribution KL of rows: the article's own use, with its two pitfalls solved."""

from __future__ import annotations

import numpy as np
import pytest

from twinscope.errors import ConfigError
from twinscope_fpga.device import Device
from twinscope_fpga.emulator import EmulatedDevice
from twinscope_fpga.error_analysis import q8_8_row_kl
from twinscope_fpga.row_kl import measure_rows


def normalised_rows(rows: int, entries: int, spread: float, noise: float, seed: int):  # type: ignore[no-untyped-def]
    """Two float32 log-softmax rows that differ by Gaussian noise of the logits."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (rows, entries))
    pair = []
    for table in (logits, logits + rng.normal(0, noise, logits.shape)):
        top = table.max(axis=1, keepdims=True)
        mass = np.log(np.exp(table - top).sum(axis=1, keepdims=True))
        pair.append((table - top - mass).astype(np.float32))
    return pair


def exact_kl(rollout: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Σ e^q (q - p) in float64."""
    q, p = rollout.astype(np.float64), train.astype(np.float64)
    return (np.exp(q) * (q - p)).sum(axis=1)


def exact_kl_of_scores(rollout: np.ndarray, train: np.ndarray) -> np.ndarray:
    """KL of the normalised rows, float64."""
    q, p = rollout.astype(np.float64), train.astype(np.float64)
    q -= np.log(np.exp(q).sum(axis=1, keepdims=True))
    p -= np.log(np.exp(p).sum(axis=1, keepdims=True))
    return (np.exp(q) * (q - p)).sum(axis=1)


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
