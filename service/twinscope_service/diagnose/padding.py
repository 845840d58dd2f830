"""Padding that the mask lets through: q = p = 0 in one run at the end of a sample.

A certain token has q = p = 0 as well, but such tokens stand anywhere. A Summary keeps no values of
single tokens; where the zeros of a sample stand follows from its sums: Δ is 0 exactly there, so
ln r is ln 1e-6, far below every other token's, and Σ ln(1+t) ln r says on which t that falls.
"""

from __future__ import annotations

from math import log

import numpy as np

from twinscope_service.diagnose.claim import Claim
from twinscope_service.diagnose.view import Mask, View
from twinscope_service.measure.formulas import LOG_EPSILON
from twinscope_service.measure.records import F64

LEAST_SHARE = 0.1  # of the counted tokens
MOST_SAMPLES = 0.5  # share of the samples that end in such a run
AT_END = 0.8  # 0: the zeros stand anywhere, 1: all at the end
RUN = 4  # zeros per run, on average: chance breaks them up
LEAST_PADDING = 8  # tokens per padded sample; a closing phrase that is always the same is shorter
ROWS = 4  # samples of one length, at least: padding makes the rows of a batch equal
IN_ROWS = 0.95  # share of the padded samples that have so many of their length


def padded_ends(view: View) -> Claim | None:
    """Most samples end in a run of q = p = 0: padding that is counted as tokens."""
    if not view.whole:
        return None
    n, zeros = view.column("n"), _zeros(view)
    padded = _end_in_zeros(view, zeros)
    if not _rectangular(n, zeros, padded):
        return None
    padding, left = float(zeros[padded].sum()), float(n.sum() - zeros[padded].sum())
    if padded.sum() < MOST_SAMPLES * view.samples or padding < LEAST_SHARE * n.sum():
        return None
    k3_after = float(view.column("k3").sum()) / left
    return Claim(
        cause="mask_includes_non_response",
        kind="exact",
        strength=2.5,
        evidence=(
            f"{int(padding)} tokens with q = p = 0 at the ends of {int(padded.sum())} of "
            f"{view.samples} samples: padding that the mask lets through; without it k3 is "
            f"{k3_after:.3g}, not {view.k3:.3g}"
        ),
        estimate={
            "tokens": int(padding),
            "share": round(padding / float(n.sum()), 4),
            "samples": int(padded.sum()),
        },
        k3_after=k3_after,
        hides=False,
        fix="Send the lengths without padding, or a mask that is 0 on it.",
    )


def _zeros(view: View) -> F64:
    """[S] tokens that can be 0 on both sides."""
    return np.minimum(view.column("zero_q"), view.column("zero_p"))


def _rectangular(n: F64, zeros: F64, padded: Mask) -> bool:
    """Equal lengths with ends of different lengths: rows of a padded batch, no sure last words."""
    ends = zeros[padded]
    if len(ends) < 2 or ends.mean() < LEAST_PADDING or np.ptp(ends) == 0:
        return False
    _, which, samples = np.unique(n, return_inverse=True, return_counts=True)
    in_rows = samples[which][padded] >= min(ROWS, len(n))
    return bool(in_rows.mean() >= IN_ROWS)


def _end_in_zeros(view: View, zeros: F64) -> Mask:
    """[S] Do the sample's zeros form one run at its end (with a few strays)?"""
    n, runs = view.column("n"), view.column("fill_q") - view.column("fill_q_pair")
    unbroken = (zeros >= RUN * np.maximum(runs, 1.0)) & (zeros < n)
    # Σ ln(1+t) over the last `zeros` tokens is known only where no token is masked out
    usable: Mask = unbroken & (n == view.column("length"))
    found = np.zeros(len(n), bool)
    found[usable] = _endness(view, zeros, usable) > AT_END
    return found


def _endness(view: View, zeros: F64, rows: Mask) -> F64:
    """[rows] 0 where Δ = 0 falls on any t, 1 where it falls on the last ones."""
    n, x, lr = (view.column(name)[rows] for name in ("n", "x", "lr"))
    z, floor = zeros[rows], log(LOG_EPSILON)
    up_to = np.concatenate(([0.0], np.cumsum(np.log1p(np.arange(int(n.max(initial=0)))))))
    last = up_to[n.astype(int)] - up_to[(n - z).astype(int)]  # Σ ln(1+t) over the last z tokens
    others = (lr - floor * z) / (n - z)
    anywhere = lr * x / n
    at_end = floor * last + others * (x - last)
    gap = anywhere - at_end
    return np.where(gap > 1.0, (anywhere - view.column("xlr")[rows]) / np.maximum(gap, 1.0), 0.0)
