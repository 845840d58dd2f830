"""A loud part of the samples: two populations in how strongly the two sides disagree."""

from __future__ import annotations

from math import sqrt

import numpy as np

from twinscope_service.diagnose.view import Mask, View
from twinscope_service.measure.records import F64

LEAST_GAP = {"mean": 0.9, "rms": 0.6}  # nats between the parts: 2.5 and 1.8 times as loud
LEAST_SAMPLES = 3
IN_THE_MEAN = 0.3  # of the gap of the root mean square: a part, not one wild token in each sample
BETWEEN = 0.8  # share of the variance that lies between the parts, at least


def loud_samples(view: View) -> Mask | None:
    """[S] the louder of two clearly separate parts of the samples, or None.

    By the mean of ln r, or by its root mean square, which scatters less from sample to sample and
    so tells parts that are closer; a single wild token moves it too, but the mean hardly.
    """
    usable = view.column("n") >= 8
    if usable.sum() < 4 * LEAST_SAMPLES:
        return None
    for name, level in (("mean", view.noise_level), ("rms", view.rms_level)):
        edge = _cut(np.sort(level[usable]), LEAST_GAP[name])
        if edge is not None:
            loud: Mask = usable & (level > edge)
            by_mean, by_level = (_gap(x, loud, usable) for x in (view.noise_level, level))
            if by_mean >= IN_THE_MEAN * by_level:
                return loud
    return None


def _gap(level: F64, loud: Mask, usable: Mask) -> float:
    return float(level[loud].mean() - level[usable & ~loud].mean())


def _cut(x: F64, least_gap: float) -> float | None:
    """Where to cut the ascending levels `x`; None if they are one population.

    The cut maximises the variance between the parts (Otsu). One population cut in two has at most
    64 % (normal) to 75 % (uniform) of its variance between the parts; more says two populations.
    """
    below = np.arange(1, len(x))
    low, total = np.cumsum(x)[:-1], x.sum()
    gap = (total - low) / (len(x) - below) - low / below
    between = below * (len(x) - below) / len(x) ** 2 * gap**2
    ok = (below >= LEAST_SAMPLES) & (len(x) - below >= LEAST_SAMPLES)
    best = int(np.argmax(np.where(ok, between, -1.0)))
    variance = float(x.var())
    if variance == 0.0 or gap[best] < least_gap or between[best] < BETWEEN * variance:
        return None
    # the floor of separation: the parts' own spread is well below the gap
    spread = sqrt(max(variance - float(between[best]), 0.0))
    return float(x[best] + x[best + 1]) / 2 if gap[best] >= 3.0 * spread else None
