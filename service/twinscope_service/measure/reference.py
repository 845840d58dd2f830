"""The reference engine: plain float64 numpy, slow, and short enough to be read as the definition.

Every statistic of records.py appears here once, as a formula over arrays of counted tokens. The
other engines are compared with this one; it is compared with hand-worked values and with
arithmetic of higher precision (tests/measure).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from twinscope_service.measure import formulas, layout
from twinscope_service.measure.merge import sort_rows
from twinscope_service.measure.records import (
    BOUND_TEMPERATURES,
    COLUMN,
    COLUMNS,
    COVERAGE,
    F64,
    HIST_BASE,
    HIST_BUCKETS,
    I64,
    LAG_COLUMNS,
    LAGS,
    PROFILE_COLUMNS,
    PROFILES,
    SIDE_COLUMNS,
    MeasureOptions,
    PairBlock,
    SampleRows,
    Summary,
    WorstToken,
)

Columns = Mapping[str, F64]


@dataclass(frozen=True)
class Tokens:
    """The counted tokens of a block, axis n, in the order of rows and then of position."""

    index: I64  # [n] into the token axis N
    row: I64  # [n] the sample's row in the Summary
    t: I64  # [n] position in the live span
    length: I64  # [n] of the live span
    q: F64  # [n]
    p: F64  # [n]
    raw: F64  # [n] Δ unclamped
    d: F64  # [n] Δ clamped


class ReferenceEngine:
    """`MeasureEngine` in float64 numpy."""

    name = "reference"

    def measure(self, block: PairBlock, options: MeasureOptions) -> Summary:
        """Measure every pair of `block`; see records.py for what each number is."""
        order = layout.sample_order(block)
        first, last = layout.live_spans(block)
        classes = classify(block)
        tokens = counted_tokens(block, order, first, classes == "counted", last - first, options)
        columns = token_columns(tokens, options)
        side = side_columns(block, tokens, columns, options)
        lags, scan = lag_statistics(block, order, tokens, options)
        values, known = layout.attributes(block, order, first, scan, heads(tokens, block.samples))
        sums = by_row(columns, COLUMNS, tokens.row, block.samples)
        sums[:, COLUMN["length"]] = (last - first)[order]
        side_sums = None if side is None else by_row(side, SIDE_COLUMNS, tokens.row, block.samples)
        rows = SampleRows(
            keys=block.sample_keys[order].reshape(block.samples, 16),
            sums=sums,
            side=side_sums,
            max_abs=largest_by_row(tokens, block.samples),
            attributes=values,
            known=known,
            groups=layout.group_labels(block, order),
        )
        rows = sort_rows(rows)
        profile = stack(columns, PROFILE_COLUMNS, len(tokens.q))
        return Summary(
            coverage=coverage(block, classes, columns, tokens, options),
            samples=block.samples,
            sums=sums.sum(axis=0),
            side=np.zeros(len(SIDE_COLUMNS)) if side_sums is None else side_sums.sum(axis=0),
            extremes=extremes(block, tokens, columns),
            bounds=temperature_bounds(tokens),
            histogram=histogram(tokens),
            profiles=profiles(block, tokens, profile),
            lags=lags,
            version_lag=version_lag_profiles(block, tokens, profile),
            groups=group_profiles(block, order, tokens, profile),
            temperature=counterfactual_temperatures(block, tokens, options),
            rows=rows,
            worst=worst_tokens(block, order, tokens, options.worst_tokens),
        )


def classify(block: PairBlock) -> NDArray[np.str_]:
    """The coverage class of every token [N]: the first of these that applies."""
    q, p = block.rollout_logprobs, block.train_logprobs
    masked = np.zeros(len(q), bool) if block.mask is None else block.mask == 0
    return np.select(
        [
            masked,
            ~(np.isfinite(q) & np.isfinite(p)),
            (q <= formulas.SENTINEL) | (p <= formulas.SENTINEL),
            (q > 0) | (p > 0),
        ],
        ["masked_out", "nonfinite", "sentinel", "positive"],
        "counted",
    )


def counted_tokens(
    block: PairBlock,
    order: I64,
    first: I64,
    keep: NDArray[np.bool_],
    length: I64,
    options: MeasureOptions,
) -> Tokens:
    """Gather the tokens where `keep` [N], sample by sample in `order`."""
    spans = [np.arange(block.offsets[s], block.offsets[s + 1]) for s in order]
    index = np.concatenate([np.zeros(0, np.int64), *spans])
    row = np.repeat(np.arange(block.samples), np.diff(block.offsets)[order])
    kept = keep[index]
    index, row = index[kept], row[kept]
    q = block.rollout_logprobs[index].astype(np.float64)
    p = block.train_logprobs[index].astype(np.float64)
    return Tokens(
        index=index,
        row=row,
        t=index - first[order][row],
        length=length[order][row],
        q=q,
        p=p,
        raw=p - q,
        d=np.clip(p - q, -options.clamp, options.clamp),
    )


def token_columns(tokens: Tokens, options: MeasureOptions) -> Columns:
    """COLUMNS, each [n]: what one token adds to its sample's row."""
    q, p, d = tokens.q, tokens.p, tokens.d
    eq, ep = np.exp(q), np.exp(p)
    m = (q + p) / 2
    wp, wm = np.exp(d / 2), np.exp(-d / 2)
    r = formulas.noise_ratio(d, q)
    lr = np.log(r + formulas.LOG_EPSILON)
    x = np.log1p(tokens.t)
    k3 = formulas.k3(d)
    grid = (np.abs(q) >= formulas.GRID_SMALLEST) & (np.abs(p) >= formulas.GRID_SMALLEST)
    neighbour = follows(tokens, np.ones(len(q), bool))
    big = np.abs(d) > formulas.DISAGREE
    # fmt: off
    columns = {
        "n": np.ones_like(q),
        "length": np.zeros_like(q),  # a property of the sample, filled in by the caller
        "q": q, "p": p, "qq": q * q, "pp": p * p, "qp": q * p,
        "d_raw": tokens.raw, "abs_raw": np.abs(tokens.raw),
        "d": d, "abs": np.abs(d), "d2": d**2, "d3": d**3, "d4": d**4, "k3": k3, "k3_2": k3**2,
        "rho_m1": np.expm1(d),
        "rho2_m1": np.expm1(2 * d),
        "inv_rho_m1": np.expm1(-d),
        "mult_m1": np.expm1(np.abs(d)),
        "prob_abs": np.abs(ep - eq),
        "eq": eq, "ep": ep, "eqq": eq * eq, "epp": ep * ep, "eqp": eq * ep,
        "one_minus_eq": -np.expm1(q),
        "out_08_12": outside(d, 0.8, 1.2),
        "out_09_11": outside(d, 0.9, 1.1),
        "out_clip": outside(d, options.clip_low, options.clip_high),
        "q_above": d < -formulas.ONE_SIDED,
        "q_below": d > formulas.ONE_SIDED,
        "confident_disagreement": (np.abs(d) > formulas.DISAGREE) & (q > formulas.LOG_HALF),
        "zero_q": q == 0, "zero_p": p == 0, "zero_d": tokens.raw == 0,
        "grid_n": grid,
        "grid_q_bf16": grid & on_bf16_grid(q),
        "grid_p_bf16": grid & on_bf16_grid(p),
        "grid_q_fp16": grid & on_fp16_grid(q),
        "grid_p_fp16": grid & on_fp16_grid(p),
        "wp": wp, "wp_d": wp * d, "wp_m": wp * m,
        "wp_dd": wp * d * d, "wp_dm": wp * d * m, "wp_mm": wp * m * m,
        "wm": wm, "wm_d": wm * d, "wm_m": wm * m,
        "wm_dd": wm * d * d, "wm_dm": wm * d * m, "wm_mm": wm * m * m,
        "r": r, "r2": r * r, "lr": lr, "lr2": lr * lr, "x": x, "xx": x * x, "xlr": x * lr,
        "lr_lag1_n": neighbour,
        "lr_lag1": np.where(neighbour, lr * np.roll(lr, 1), 0.0),
        "rho_d": np.expm1(d) * d, "rho_p": np.expm1(d) * p,
        "inv_d": np.expm1(-d) * d, "inv_q": np.expm1(-d) * q,
        "big": big, "big_pair": big & follows(tokens, big),
        **fill_columns(tokens, "q", tokens.q, tokens.p),
        **fill_columns(tokens, "p", tokens.p, tokens.q),
    }
    # fmt: on
    return {name: np.asarray(column, np.float64) for name, column in columns.items()}


