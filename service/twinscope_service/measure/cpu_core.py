"""The core statistics alone: k1, k2, k3, |Δ| and the masked means, at the speed of few operations.

For callers that want a number and not a diagnosis, and for `twinscope bench measure`, which sets it
beside the machine's read bandwidth.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from twinscope_service.measure import formulas
from twinscope_service.measure.cpu_math import k3_block
from twinscope_service.measure.cpu_side import read_only
from twinscope_service.measure.records import F64, MeasureOptions, PairBlock

SENTINEL = formulas.SENTINEL
BLOCK = 4096
CORE = ("k1_mean", "k2_mean", "k3_mean", "abs_mean", "rollout_logprob_mean", "train_logprob_mean")
ELEMENTWISE, SUMS = {"contract"}, {"contract", "reassoc", "nsz", "nnan"}


def core_statistics(block: PairBlock, options: MeasureOptions) -> dict[str, float | None]:
    """k1_mean, k2_mean, k3_mean, abs_mean and the mean log-probs; None without a counted token."""
    mask = np.zeros(0, np.uint8) if block.mask is None else block.mask
    arrays = (block.rollout_logprobs, block.train_logprobs, mask)
    q32, p32, mask8 = (read_only(array) for array in arrays)
    sums = core_sums(q32, p32, mask8, options.clamp)
    n, d, d2, k3, size, q, p = sums.tolist()
    values = (-d, d2 / 2, k3, size, q, p)
    return {name: value / n if n else None for name, value in zip(CORE, values, strict=True)}


@njit(nogil=True, cache=True)
def core_sums(
    q: NDArray[np.float32], p: NDArray[np.float32], mask: NDArray[np.uint8], clamp: float
) -> F64:
    """[n, Σ Δ, Σ Δ² clamped, Σ k3 clamped, Σ|Δ|, Σ q, Σ p] over counted tokens."""
    sums, buffer = np.zeros(7), np.zeros(5 * BLOCK)
    for begin in range(0, q.size, BLOCK):
        n = min(BLOCK, q.size - begin)
        part = slice(begin, begin + n)
        load_core(q[part], p[part], mask[part] if mask.size else mask, buffer)
        clamp_core(buffer, n, clamp)
        k3_block(buffer[3 * BLOCK :], n, buffer[4 * BLOCK :])
        add_core(buffer, n, sums)
    return sums


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def load_core(
    q: NDArray[np.float32], p: NDArray[np.float32], mask: NDArray[np.uint8], b: F64
) -> None:
    """w, q and p as float64 at b[0:], b[BLOCK:], b[2 BLOCK:]; 0 where the token does not count."""
    n = q.size
    for i in range(n):
        b[BLOCK + i] = q[i]
    for i in range(n):
        b[2 * BLOCK + i] = p[i]
    if mask.size == 0:
        b[:n] = 1.0
    else:
        for i in range(n):
            b[i] = 1.0 if mask[i] != 0 else 0.0
    for i in range(n):
        x, y, w = b[BLOCK + i], b[2 * BLOCK + i], b[i]
        keep = (w > 0.0) & (x <= 0.0) & (y <= 0.0) & (x > SENTINEL) & (y > SENTINEL)
        b[i] = 1.0 if keep else 0.0
        b[BLOCK + i] = x if keep else 0.0
        b[2 * BLOCK + i] = y if keep else 0.0


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def clamp_core(b: F64, n: int, clamp: float) -> None:
    """Δ clamped, at b[3 BLOCK:]."""
    for i in range(n):
        b[3 * BLOCK + i] = min(max(b[2 * BLOCK + i] - b[BLOCK + i], -clamp), clamp)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_core(b: F64, n: int, sums: F64) -> None:
    """The seven sums of a block."""
    count = d = d2 = k3 = size = q = p = 0.0
    for i in range(n):
        raw = b[2 * BLOCK + i] - b[BLOCK + i]
        count += b[i]
        d += raw
        d2 += b[3 * BLOCK + i] * b[3 * BLOCK + i]
        k3 += b[4 * BLOCK + i]
        size += abs(raw)
        q += b[BLOCK + i]
        p += b[2 * BLOCK + i]
    for k, total in enumerate((count, d, d2, k3, size, q, p)):
        sums[k] += total
