"""The passes over one block of tokens, compiled: load and classify, transform, add up.

A block is a run of at most BLOCK tokens of one sample, held in float64 buffers that stay in the
cache. Tokens that do not count are kept in place with weight w = 0 and q = p = Δ = 0, so that
positions stay dense and most columns need no weight: they are 0 at Δ = 0 by themselves.
Formulas are those of reference.py; the order of the columns is this file's own (KERNEL_COLUMNS).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from twinscope_service.measure import formulas
from twinscope_service.measure.cpu_math import ELEMENTWISE, exp_block, log_block, rho_block
from twinscope_service.measure.records import F64, I64

BLOCK = 2048
SUMS = {"contract", "reassoc", "nsz", "nnan"}  # sums in any order; the buffers hold no NaN

SENTINEL, NOISE_FLOOR, LOG_EPSILON = formulas.SENTINEL, formulas.NOISE_FLOOR, formulas.LOG_EPSILON
ONE_SIDED, DISAGREE, LOG_HALF = formulas.ONE_SIDED, formulas.DISAGREE, formulas.LOG_HALF
FILL_FAR, GRID_SMALLEST = formulas.FILL_FAR, formulas.GRID_SMALLEST
BOUND_SLACK, BOUND_PER_NAT = formulas.BOUND_SLACK, formulas.BOUND_SLACK_PER_NAT
LOWEST, HIGHEST = np.int64(-(2**63)), np.int64(2**63 - 1)
LOG_08, LOG_12, LOG_09, LOG_11 = (math.log(x) for x in (0.8, 1.2, 0.9, 1.1))

# ---- what each pass below adds up, in its order
PROFILE = ("n", "d", "abs", "d2", "k3", "rho_m1", "lr", "lr2")
PAIR = ("q", "p", "qq", "pp", "qp", "d_raw", "abs_raw")
MOMENTS = ("d3", "d4", "k3_2", "rho2_m1", "inv_rho_m1", "mult_m1")
EXACT = ("rho_d", "rho_p", "inv_d", "inv_q")
PROBABILITY = ("prob_abs", "eq", "ep", "eqq", "epp", "eqp", "one_minus_eq")
COUNTS = ("out_08_12", "out_09_11", "out_clip", "q_above", "q_below", "zero_q", "zero_p", "zero_d")
GRID = ("grid_n", "grid_q_bf16", "grid_p_bf16", "grid_q_fp16", "grid_p_fp16")
WARM = ("wp", "wp_d", "wp_m", "wp_dd", "wp_dm", "wp_mm")
COOL = ("wm", "wm_d", "wm_m", "wm_dd", "wm_dm", "wm_mm")
POSITION = ("r", "r2", "x", "xx", "xlr", "lr_lag1_n", "lr_lag1")
BIG = ("big", "big_pair", "confident_disagreement")
FILL_Q = ("fill_q", "fill_q_v", "fill_q_vv", "fill_q_p", "fill_q_far", "fill_q_pair")
FILL_P = ("fill_p", "fill_p_v", "fill_p_vv", "fill_p_q", "fill_p_far", "fill_p_pair")
_GROUPS = (
    PROFILE, PAIR, MOMENTS, EXACT, PROBABILITY, COUNTS, GRID, WARM, COOL, POSITION, BIG,
    FILL_Q, FILL_P, ("length",),
)  # fmt: skip
KERNEL_COLUMNS: tuple[str, ...] = sum(_GROUPS, ())
(AT_PROFILE, AT_PAIR, AT_MOMENTS, AT_EXACT, AT_PROBABILITY, AT_COUNTS, AT_GRID, AT_WARM, AT_COOL,
 AT_POSITION, AT_BIG, AT_FILL_Q, AT_FILL_P, AT_LENGTH) = (
    KERNEL_COLUMNS.index(group[0]) for group in _GROUPS
)  # fmt: skip

# ---- the buffers of a block, in one array so that the compiler can see that they do not overlap:
# b[Q + i] is q of token i. w is 1 where the token counts, else 0; raw is Δ, d is Δ clamped.
# STRIDE is not a power of two: else token i of every buffer would fall into one set of the cache.
STRIDE = BLOCK + 40
W, Q, P, RAW, D, RHO, K3, EQ, EP, WP, WM, R, LR, SPARE, MET, CARRY = (STRIDE * i for i in range(16))
CARRIED = 8  # of the token before the block: w, lr, Δ, was q a fill, was p a fill


def new_buffers() -> F64:
    """Fresh scratch space: one per call of the engine, so that threads share nothing."""
    return np.zeros(CARRY + CARRIED)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def load(
    q32: NDArray[np.float32],
    p32: NDArray[np.float32],
    mask: NDArray[np.uint8],
    begin: int,
    n: int,
    clamp: float,
    b: F64,
    classes: I64,
) -> int:
    """Classify tokens begin..begin+n, fill w, q, p, raw and d; returns how many count.

    `mask` is empty where every token counts. Adds to classes [5]: masked, non-finite, sentinel,
    positive, clamped.
    """
    qs, ps = q32[begin : begin + n], p32[begin : begin + n]
    for i in range(n):
        b[Q + i] = qs[i]
    for i in range(n):
        b[P + i] = ps[i]
    if mask.size == 0:
        b[W : W + n] = 1.0
    else:
        masks = mask[begin : begin + n]
        for i in range(n):
            b[W + i] = 1.0 if masks[i] != 0 else 0.0
    live = counted = clamped = 0
    for i in range(n):
        q, p, w = b[Q + i], b[P + i], b[W + i]
        # NaN fails every comparison, -inf is below the sentinel, +inf above 0
        keep = (w > 0.0) & (q <= 0.0) & (p <= 0.0) & (q > SENTINEL) & (p > SENTINEL)
        live += w > 0.0
        counted += keep
        q = q if keep else 0.0
        p = p if keep else 0.0
        b[W + i] = 1.0 if keep else 0.0
        b[Q + i] = q
        b[P + i] = p
        b[RAW + i] = p - q
        b[D + i] = min(max(p - q, -clamp), clamp)
        clamped += abs(p - q) > clamp
    classes[0] += n - live
    classes[4] += clamped
    if counted < live:
        classify(q32, p32, mask, begin, n, classes)
    return counted


@njit(nogil=True, cache=True)
def classify(
    q32: NDArray[np.float32],
    p32: NDArray[np.float32],
    mask: NDArray[np.uint8],
    begin: int,
    n: int,
    classes: I64,
) -> None:
    """Count non-finite, sentinel and positive tokens, in this order, into classes [1:4]."""
    for i in range(begin, begin + n):
        q, p = q32[i], p32[i]
        if mask.size != 0 and mask[i] == 0:
            continue
        if not (math.isfinite(q) and math.isfinite(p)):
            classes[1] += 1
        elif q <= SENTINEL or p <= SENTINEL:
            classes[2] += 1
        elif q > 0.0 or p > 0.0:
            classes[3] += 1


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def transform(n: int, b: F64) -> None:
    """Fill everything else from q, p, d and w."""
    exp_block(b[Q:], n, b[EQ:])
    rho_block(b[D:], n, b[WP:], b[WM:], b[RHO:], b[K3:])
    clamped = 0
    for i in range(n):
        b[EP + i] = b[EQ + i] * (b[WP + i] * b[WP + i])
        clamped += b[D + i] != b[RAW + i]
    if clamped > 0:  # e^p is e^q · ρ only where Δ is whole
        exp_block(b[P:], n, b[EP:])
    for i in range(n):
        r = abs(b[D + i]) / max(1.0 - b[EQ + i], NOISE_FLOOR)
        b[R + i] = r
        b[SPARE + i] = r + LOG_EPSILON
    log_block(b[SPARE:], n, b[LR:])  # not in place: overlapping arrays are not vectorised
    for i in range(n):
        b[LR + i] *= b[W + i]


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_run(b: F64, begin: int, end: int, out: F64) -> None:
    """PROFILE sums of tokens begin..end of the block, added to out [8]."""
    # slices, because an index that might be negative is not vectorised
    ws, ds, k3s = b[W + begin : W + end], b[D + begin : D + end], b[K3 + begin : K3 + end]
    rhos, lrs = b[RHO + begin : RHO + end], b[LR + begin : LR + end]
    n = d = size = d2 = k3 = rho = lr = lr2 = 0.0
    for i in range(end - begin):
        n += ws[i]
        d += ds[i]
        size += abs(ds[i])
        d2 += ds[i] * ds[i]
        k3 += k3s[i]
        rho += rhos[i]
        lr += lrs[i]
        lr2 += lrs[i] * lrs[i]
    out[0] += n
    out[1] += d
    out[2] += size
    out[3] += d2
    out[4] += k3
    out[5] += rho
    out[6] += lr
    out[7] += lr2


@njit(nogil=True, cache=True)
def add_token(b: F64, i: int, target: F64) -> None:
    """PROFILE values of token i of the block, added to target [8]."""
    d, lr = b[D + i], b[LR + i]
    target[0] += b[W + i]
    target[1] += d
    target[2] += abs(d)
    target[3] += d * d
    target[4] += b[K3 + i]
    target[5] += b[RHO + i]
    target[6] += lr
    target[7] += lr * lr


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_pair(b: F64, n: int, row: F64) -> None:
    """PAIR."""
    q = p = qq = pp = qp = raw = size = 0.0
    for i in range(n):
        q += b[Q + i]
        p += b[P + i]
        qq += b[Q + i] * b[Q + i]
        pp += b[P + i] * b[P + i]
        qp += b[Q + i] * b[P + i]
        raw += b[RAW + i]
        size += abs(b[RAW + i])
    row[AT_PAIR + 0] += q
    row[AT_PAIR + 1] += p
    row[AT_PAIR + 2] += qq
    row[AT_PAIR + 3] += pp
    row[AT_PAIR + 4] += qp
    row[AT_PAIR + 5] += raw
    row[AT_PAIR + 6] += size


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_moments(b: F64, n: int, row: F64) -> None:
    """MOMENTS and EXACT. e^{−Δ} − 1 = −(e^Δ − 1) e^{−Δ} keeps its digits at small Δ."""
    d3 = d4 = k3_2 = rho2 = inverse = multiple = 0.0
    rho_d = rho_p = inv_d = inv_q = 0.0
    for i in range(n):
        d, v = b[D + i], b[RHO + i]
        inv = -v * b[WM + i] * b[WM + i]
        d3 += d * d * d
        d4 += (d * d) * (d * d)
        k3_2 += b[K3 + i] * b[K3 + i]
        rho2 += v * (v + 2.0)
        inverse += inv
        multiple += max(v, inv)
        rho_d += v * d
        rho_p += v * b[P + i]
        inv_d += inv * d
        inv_q += inv * b[Q + i]
    row[AT_MOMENTS + 0] += d3
    row[AT_MOMENTS + 1] += d4
    row[AT_MOMENTS + 2] += k3_2
    row[AT_MOMENTS + 3] += rho2
    row[AT_MOMENTS + 4] += inverse
    row[AT_MOMENTS + 5] += multiple
    row[AT_EXACT + 0] += rho_d
    row[AT_EXACT + 1] += rho_p
    row[AT_EXACT + 2] += inv_d
    row[AT_EXACT + 3] += inv_q


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_probability(b: F64, n: int, row: F64) -> float:
    """PROBABILITY; returns the largest |e^p − e^q|."""
    gap = eq = ep = eqq = epp = eqp = rest = 0.0
    for i in range(n):
        w = b[W + i]
        x, y = w * b[EQ + i], w * b[EP + i]
        gap += abs(y - x)
        eq += x
        ep += y
        eqq += x * x
        epp += y * y
        eqp += x * y
        rest += w - x
    row[AT_PROBABILITY + 0] += gap
    row[AT_PROBABILITY + 1] += eq
    row[AT_PROBABILITY + 2] += ep
    row[AT_PROBABILITY + 3] += eqq
    row[AT_PROBABILITY + 4] += epp
    row[AT_PROBABILITY + 5] += eqp
    row[AT_PROBABILITY + 6] += rest
    largest: Any = 0
    for i in range(n):
        gap_here = b[W + i] * (b[EP + i] - b[EQ + i])
        largest = max(largest, np.float64(gap_here).view(np.int64) & HIGHEST)
    return np.int64(largest).view(np.float64)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_counts(b: F64, n: int, low: float, high: float, row: F64) -> None:
    """COUNTS; low, high are the logs of the clip range."""
    wide = narrow = clip = above = below = zero_q = zero_p = zero_d = 0
    for i in range(n):
        d, counted = b[D + i], b[W + i] > 0.0
        wide += (d < LOG_08) | (d > LOG_12)
        narrow += (d < LOG_09) | (d > LOG_11)
        clip += counted & ((d < low) | (d > high))
        above += d < -ONE_SIDED
        below += d > ONE_SIDED
        zero_q += counted & (b[Q + i] == 0.0)
        zero_p += counted & (b[P + i] == 0.0)
        zero_d += counted & (b[RAW + i] == 0.0)
    row[AT_COUNTS + 0] += wide
    row[AT_COUNTS + 1] += narrow
    row[AT_COUNTS + 2] += clip
    row[AT_COUNTS + 3] += above
    row[AT_COUNTS + 4] += below
    row[AT_COUNTS + 5] += zero_q
    row[AT_COUNTS + 6] += zero_p
    row[AT_COUNTS + 7] += zero_d


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def add_grid(b: F64, n: int, row: F64) -> None:
    """GRID: bfloat16 leaves the low 16 bits of a float32 empty, float16 (at |x| >= ¼) the low 13.

    In float64 form a float32 has 29 empty bits more; uncounted tokens are 0, hence below ¼.
    """
    grid = q_bf16 = p_bf16 = q_fp16 = p_fp16 = 0
    for i in range(n):
        both = (b[Q + i] <= -GRID_SMALLEST) & (b[P + i] <= -GRID_SMALLEST)
        q, p = np.float64(b[Q + i]).view(np.int64), np.float64(b[P + i]).view(np.int64)
        grid += both
        q_bf16 += both & ((q & 0x1FFFFFFFFFFF) == 0)
        p_bf16 += both & ((p & 0x1FFFFFFFFFFF) == 0)
        q_fp16 += both & ((q & 0x3FFFFFFFFFF) == 0)
        p_fp16 += both & ((p & 0x3FFFFFFFFFF) == 0)
    row[AT_GRID + 0] += grid
    row[AT_GRID + 1] += q_bf16
    row[AT_GRID + 2] += p_bf16
    row[AT_GRID + 3] += q_fp16
    row[AT_GRID + 4] += p_fp16


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_midpoint(b: F64, n: int, row: F64) -> None:
    """WARM (weight e^{Δ/2}) and COOL (weight e^{−Δ/2}), with m = (q + p)/2."""
    s = s_d = s_m = s_dd = s_dm = s_mm = 0.0
    z = z_d = z_m = z_dd = z_dm = z_mm = 0.0
    for i in range(n):
        warm, cool = b[W + i] * b[WP + i], b[W + i] * b[WM + i]
        d, m = b[D + i], 0.5 * (b[Q + i] + b[P + i])
        dd, dm, mm = d * d, d * m, m * m
        s += warm
        s_d += warm * d
        s_m += warm * m
        s_dd += warm * dd
        s_dm += warm * dm
        s_mm += warm * mm
        z += cool
        z_d += cool * d
        z_m += cool * m
        z_dd += cool * dd
        z_dm += cool * dm
        z_mm += cool * mm
    for k, total in enumerate((s, s_d, s_m, s_dd, s_dm, s_mm)):
        row[AT_WARM + k] += total
    for k, total in enumerate((z, z_d, z_m, z_dd, z_dm, z_mm)):
        row[AT_COOL + k] += total


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_position(b: F64, n: int, log_position: F64, row: F64) -> None:
    """POSITION; log_position [n] is ln(1 + t). `carry` joins the block to the one before."""
    r = r2 = x = xx = xlr = 0.0
    for i in range(n):
        position = b[W + i] * log_position[i]
        r += b[R + i]
        r2 += b[R + i] * b[R + i]
        x += position
        xx += position * log_position[i]
        xlr += b[LR + i] * log_position[i]
    pairs, product = b[CARRY + 0] * b[W], b[CARRY + 1] * b[LR]
    for i in range(1, n):
        pairs += b[W + i - 1] * b[W + i]
        product += b[LR + i - 1] * b[LR + i]
    row[AT_POSITION + 0] += r
    row[AT_POSITION + 1] += r2
    row[AT_POSITION + 2] += x
    row[AT_POSITION + 3] += xx
    row[AT_POSITION + 4] += xlr
    row[AT_POSITION + 5] += pairs
    row[AT_POSITION + 6] += product


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def add_big(b: F64, n: int, row: F64) -> int:
    """BIG; returns the index of the first |Δ| > 2, or −1. Only called where there is one."""
    first = -1
    before = abs(b[CARRY + 2]) > DISAGREE
    for i in range(n):
        big = abs(b[D + i]) > DISAGREE
        if big:
            first = i if first < 0 else first
            row[AT_BIG + 0] += 1.0
            row[AT_BIG + 1] += before
            row[AT_BIG + 2] += b[Q + i] > LOG_HALF
        before = big
    return first


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_fills(b: F64, n: int, row: F64) -> None:
    """FILL_Q and FILL_P, but for the pairs."""
    q_n = q_v = q_vv = q_p = q_far = 0.0
    p_n = p_v = p_vv = p_q = p_far = 0.0
    for i in range(n):
        w, q, p = b[W + i], b[Q + i], b[P + i]
        far = abs(b[D + i]) > FILL_FAR
        fill = w if q == np.rint(q) else 0.0
        q_n += fill
        q_v += fill * q
        q_vv += fill * q * q
        q_p += fill * p
        q_far += fill if far else 0.0
        fill = w if p == np.rint(p) else 0.0
        p_n += fill
        p_v += fill * p
        p_vv += fill * p * p
        p_q += fill * q
        p_far += fill if far else 0.0
    for k, total in enumerate((q_n, q_v, q_vv, q_p, q_far)):
        row[AT_FILL_Q + k] += total
    for k, total in enumerate((p_n, p_v, p_vv, p_q, p_far)):
        row[AT_FILL_P + k] += total
    if q_n > 0.0:
        row[AT_FILL_Q + 5] += fill_pairs(b, Q, n, b[CARRY + 3])
    if p_n > 0.0:
        row[AT_FILL_P + 5] += fill_pairs(b, P, n, b[CARRY + 4])


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def fill_pairs(b: F64, value: int, n: int, before: float) -> float:
    """Neighbours that are both whole numbers; `before`: 1 if the token before the block was."""
    ws, xs = b[W : W + n], b[value : value + n]
    pairs = before * ws[0] if xs[0] == np.rint(xs[0]) else 0.0
    for i in range(1, n):
        both = (xs[i] == np.rint(xs[i])) & (xs[i - 1] == np.rint(xs[i - 1]))
        pairs += ws[i] * ws[i - 1] if both else 0.0
    return pairs


@njit(nogil=True, cache=True)
def remember(b: F64, n: int) -> None:
    """Keep of the last token what the next block needs: w, lr, Δ, whether q and p were fills."""
    i = n - 1
    b[CARRY + 0] = b[W + i]
    b[CARRY + 1] = b[LR + i]
    b[CARRY + 2] = b[D + i]
    b[CARRY + 3] = b[W + i] if b[Q + i] == np.rint(b[Q + i]) else 0.0
    b[CARRY + 4] = b[W + i] if b[P + i] == np.rint(b[P + i]) else 0.0


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def add_bounds(b: F64, n: int, betas: F64, bounds: I64) -> None:
    """Tokens beyond each temperature's bound; betas [10] are 1/T, five above 1, then five below.

    q < βp − slack with slack = 0.1 − 0.02 p is q + 0.1 < (β + 0.02) p, and likewise above.
    """
    hot0, hot1, hot2, hot3, hot4 = betas[0], betas[1], betas[2], betas[3], betas[4]
    n0 = n1 = n2 = n3 = n4 = 0
    for i in range(n):
        edge, p = b[Q + i] + BOUND_SLACK, b[P + i]
        n0 += edge < (hot0 + BOUND_PER_NAT) * p
        n1 += edge < (hot1 + BOUND_PER_NAT) * p
        n2 += edge < (hot2 + BOUND_PER_NAT) * p
        n3 += edge < (hot3 + BOUND_PER_NAT) * p
        n4 += edge < (hot4 + BOUND_PER_NAT) * p
    for k, count in enumerate((n0, n1, n2, n3, n4)):
        bounds[k] += count
    cold0, cold1, cold2, cold3, cold4 = betas[5], betas[6], betas[7], betas[8], betas[9]
    n0 = n1 = n2 = n3 = n4 = 0
    for i in range(n):
        edge, p = b[Q + i] - BOUND_SLACK, b[P + i]
        n0 += edge > (cold0 - BOUND_PER_NAT) * p
        n1 += edge > (cold1 - BOUND_PER_NAT) * p
        n2 += edge > (cold2 - BOUND_PER_NAT) * p
        n3 += edge > (cold3 - BOUND_PER_NAT) * p
        n4 += edge > (cold4 - BOUND_PER_NAT) * p
    for k, count in enumerate((n0, n1, n2, n3, n4)):
        bounds[5 + k] += count


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_extremes(b: F64, n: int, extremes: F64) -> float:
    """max of |Δ|, Δ, −Δ, −q, −p over counted tokens into extremes [5]; returns this block's |Δ|.

    Compared as integers, which vectorise: positive floats are ordered as their bits are, and above
    all negative ones. The 0 of uncounted tokens matters only where every Δ has the same sign.
    """
    up = down = LOWEST
    q = p = np.int64(0)
    for i in range(n):
        bits = np.float64(b[RAW + i]).view(np.int64)
        up = max(up, bits)
        down = max(down, bits ^ LOWEST)
        q = max(q, np.float64(b[Q + i]).view(np.int64) & HIGHEST)
        p = max(p, np.float64(b[P + i]).view(np.int64) & HIGHEST)
    high, low = np.int64(up).view(np.float64), np.int64(down).view(np.float64)
    if up <= 0 or down <= 0:
        sides = one_sided_extremes(b, n)
        high, low = np.float64(sides[0]), np.float64(sides[1])
    size = max(high, low)
    extremes[0] = max(extremes[0], size)
    extremes[1] = max(extremes[1], high)
    extremes[2] = max(extremes[2], low)
    extremes[3] = max(extremes[3], np.int64(q).view(np.float64))
    extremes[4] = max(extremes[4], np.int64(p).view(np.float64))
    return size


@njit(nogil=True, cache=True)
def one_sided_extremes(b: F64, n: int) -> tuple[float, float]:
    """max of Δ and of −Δ over counted tokens, one by one."""
    high = low = -math.inf
    for i in range(n):
        if b[W + i] > 0.0:
            high = max(high, b[RAW + i])
            low = max(low, -b[RAW + i])
    return high, low