def follows(tokens: Tokens, these: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[n]: the token before (t − 1 of the same sample) was counted and is one of `these` [n]."""
    next_to = (np.diff(tokens.index) == 1) & (np.diff(tokens.row) == 0)
    return np.append(np.zeros(len(these) and 1, bool), next_to & these[:-1])


def fill_columns(tokens: Tokens, side: str, value: F64, other: F64) -> dict[str, F64]:
    """Whole-number log-probs (0, −1 ...), which no softmax gives by chance: what a fill leaves."""
    fill = np.equal(value, np.rint(value))
    columns = {
        f"fill_{side}": fill.astype(np.float64),
        f"fill_{side}_v": value,
        f"fill_{side}_vv": value * value,
        f"fill_{side}_{'p' if side == 'q' else 'q'}": other,
        f"fill_{side}_far": (np.abs(tokens.d) > formulas.FILL_FAR).astype(np.float64),
        f"fill_{side}_pair": follows(tokens, fill).astype(np.float64),
    }
    return where_known(fill, columns)


def outside(d: F64, low: float, high: float) -> NDArray[np.bool_]:
    """ρ = e^Δ outside [low, high]."""
    below: NDArray[np.bool_] = d < np.log(low)
    return np.asarray(below | (d > np.log(high)))


def on_bf16_grid(x: F64) -> NDArray[np.bool_]:
    """x is a bfloat16 value: the low 16 bits of its float32 form are zero."""
    low_bits = x.astype(np.float32).view(np.uint32) & 0xFFFF
    return np.asarray(np.equal(low_bits, 0))


def on_fp16_grid(x: F64) -> NDArray[np.bool_]:
    """x is a float16 value: it survives the round trip."""
    return np.asarray(np.equal(x.astype(np.float16).astype(np.float64), x))


def side_columns(
    block: PairBlock, tokens: Tokens, columns: Columns, options: MeasureOptions
) -> Columns | None:
    """SIDE_COLUMNS, each [n], 0 where the token has no such side value; None without any."""
    found: dict[str, F64] = {}
    if block.entropy is not None:
        found |= entropy_columns(block.entropy[tokens.index].astype(np.float64), tokens)
    if block.kept_mass is not None:
        kept = block.kept_mass[tokens.index].astype(np.float64)
        found |= kept_columns(kept, tokens, options)
    if block.sampled_rank is not None:
        found |= rank_columns(block.sampled_rank[tokens.index])
    if block.token_ids is not None:
        found |= seen_columns(block, tokens, block.token_ids, options.lag_window)
    if block.ref_logprobs is not None:
        ref = block.ref_logprobs[tokens.index].astype(np.float64)
        found |= ref_columns(ref, tokens, options)
    if not found:
        return None
    zero = np.zeros(len(tokens.q))
    return {name: np.asarray(found.get(name, zero), np.float64) for name in SIDE_COLUMNS}


def where_known(known: NDArray[np.bool_], columns: Mapping[str, F64]) -> dict[str, F64]:
    """Zero the columns where the side value is unknown."""
    return {name: np.where(known, column, 0.0) for name, column in columns.items()}


def entropy_columns(entropy: F64, tokens: Tokens) -> dict[str, F64]:
    """H is the trainer's full-vocabulary entropy; E[−p − H] is 0 if p's law drew the token."""
    known = np.isfinite(entropy)
    h = np.where(known, entropy, 0.0)
    surprise, qsurprise = -tokens.p - h, -tokens.q - h
    return where_known(
        known,
        {
            "h_n": np.ones_like(h),
            "h": h,
            "hh": h * h,
            "ph": tokens.p * h,
            "dh": tokens.d * h,
            "surprise": surprise,
            "surprise2": surprise**2,
            "qsurprise": qsurprise,
            "qsurprise2": qsurprise**2,
        },
    )


def kept_columns(kept: F64, tokens: Tokens, options: MeasureOptions) -> dict[str, F64]:
    """The pair again with the trainer renormalised on the kept set: p' = p − ln kept."""
    known = (kept > 0) & (kept <= 1.001)  # a float32 softmax sum may end just above 1
    log_kept = np.log(np.where(known, kept, 1.0))
    d = np.clip(tokens.raw - log_kept, -options.clamp, options.clamp)
    columns = {
        "kept_n": np.ones_like(d),
        "kept_log": log_kept,
        "kept_k3": formulas.k3(d),
        "kept_abs": np.abs(d),
    }
    return where_known(known, columns)


def seen_columns(
    block: PairBlock, tokens: Tokens, ids: NDArray[np.int32], window: int
) -> dict[str, F64]:
    """Did the id occur before, in the response (`resp`) or there or in the prompt (`seen`)?

    Asked of the first `window` tokens of each live span; the others are in none of these columns.
    """
    known = (ids[tokens.index] >= 0) & (tokens.t < window)
    response, seen = layout.occurred_before(block, ids, window)
    resp, seen = response[tokens.index] & known, seen[tokens.index] & known
    rho = np.expm1(tokens.d)
    found: dict[str, F64] = {}
    for name, chosen in {"ids": known, "seen": seen, "resp": resp}.items():
        columns = {f"{name}_n": np.ones_like(rho), f"{name}_d": tokens.d, f"{name}_rho": rho}
        found |= where_known(chosen, columns)
    return found


def rank_columns(rank: NDArray[np.int32]) -> dict[str, F64]:
    """Rank of the sampled token in the trainer's distribution, 0 the most likely."""
    r = rank.astype(np.float64)
    columns = {"rank_n": np.ones_like(r), "rank": r, "rank_top1": np.where(r == 0, 1.0, 0.0)}
    return where_known(rank >= 0, columns)


def ref_columns(ref: F64, tokens: Tokens, options: MeasureOptions) -> dict[str, F64]:
    """Policy (train p) against ref, the same ruler: Δref = ref − p, so k1 = p − ref."""
    known = np.isfinite(ref) & (ref > formulas.SENTINEL) & (ref <= 0)
    ref = np.where(known, ref, tokens.p)
    d = np.clip(ref - tokens.p, -options.clamp, options.clamp)
    columns = {
        "ref_n": np.ones_like(d),
        "ref_k1": -d,
        "ref_k2": d * d / 2,
        "ref_k3": formulas.k3(d),
        "ref_abs": np.abs(d),
        "ref_qp_pr": -tokens.d * d,
        "ref_pr2": d * d,
        "ref_abs_q": np.abs(np.clip(tokens.q - ref, -options.clamp, options.clamp)),
    }
    return where_known(known, columns)


def stack(columns: Columns, names: tuple[str, ...], n: int) -> F64:
    """The named columns side by side, [n, len(names)]."""
    return np.stack([columns[name] for name in names], axis=1).reshape(n, len(names))


def by_row(columns: Columns, names: tuple[str, ...], row: I64, samples: int) -> F64:
    """Σ per sample, [S, len(names)]."""
    return sum_by(stack(columns, names, len(row)), row, samples)


def sum_by(values: F64, bucket: I64, buckets: int) -> F64:
    """Σ of `values` [n, C] by bucket [n], [buckets, C]."""
    sums = [np.bincount(bucket, column, buckets) for column in values.T]
    return np.stack(sums, axis=1).reshape(buckets, values.shape[1]).astype(np.float64)


def largest_by_row(tokens: Tokens, samples: int) -> F64:
    """Largest unclamped |Δ| per sample; 0 where nothing was counted."""
    largest = np.zeros(samples)
    np.maximum.at(largest, tokens.row, np.abs(tokens.raw))
    return largest


def heads(tokens: Tokens, samples: int) -> layout.Heads:
    """The first counted tokens of every sample, and the first |Δ| > 2."""
    values = np.full((samples, 2, layout.HEAD), np.nan)
    first_big = np.full(samples, -1, np.int64)
    edges = np.searchsorted(tokens.row, np.arange(samples + 1))
    for row, (begin, end) in enumerate(pairwise(edges.tolist())):
        few = slice(begin, min(end, begin + layout.HEAD))
        values[row, 0, : few.stop - begin] = tokens.q[few]
        values[row, 1, : few.stop - begin] = tokens.p[few]
        big = np.flatnonzero(np.abs(tokens.d[begin:end]) > formulas.DISAGREE)
        if len(big):
            first_big[row] = tokens.t[begin + big[0]]
    return layout.Heads(values, first_big)


def coverage(
    block: PairBlock,
    classes: NDArray[np.str_],
    columns: Columns,
    tokens: Tokens,
    options: MeasureOptions,
) -> I64:
    """COVERAGE counts."""
    counts = {name: int((classes == name).sum()) for name in COVERAGE}
    counts["received"] = block.tokens
    counts["zero_rollout"] = int(columns["zero_q"].sum())
    counts["zero_train"] = int(columns["zero_p"].sum())
    counts["delta_zero"] = int(columns["zero_d"].sum())
    counts["clamped"] = int((np.abs(tokens.raw) > options.clamp).sum())
    return np.array([counts[name] for name in COVERAGE], np.int64)


def extremes(block: PairBlock, tokens: Tokens, columns: Columns) -> F64:
    """EXTREMES over counted tokens; −inf where there is no such value."""
    rank = np.zeros(0) if block.sampled_rank is None else block.sampled_rank[tokens.index]
    found = (
        np.abs(tokens.raw),
        tokens.raw,
        -tokens.raw,
        -tokens.q,
        -tokens.p,
        columns["prob_abs"],
        rank[rank >= 0].astype(np.float64),
    )
    return np.array([values.max(initial=-np.inf) for values in found], np.float64)


def temperature_bounds(tokens: Tokens) -> I64:
    """Tokens beyond the bound of each of BOUND_TEMPERATURES."""
    beyond = [formulas.beyond_bound(tokens.q, tokens.p, t).sum() for t in BOUND_TEMPERATURES]
    return np.array(beyond, np.int64)


def histogram(tokens: Tokens) -> I64:
    """Counts of |Δ| > 0 in 64 equal parts of every octave, by the bits of its float32 form."""
    moved = tokens.raw[tokens.raw != 0]
    bits = np.abs(moved).astype(np.float32).view(np.uint32).astype(np.int64)
    bucket = np.clip((bits >> 17) - HIST_BASE, 0, HIST_BUCKETS - 1)
    signs = [np.bincount(bucket[side], minlength=HIST_BUCKETS) for side in (moved > 0, moved < 0)]
    return np.stack(signs).astype(np.int64)


def profile_buckets(block: PairBlock, tokens: Tokens) -> dict[str, I64]:
    """The bucket of every counted token in each of PROFILES; −1: in none."""
    t, length = tokens.t, tokens.length
    rest = length - 1 - t
    return {
        "position": layout.bit_length(t, PROFILES["position"]),
        "from_end": layout.bit_length(rest, PROFILES["from_end"]),
        "first": np.where(t < PROFILES["first"], t, -1),
        "last": np.where(rest < PROFILES["last"], rest, -1),
        "q": np.minimum(np.floor(-2 * tokens.q).astype(np.int64), PROFILES["q"] - 1),
        "length": layout.bit_length(length, PROFILES["length"]),
        "relative": PROFILES["relative"] * t // np.maximum(length, 1),
        "token": token_bucket(block, tokens),
    }


def token_bucket(block: PairBlock, tokens: Tokens) -> I64:
    """A hash of the token id in 0..255; −1 where the id is unknown."""
    if block.token_ids is None:
        return np.full(len(tokens.q), -1)
    ids = block.token_ids[tokens.index].astype(np.int64)
    return np.where(ids < 0, -1, (ids * 2654435761 % 2**32) >> 24)


def profiles(block: PairBlock, tokens: Tokens, values: F64) -> dict[str, F64]:
    """PROFILES, each [buckets, len(PROFILE_COLUMNS)], from `values` [n, len(PROFILE_COLUMNS)]."""
    found = {}
    for name, bucket in profile_buckets(block, tokens).items():
        inside = bucket >= 0
        found[name] = sum_by(values[inside], bucket[inside], PROFILES[name])
    return found


def lag_statistics(
    block: PairBlock, order: I64, tokens: Tokens, options: MeasureOptions
) -> tuple[F64, layout.LagScan]:
    """Σ of LAG_COLUMNS [lags, C] for q[t] against p[t + lag], and what each sample's scan found.

    A sample whose left padding is known is also scanned at lags +pad_left and −pad_left.
    """
    totals = np.zeros((len(LAGS), len(LAG_COLUMNS)))
    lags = layout.scanned_lags(block, order)
    count, size = np.zeros(lags.shape), np.zeros(lags.shape)
    edges = np.searchsorted(tokens.row, np.arange(block.samples + 1))
    for row in range(block.samples):
        here = np.arange(edges[row], edges[row + 1])
        here = here[tokens.t[here] < options.lag_window]
        q, p = np.full(options.lag_window, np.nan), np.full(options.lag_window, np.nan)
        q[tokens.t[here]], p[tokens.t[here]] = tokens.q[here], tokens.p[here]
        sums = np.array([lagged(q, p, int(lag), options.clamp) for lag in lags[row]])
        totals += sums[: len(LAGS)]
        count[row], size[row] = sums[:, 0], sums[:, 1]
    return totals, layout.LagScan(lags, count, size)


def lagged(q: F64, p: F64, lag: int, clamp: float) -> list[float]:
    """LAG_COLUMNS of q[t] against p[t + lag], both [window] with NaN where not counted."""
    pairs = max(len(q) - abs(lag), 0)
    a, b = q[max(0, -lag) :][:pairs], p[max(0, lag) :][:pairs]
    both = ~(np.isnan(a) | np.isnan(b))
    return lag_sums(a[both], b[both], clamp)


def lag_sums(q: F64, p: F64, clamp: float) -> list[float]:
    """LAG_COLUMNS of aligned values q [n] and p [n]."""
    d = np.clip(p - q, -clamp, clamp)
    columns = (np.ones_like(q), np.abs(d), formulas.k3(d), q, p, q * q, p * p, q * p)
    return [float(column.sum()) for column in columns]


def version_lag_profiles(block: PairBlock, tokens: Tokens, values: F64) -> dict[int, F64]:
    """Profile by train version − rollout version, with `version_spans` inside samples."""
    lag = np.zeros(block.tokens, np.int64)
    known = np.zeros(block.tokens, bool)
    whole = layout.version_lags(block)
    if whole is not None:
        lengths = np.diff(block.offsets)
        lag, known = np.repeat(whole[0], lengths), np.repeat(whole[1], lengths)
    pieces = layout.span_pieces(block)
    for sample, *_ in pieces:
        known[block.offsets[sample] : block.offsets[sample + 1]] = False
    for _, begin, end, piece_lag in pieces:
        lag[begin:end], known[begin:end] = piece_lag, True
    lag, known = lag[tokens.index], known[tokens.index]
    found = {}
    for value in np.unique(lag[known]):
        found[int(value)] = values[known & (lag == value)].sum(axis=0)
    return found


def group_profiles(
    block: PairBlock, order: I64, tokens: Tokens, values: F64
) -> dict[tuple[str, str], F64]:
    """Profile by every label of every group; samples with the label "" are in none."""
    found = {}
    for name, labels in layout.group_labels(block, order).items():
        of_token = np.array(labels, dtype=object)[tokens.row]
        for label in sorted(set(labels) - {""}):
            found[name, label] = values[of_token == label].sum(axis=0)
    return found


def counterfactual_temperatures(
    block: PairBlock, tokens: Tokens, options: MeasureOptions
) -> dict[float, F64]:
    """T' -> (n, Σk3, Σ|Δ|) with p recomputed at T'.

    p = z/τ − lse(τ) with τ the trainer's own temperature, so z = τ (p + lse(τ)) and
    p(T') = z/T' − lse(T'). Without a row of `logsumexp_T` at τ nothing can be said: empty.
    """
    own = block.train_temperature
    if block.logsumexp_T is None or block.temperatures is None or own not in block.temperatures:
        return {}
    lse = block.logsumexp_T[:, tokens.index].astype(np.float64)
    logit = own * (tokens.p + lse[block.temperatures.index(own)])
    found = {}
    for temperature, normaliser in zip(block.temperatures, lse, strict=True):
        d = logit / temperature - normaliser - tokens.q
        d = np.clip(d[np.isfinite(d)], -options.clamp, options.clamp)
        k3 = formulas.k3(d)
        found[float(temperature)] = np.array([len(d), k3.sum(), np.abs(d).sum()])
    return found


def worst_tokens(
    block: PairBlock, order: I64, tokens: Tokens, count: int
) -> tuple[WorstToken, ...]:
    """The `count` largest |Δ| > 0, unclamped; ties by sample key and position."""
    size = np.abs(tokens.raw)
    ranked = np.argsort(-size, kind="stable")[:count]  # rows are sorted by key, so ties are too
    return tuple(sorted(describe(block, order, tokens, i) for i in ranked if size[i] > 0))


def describe(block: PairBlock, order: I64, tokens: Tokens, i: int) -> WorstToken:
    """The record of counted token `i`."""
    index, sample = int(tokens.index[i]), int(order[tokens.row[i]])
    return WorstToken(
        minus_abs=-abs(float(tokens.raw[i])),
        sample_key=block.sample_keys[sample].tobytes().hex(),
        position=index - int(block.offsets[sample]),
        q=float(tokens.q[i]),
        p=float(tokens.p[i]),
        token_id=-1 if block.token_ids is None else int(block.token_ids[index]),
        sample_id="" if block.sample_ids is None else block.sample_ids[sample],
    )
