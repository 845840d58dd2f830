"""The numbers a step must show, in extended precision, from the raw arrays alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def expected_metrics(
    rollout: Sequence[Sequence[float]], train: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Metrics of all pairs; `rollout` q and `train` p in nats, one row per sample."""
    q = np.concatenate([np.asarray(row, np.float32) for row in rollout]).astype(np.longdouble)
    p = np.concatenate([np.asarray(row, np.float32) for row in train]).astype(np.longdouble)
    delta = p - q
    k3 = np.expm1(delta) - delta
    values = {
        "k1_mean": -delta.mean(),
        "k2_mean": (delta**2 / 2).mean(),
        "k3_mean": k3.mean(),
        "abs_mean": np.abs(delta).mean(),
        "abs_max": np.abs(delta).max(),
        "rho_mean": np.exp(delta).mean(),
    }
    return {name: float(value) for name, value in values.items()}
