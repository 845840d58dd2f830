"""Full-distribution KL of whole rows: Σ_v e^q (q - p) over a vocabulary, on the device's KL mode.

Direction: KL(rollout‖train), nats. A pass gives Σ e^q and Σ e^q·(p - q) per row; a second pass with
the words exchanged gives Σ e^p and the reverse KL. The masses are the normalisation compensation:
with Q = e^q/Z_q and P = e^p/Z_p,

    KL(Q‖P) = Σ e^q (q - p) / Z_q - ln Z_q + ln Z_p,

so rows of raw scores (any common offset, values at most 0) need no softmax first.

How far the answer can be off comes with every row. A term has a relative error of at most TERM and
an absolute one of UNIT; what is left is how large Σ e^q |Δ| can be, and that follows from the KL
itself: with δ = Δ - ln(Z_p/Z_q) it is E[e^δ - 1 - δ] >= h(E|δ|), h(x) = e^-x - 1 + x (Jensen), so
that E|δ| <= √(2 KL) + KL. The compensation adds the relative error of two masses, and that is why
a KL far below 1e-4 cannot be had of rows that are not normalised. A common offset of Δ meets the
errors of e^q twice, in the sum and in the mass it is divided by, and they cancel: it counts only
with the rounding of the float32 difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinscope.errors import ConfigError
from twinscope_fpga.device import Device
from twinscope_fpga.error_analysis import exact_k3
from twinscope_fpga.golden import ROW_KL

EXPONENTIAL = 9e-8  # largest relative error of e^q
ROUNDING = 2.0**-24 + 2.0**-28  # of the float32 difference, and of the product with it
TERM = EXPONENTIAL + ROUNDING  # largest relative error of e^q·Δ
UNIT = 2.0**-57  # truncation of an entry's e^q, and of its e^q·Δ
WORD = 2.0**-19  # largest rounding of a float32 word that is not yet zero probability (64 nats)
THOUSANDTH = 1e-3
ABSENT = -200.0  # a word whose probability is zero
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class RowKl:
    """Per row, float64 [R]. `raw` is for rows that are normalised already, `compensated` for any.

    refined: rows whose `compensated` comes from the third pass.
    raw_error, compensated_error: bounds on |found - exact| for these float32 words, never exceeded.
    unseen: entries that could not count (non-finite, sentinel or positive on either side); a row
    with any is measured over the rest, so treat its KL as unknown.
    """

    raw: F64
    compensated: F64
    reverse_raw: F64
    mass_rollout: F64
    mass_train: F64
    raw_error: F64
    compensated_error: F64
    unseen: NDArray[np.int64]
    refined: NDArray[np.bool_]

    def trusted(self, relative: float = 1e-3) -> NDArray[np.bool_]:
        """Rows whose `compensated` is certainly within that relative error. bool [R]"""
        least = self.compensated - self.compensated_error
        certain: NDArray[np.bool_] = self.compensated_error <= relative * least
        seen: NDArray[np.bool_] = certain & (self.unseen == 0)
        return seen


def measure_rows(device: Device, rollout: F32, train: F32) -> RowKl:
    """KL of every row of `rollout` and `train`, float32 [R,V] log-probs or log-scores <= 0."""
    if rollout.shape != train.shape or rollout.ndim != 2:
        raise ConfigError(
            f"rows: got shapes {rollout.shape} and {train.shape}; give two equal [rows, entries]"
        )
    rows, entries = rollout.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * entries
    q = np.ascontiguousarray(rollout, dtype=np.float32).reshape(-1).view(np.uint32)
    p = np.ascontiguousarray(train, dtype=np.float32).reshape(-1).view(np.uint32)
    forward = device.measure(q, p, offsets, mode=ROW_KL)
    backward = device.measure(p, q, offsets, mode=ROW_KL)
    mass_q, mass_p = forward.total("value"), backward.total("value")
    raw, reverse = -forward.total("square"), -backward.total("square")
    with np.errstate(divide="ignore", invalid="ignore"):
        compensated = raw / mass_q - np.log(mass_q) + np.log(mass_p)
        largest = np.minimum(forward.max_abs.view(np.float32).astype(np.float64), 1e3)
        raw_error, error = _bounds(compensated, mass_q, mass_p, largest, entries)
        unseen = forward.count("received") - forward.count("counted")
        doubtful = (unseen == 0) & (mass_q > 0) & (mass_p > 0)
        doubtful &= ~(error <= THOUSANDTH * (compensated - error))
    if doubtful.any():
        compensated[doubtful], error[doubtful] = _refine(
            device, rollout[doubtful], train[doubtful], mass_q[doubtful], mass_p[doubtful]
        )
    return RowKl(
        raw, compensated, reverse, mass_q, mass_p, raw_error, error, unseen, refined=doubtful
    )


def _refine(device: Device, rollout: F32, train: F32, mass_q: F64, mass_p: F64) -> tuple[F64, F64]:
    """(KL, bound on its error) of rows by the third pass, see the module."""
    rows, entries = rollout.shape
    q, p = rollout.astype(np.float64), train.astype(np.float64)
    with np.errstate(divide="ignore"):  # k3 is 0 where the sides agree to the last bit
        terms = q + np.log(exact_k3(p - q - np.log(mass_p / mass_q)[:, None]))
    top = np.maximum(terms.max(axis=1), -1e3)  # of a row that agrees everywhere: no term at all
    words = np.maximum(terms - top[:, None], ABSENT).astype(np.float32).reshape(-1).view(np.uint32)
    offsets = np.arange(rows + 1, dtype=np.int64) * entries
    total = device.measure(words, words, offsets, mode=ROW_KL).total("value")
    found = np.exp(top) * total / mass_q
    lost = entries * UNIT
    masses = 2 * EXPONENTIAL + lost / mass_q + lost / mass_p
    cut = np.exp(top) * lost / mass_q
    return found, found * (WORD + masses) * (1 + masses) + cut + masses**2


def _bounds(
    compensated: F64, mass_q: F64, mass_p: F64, largest: F64, entries: int
) -> tuple[F64, F64]:
    """(raw_error, compensated_error), see the module. `largest`: max |Δ| of the row."""
    lost = entries * UNIT
    masses = 2 * EXPONENTIAL + lost / mass_q + lost / mass_p
    offset = np.abs(np.log(mass_p / mass_q)) + masses
    doubt = 2e-6 + 4 * masses  # more than enough to reach the exact KL from the measured one
    at_most = np.maximum(compensated, 0.0) * (1 + doubt) + doubt * (1 + offset)
    centred = np.sqrt(2 * at_most) + at_most  # of δ; the next one of Δ
    distance = np.minimum(offset + centred, largest)
    raw_error = TERM * mass_q * (1 + masses) * distance + lost
    mean = 2 * EXPONENTIAL * centred + ROUNDING * distance + (1 + distance) * lost / mass_q
    return raw_error, (mean + masses) * (1 + masses)
