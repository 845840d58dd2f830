"""The fused pass over a whole block of samples, compiled: cpu_blocks.py run over every sample.

Samples are taken in the order of their keys, so that ties among the worst tokens fall the same way
however the samples arrived.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from twinscope_service.measure import cpu_blocks as blocks
from twinscope_service.measure.cpu_blocks import BLOCK, SUMS
from twinscope_service.measure.cpu_math import ELEMENTWISE, k3_at
from twinscope_service.measure.cpu_side import Side, SideTotals, add_side, meet_ids, read_only
from twinscope_service.measure.records import F64, I64, PairBlock

SHORT_RUN = 24  # tokens
MARGIN = 16  # zeros on both sides of the lag window: at least the largest of LAGS
ROUND_UP = 15  # loops over the window run to a multiple of 16, so that no token is left over
LAG_DIGITS = 0.01  # k3 from a difference of sums is kept if it is at least this part of them


class Pairs(NamedTuple):
    """The input, read-only. `begin` and `end` [S] bound the live spans, in the order of rows."""

    q: NDArray[np.float32]  # [N]
    p: NDArray[np.float32]  # [N]
    mask: NDArray[np.uint8]  # [N], or [0] where every token counts
    begin: I64  # [S]
    end: I64  # [S]
    lags: I64  # [S, L] lags to scan
    log_position: F64  # [longest live span] ln(1 + t)
    betas: F64  # [len(BOUND_TEMPERATURES)]


class Settings(NamedTuple):
    """MeasureOptions, as the kernel needs them."""

    clamp: float
    log_low: float
    log_high: float
    lag_window: int
    hist_base: int
    hist_buckets: int


class Totals(NamedTuple):
    """The output; everything is added to. P stands for the columns of PROFILE."""

    classes: I64  # [5]
    rows: F64  # [S, len(KERNEL_COLUMNS)]
    max_abs: F64  # [S]
    extremes: F64  # [6]: |Δ|, Δ, −Δ, −q, −p, |e^p − e^q|
    bounds: I64
    histogram: I64  # [2 · buckets + 1], the last one collects Δ = 0 and uncounted tokens
    position: F64  # [24, P]
    from_end: F64  # [24, P]
    first: F64  # [8, P]
    last: F64  # [8, P]
    relative: F64  # [16, P]
    q_profile: F64  # [32, P]
    lag_totals: F64  # [17, 8] LAG_COLUMNS
    lag_count: F64  # [S, L]
    lag_size: F64  # [S, L]
    head: F64  # [S, 2, 8]
    first_big: I64  # [S]
    worst_size: F64  # [K] descending
    worst_token: I64  # [K] index into N, −1: none
    worst_row: I64  # [K]
    slot: NDArray[np.uint32]  # [BLOCK] scratch


class Window(NamedTuple):
    """The first tokens of one sample, kept for the lag scan; float64 [lag_window + margins].

    Token t is at MARGIN + t. Where nothing counts, and in the margins, all five are 0.
    """

    w: F64
    q: F64
    p: F64
    exp_p: F64
    exp_minus_q: F64


@njit(nogil=True, cache=True)
def measure_samples(
    pairs: Pairs,
    settings: Settings,
    b: F64,
    window: Window,
    side: Side,
    out: Totals,
    side_out: SideTotals,
) -> None:
    """Every sample, block by block."""
    run, block = np.zeros(8), np.zeros(8)
    for row in range(pairs.begin.size):
        begin, end = pairs.begin[row], pairs.end[row]
        b[blocks.CARRY :] = 0.0
        heads = 0
        for start in range(begin, end, BLOCK):
            n = min(BLOCK, end - start)
            t = start - begin
            few = max(min(n, settings.lag_window - t), 0)
            if side.ids.size > 0:
                meet_ids(side, b, start, few, row, t == 0, side_out.table)
            counted = blocks.load(
                pairs.q, pairs.p, pairs.mask, start, n, settings.clamp, b, out.classes
            )
            if counted > 0:
                blocks.transform(n, b)
            if few > 0:
                keep_window(b, few, t, counted > 0, window)
            if counted == 0:
                b[blocks.CARRY :] = 0.0
                continue
            if heads < out.head.shape[2]:
                heads = add_heads(b, n, heads, out.head[row])
            add_columns(pairs, settings, b, n, t, out, row)
            add_histogram(settings, b, n, out.slot, out.histogram)
            add_profiles(b, n, t, end - begin, out, run, block)
            out.rows[row, blocks.AT_PROFILE : blocks.AT_PROFILE + 8] += block
            add_q_profile(b, n, out.slot, out.q_profile)
            add_worst(b, n, start, row, out)
            blocks.remember(b, n)
            add_side(side, settings.clamp, b, start, n, few, row, out.slot, side_out)
        out.rows[row, blocks.AT_LENGTH] = end - begin
        scan_lags(
            pairs.lags[row], min(end - begin, settings.lag_window), settings, window, out, row
        )


@njit(nogil=True, cache=True)
def profile_runs(
    pairs: Pairs, settings: Settings, b: F64, begins: I64, ends: I64, out: F64
) -> None:
    """PROFILE sums [R, 8] of runs of tokens (parts of samples sampled by one weight version)."""
    ignored = np.zeros(5, np.int64)
    for run in range(begins.size):
        for start in range(begins[run], ends[run], BLOCK):
            n = min(BLOCK, ends[run] - start)
            blocks.load(pairs.q, pairs.p, pairs.mask, start, n, settings.clamp, b, ignored)
            blocks.transform(n, b)
            blocks.add_run(b, 0, n, out[run])


@njit(nogil=True, cache=True)
def add_columns(
    pairs: Pairs, settings: Settings, b: F64, n: int, t: int, out: Totals, row: int
) -> None:
    """Everything that goes into the sample's row, and the extremes."""
    sums = out.rows[row]
    blocks.add_pair(b, n, sums)
    blocks.add_moments(b, n, sums)
    gap = blocks.add_probability(b, n, sums)
    blocks.add_counts(b, n, settings.log_low, settings.log_high, sums)
    blocks.add_grid(b, n, sums)
    blocks.add_midpoint(b, n, sums)
    blocks.add_position(b, n, pairs.log_position[t : t + n], sums)
    blocks.add_fills(b, n, sums)
    blocks.add_bounds(b, n, pairs.betas, out.bounds)
    largest = blocks.add_extremes(b, n, out.extremes)
    out.extremes[5] = max(out.extremes[5], gap)
    out.max_abs[row] = max(out.max_abs[row], largest)
    if largest > blocks.DISAGREE:
        first = blocks.add_big(b, n, sums)
        if first >= 0 and out.first_big[row] < 0:
            out.first_big[row] = t + first


