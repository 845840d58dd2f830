"""Which columns and counts of a Summary the device gives (names of service measure/records.py)."""

from __future__ import annotations

from collections.abc import Mapping

FROM_DEVICE: tuple[str, ...] = ("n", "d", "abs", "d2", "k3", "zero_q", "zero_p", "zero_d")
COVERAGE_FROM: Mapping[str, str] = {  # coverage name -> count of a record
    "received": "received",
    "counted": "counted",
    "nonfinite": "nonfinite",
    "sentinel": "sentinel",
    "positive": "positive",
    "zero_rollout": "zero_rollout",
    "zero_train": "zero_train",
    "delta_zero": "delta_zero",
    "clamped": "clamped",
}
