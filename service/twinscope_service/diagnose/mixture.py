"""A loud part of the samples: two populations in how strongly the two sides disagree."""

from __future__ import annotations

from math import sqrt

import numpy as np

from twinscope_service.diagnose.view import Mask, View

LEAST_GAP = 0.9  # nats of ln r between the two parts: 2.5 times as loud
LEAST_SAMPLES = 3


def loud_samples(view: View) -> Mask | None:
    """[S] the louder of two clearly separate parts of the samples, or None.

    The cut maximises the variance between the parts (Otsu). One population cut in two has at most
    64 % (normal) to 75 % (uniform) of its variance between the parts; more says two populations.
    """
    level, n = view.noise_level, view.column("n")
    usable = n >= 8
    if usable.sum() < 4 * LEAST_SAMPLES:
        return None
    x = np.sort(level[usable])
    below = np.arange(1, len(x))
    low, total = np.cumsum(x)[:-1], x.sum()
    gap = (total - low) / (len(x) - below) - low / below
    between = below * (len(x) - below) / len(x) ** 2 * gap**2
    ok = (below >= LEAST_SAMPLES) & (len(x) - below >= LEAST_SAMPLES)
    best = int(np.argmax(np.where(ok, between, -1.0)))
    variance = float(x.var())
    if variance == 0.0 or gap[best] < LEAST_GAP or between[best] < 0.8 * variance:
        return None
    # the floor of separation: the parts' own spread is well below the gap
    spread = sqrt(max(variance - float(between[best]), 0.0))
    if gap[best] < 3.0 * spread:
        return None
    loud: Mask = usable & (level > (x[best] + x[best + 1]) / 2)
    return loud