@njit(nogil=True, cache=True)
def add_heads(b: F64, n: int, heads: int, head: F64) -> int:
    """The first counted tokens of a sample into head [2, 8]; returns how many it holds now."""
    for i in range(n):
        if heads == head.shape[1]:
            break
        if b[blocks.W + i] > 0.0:
            head[0, heads] = b[blocks.Q + i]
            head[1, heads] = b[blocks.P + i]
            heads += 1
    return heads


@njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def add_histogram(settings: Settings, b: F64, n: int, slot: NDArray[np.uint32], out: I64) -> None:
    """The histogram of |Δ|: bucket by the bits of its float32 form."""
    base, buckets = np.int32(settings.hist_base), np.int32(settings.hist_buckets)
    for i in range(n):
        bits = np.float32(abs(b[blocks.RAW + i])).view(np.int32)
        bucket = min(max((bits >> np.int32(17)) - base, np.int32(0)), buckets - np.int32(1))
        bucket += buckets if b[blocks.RAW + i] < 0.0 else np.int32(0)
        slot[i] = np.uint32(bucket if bits != 0 else buckets + buckets)
    for i in range(n):
        out[slot[i]] += 1


@njit(nogil=True, cache=True)
def add_q_profile(b: F64, n: int, slot: NDArray[np.uint32], out: F64) -> None:
    """The profile by q, in buckets of half a nat, without bucket 0 (see `finish_q_profile`)."""
    count = 0
    for i in range(n):
        slot[count] = np.uint32(i)
        count += b[blocks.Q + i] <= -0.5
    for k in range(count):
        i = slot[k]
        blocks.add_token(b, i, out[int(min(-2.0 * b[blocks.Q + i], 31.0))])


def finish_q_profile(out: Totals) -> None:
    """Bucket 0 (q > −½) holds most tokens of a trained policy: it gets what the others leave.

    Rounding is relative to Σ|x| over all tokens, as for any other sum.
    """
    left = out.rows[:, blocks.AT_PROFILE : blocks.AT_PROFILE + 8].sum(axis=0)
    left -= out.q_profile[1:].sum(axis=0)
    out.q_profile[0] = left if left[0] > 0.0 else 0.0  # counts are exact


