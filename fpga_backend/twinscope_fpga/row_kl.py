"""Full-distribution KL of whole rows: Σ_v e^q (q - p) over a vocabulary, on the device's KL mode.

Direction: KL(rollout‖train), nats. A pass gives Σ e^q and Σ e^q·(p - q) per row; a second pass with
the words exchanged gives Σ e^p and the reverse KL. The masses are the normalisation compensation:
with Q = e^q/Z_q and P = e^p/Z_p,

    KL(Q‖P) = Σ e^q (q - p) / Z_q - ln Z_q + ln Z_p,

so rows of raw scores (any common offset, values at most 0) need no softmax first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinscope.errors import ConfigError
from twinscope_fpga.device import Device
from twinscope_fpga.golden import ROW_KL

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class RowKl:
    """Per row, float64 [R]. `raw` is for rows that are normalised already, `compensated` for any.

    unseen: entries that could not count (non-finite, sentinel or positive on either side); a row
    with any is measured over the rest, so treat its KL as unknown.
    """

    raw: F64
    compensated: F64
    reverse_raw: F64
    mass_rollout: F64
    mass_train: F64
    unseen: NDArray[np.int64]


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
    return RowKl(
        raw, compensated, reverse, mass_q, mass_p,
        forward.count("received") - forward.count("counted"),
    )  # fmt: skip
