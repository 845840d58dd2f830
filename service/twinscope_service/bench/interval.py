"""A median and how far it can be trusted: the 95 % interval of the bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 4_000
SHARE = 0.95


@dataclass(frozen=True)
class Interval:
    """The median of some values, and between what it would lie in SHARE of repetitions."""

    middle: float
    low: float
    high: float


def median_interval(values: Sequence[float]) -> Interval:
    """Percentile bootstrap over the values, which were measured independently of each other.

    Seeded: the same values give the same interval. With fewer than six it is their range, and
    covers less than SHARE.
    """
    found = np.asarray(values, np.float64)
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(found, (DRAWS, found.size)), axis=1)
    low, high = np.quantile(drawn, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return Interval(float(np.median(found)), float(low), float(high))