@njit(nogil=True, cache=True)
def digits(value: int) -> int:
    """Binary digits of value >= 0."""
    count = 0
    while value > 0:
        value >>= 1
        count += 1
    return count


@njit(nogil=True, cache=True)
def add_profiles(b: F64, n: int, t0: int, length: int, out: Totals, run: F64, block: F64) -> None:
    """Profiles by position, and the sums of the block into `block` [8].

    The buckets are runs of positions: cut the block where any of them changes and add whole runs.
    """
    t, end = t0, t0 + n
    near, far, part = digits(t), digits(length - 1 - t), 16 * t // length
    block[:] = 0.0
    while t < end:
        part_end = ((part + 1) * length + 15) >> 4
        far_end = length - (1 << (far - 1)) if far > 0 else length
        stop = min(min(end, 1 << near), min(part_end, far_end))
        run[:] = 0.0
        if stop - t < SHORT_RUN:  # cheaper than setting up the vector loop
            for i in range(t - t0, stop - t0):
                blocks.add_token(b, i, run)
        else:
            blocks.add_run(b, t - t0, stop - t0, run)
        add_eight(run, out.position[min(near, 23)])
        add_eight(run, out.from_end[min(far, 23)])
        add_eight(run, out.relative[part])
        add_eight(run, block)
        t = stop
        near += t == 1 << near
        far -= t == far_end
        while ((part + 1) * length + 15) >> 4 <= t < end:  # several parts where length < 16
            part += 1
    for t in range(t0, min(end, 8)):
        blocks.add_token(b, t - t0, out.first[t])
    for t in range(max(t0, length - 8), end):
        blocks.add_token(b, t - t0, out.last[length - 1 - t])


@njit(nogil=True, cache=True)
def add_eight(values: F64, target: F64) -> None:
    """target [8] += values [8]."""
    for c in range(8):
        target[c] += values[c]


@njit(nogil=True, cache=True)
def add_worst(b: F64, n: int, start: int, row: int, out: Totals) -> None:
    """Keep the K largest |Δ|; an equal one later is not worse."""
    size, k = out.worst_size, out.worst_size.size
    if k == 0 or out.max_abs[row] <= size[k - 1]:
        return
    for i in range(n):
        value = abs(b[blocks.RAW + i])
        if value > size[k - 1]:
            j = k - 1
            while j > 0 and size[j - 1] < value:
                size[j] = size[j - 1]
                out.worst_token[j] = out.worst_token[j - 1]
                out.worst_row[j] = out.worst_row[j - 1]
                j -= 1
            size[j] = value
            out.worst_token[j] = start + i
            out.worst_row[j] = row


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def keep_window(b: F64, n: int, t: int, counted: bool, window: Window) -> None:
    """Copy n tokens of the block into the lag window, positions t and on; zeros behind them."""
    begin, end = MARGIN + t, MARGIN + t + n
    for values in window:
        values[begin : end + MARGIN + ROUND_UP] = 0.0
    if not counted:
        return
    ws, qs, ps = window.w[begin:end], window.q[begin:end], window.p[begin:end]
    for i in range(n):
        ws[i] = b[blocks.W + i]
        qs[i] = b[blocks.Q + i]
        ps[i] = b[blocks.P + i]
    exp_p, exp_minus_q = window.exp_p[begin:end], window.exp_minus_q[begin:end]
    for i in range(n):
        exp_p[i] = b[blocks.W + i] * b[blocks.EP + i]
        exp_minus_q[i] = b[blocks.W + i] / b[blocks.EQ + i]


@njit(nogil=True, cache=True)
def scan_lags(
    lags: I64, size: int, settings: Settings, window: Window, out: Totals, row: int
) -> None:
    """LAG_COLUMNS of q[t] against p[t + lag] for each of lags [L]; the first are all near 0."""
    near = out.lag_totals.shape[0]
    sums = np.zeros(8)
    no_clamp = deepest(window, size) <= settings.clamp
    for k in range(lags.size):
        lag = lags[k]
        n = size - abs(lag)
        if n <= 0:
            continue
        known = lag - lags[0]
        if k >= near and 0 <= known < near:  # a padding that short was scanned already
            out.lag_count[row, k] = out.lag_count[row, known]
            out.lag_size[row, k] = out.lag_size[row, known]
            continue
        sums[:] = 0.0
        cheap = no_clamp and k < near and lag != 0
        if not (cheap and add_near_lag(window, lag, size, sums)):
            add_lag(window, max(0, -lag), max(0, lag), n, settings.clamp, sums)
        out.lag_count[row, k] = sums[0]
        out.lag_size[row, k] = sums[1]
        if k < near:
            out.lag_totals[k] += sums


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def deepest(window: Window, size: int) -> float:
    """The largest −q or −p of the window."""
    qs, ps = window.q[MARGIN : MARGIN + size], window.p[MARGIN : MARGIN + size]
    low = 0.0
    for i in range(size):
        low = min(low, min(qs[i], ps[i]))
    return -low


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_near_lag(window: Window, lag: int, size: int, sums: F64) -> bool:
    """`add_lag` where nothing is clamped, twice as fast; False: too few digits, nothing is added.

    Σ k3 = Σ e^p e^(−q) − n − Σ p + Σ q. This cancels where the log-probs agree at the lag, as
    they do at lag 0, at the lag of a shifted sample, or where a sample repeats one value.
    """
    n, at_p = (size + ROUND_UP) & ~ROUND_UP, MARGIN + lag
    w_q, w_p = window.w[MARGIN : MARGIN + n], window.w[at_p : at_p + n]
    qs, ps = window.q[MARGIN : MARGIN + n], window.p[at_p : at_p + n]
    shrunk, grown = window.exp_minus_q[MARGIN : MARGIN + n], window.exp_p[at_p : at_p + n]
    count = size_of = rho = sq = sp = sqq = spp = sqp = 0.0
    for i in range(n):
        q, p = w_p[i] * qs[i], w_q[i] * ps[i]
        count += w_q[i] * w_p[i]
        size_of += abs(p - q)
        rho += shrunk[i] * grown[i]
        sq += q
        sp += p
        sqq += q * qs[i]
        spp += p * ps[i]
        sqp += q * p
    k3 = rho - count - sp + sq
    if k3 < LAG_DIGITS * (rho + count - sp - sq):
        return False
    for c, total in enumerate((count, size_of, k3, sq, sp, sqq, spp, sqp)):
        sums[c] += total
    return True


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_lag(window: Window, at_q: int, at_p: int, n: int, clamp: float, sums: F64) -> None:
    """LAG_COLUMNS of q[at_q + i] against p[at_p + i] for i below n, added to sums [8]."""
    at_q, at_p = MARGIN + at_q, MARGIN + at_p
    w_q, w_p = window.w[at_q : at_q + n], window.w[at_p : at_p + n]
    qs, ps = window.q[at_q : at_q + n], window.p[at_p : at_p + n]
    count = size = k3 = sq = sp = sqq = spp = sqp = 0.0
    for i in range(n):
        both = w_q[i] * w_p[i]
        q, p = both * qs[i], both * ps[i]
        d = min(max(p - q, -clamp), clamp)
        count += both
        size += abs(d)
        k3 += k3_at(d)
        sq += q
        sp += p
        sqq += q * q
        spp += p * p
        sqp += q * p
    for c, total in enumerate((count, size, k3, sq, sp, sqq, spp, sqp)):
        sums[c] += total


@njit(nogil=True, cache=True)
def trim(offsets: I64, mask: NDArray[np.uint8], first: I64, last: I64) -> None:
    """First and one past the last token with mask 1 into first, last [S]; equal where none."""
    for s in range(first.size):
        begin, end = offsets[s], offsets[s + 1]
        while end > begin and mask[end - 1] == 0:
            end -= 1
        while begin < end and mask[begin] == 0:
            begin += 1
        first[s], last[s] = (begin, end) if begin < end else (offsets[s], offsets[s])


def live_spans(block: PairBlock) -> tuple[I64, I64]:
    """`layout.live_spans`, reading no more of the mask than it must."""
    first, last = block.offsets[:-1].copy(), block.offsets[1:].copy()
    if block.mask is not None:
        trim(read_only(block.offsets), read_only(block.mask), first, last)
    return first, last


def new_window(size: int) -> Window:
    """Scratch space for the lag scan."""
    return Window(*np.zeros((len(Window._fields), size + 3 * MARGIN)))


def log_positions(longest: int) -> F64:
    """ln(1 + t) for t below `longest`."""
    return np.log1p(np.arange(longest, dtype=np.float64))
