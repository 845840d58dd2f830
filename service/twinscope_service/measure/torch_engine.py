"""The torch engine: the same measurement as whole-array tensor operations, for CUDA.

A GPU wants few large kernels, so every statistic is a tensor over all N tokens and a sum by sample.
All arithmetic and every accumulator is float64. Only the small results leave the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from twinscope.errors import ConfigError
from twinscope_service.measure import formulas, layout
from twinscope_service.measure.assemble import Measured, summarise
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
    Summary,
)

Tensor = torch.Tensor
Columns = dict[str, Tensor]
_SERIES_TERMS = 18


@dataclass(frozen=True)
class Tokens:
    """Counted tokens [n] on the device, in the order of rows and then of position."""

    index: Tensor  # int64, into N
    row: Tensor  # int64
    t: Tensor  # int64, position in the live span
    length: Tensor  # int64, of the live span
    q: Tensor  # float64
    p: Tensor
    raw: Tensor  # Δ
    d: Tensor  # Δ clamped


class TorchEngine:
    """`MeasureEngine` on a torch device."""

    def __init__(self, *, device: str) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("engine: 'cuda' found no CUDA device; use cpu or torch")
        self.name = "cuda" if device == "cuda" else "torch"
        self._device = torch.device(device)

    def measure(self, block: PairBlock, options: MeasureOptions) -> Summary:
        """Measure every pair of `block`; numbers as the reference engine's, to rounding."""
        order = layout.sample_order(block)
        first, last = layout.live_spans(block)
        with torch.no_grad():
            found = self._pass(block, order, (first, last), options)
        return summarise(block, order, first, found)

    def _pass(
        self, block: PairBlock, order: I64, spans: tuple[I64, I64], options: MeasureOptions
    ) -> Measured:
        classes, keep = self._classify(block)
        tokens = self._gather(block, order, spans, keep, options)
        columns = token_columns(tokens, options)
        sums = by_row(columns, COLUMNS, tokens.row, block.samples)
        sums[:, COLUMN["length"]] = (spans[1] - spans[0])[order]
        side = self._side(block, tokens, columns, options)
        lags, scan = lag_statistics(tokens, layout.scanned_lags(block, order), options)
        return Measured(
            coverage=coverage(block, classes, tokens, sums, options),
            sums=sums,
            side=None if side is None else by_row(side, SIDE_COLUMNS, tokens.row, block.samples),
            max_abs=largest_by_row(tokens, block.samples),
            extremes=self._extremes(block, tokens, columns),
            bounds=temperature_bounds(tokens),
            histogram=histogram(tokens),
            profiles=self._profiles(block, tokens, columns),
            lags=lags,
            scan=scan,
            heads=heads(tokens, block.samples),
            span_profiles=self._spans(block, tokens, columns),
            temperature=self._temperatures(block, tokens, options),
            worst=worst(tokens, options.worst_tokens),
        )

    def _up(self, array: NDArray[Any]) -> Tensor:
        """A copy of a numpy array on the device."""
        return torch.tensor(array, device=self._device)

    def _classify(self, block: PairBlock) -> tuple[dict[str, int], Tensor]:
        """Counts of the coverage classes, and which tokens count [N]."""
        q, p = self._up(block.rollout_logprobs), self._up(block.train_logprobs)
        open_ = torch.ones_like(q, dtype=torch.bool)
        if block.mask is not None:
            open_ = self._up(block.mask) != 0
        classes = {"masked_out": int((~open_).sum())}
        tests = {
            "nonfinite": ~(torch.isfinite(q) & torch.isfinite(p)),
            "sentinel": (q <= formulas.SENTINEL) | (p <= formulas.SENTINEL),
            "positive": (q > 0) | (p > 0),
        }
        for name, test in tests.items():
            classes[name] = int((open_ & test).sum())
            open_ = open_ & ~test
        return classes, open_

    def _gather(
        self,
        block: PairBlock,
        order: I64,
        spans: tuple[I64, I64],
        keep: Tensor,
        options: MeasureOptions,
    ) -> Tokens:
        """The counted tokens, sample after sample in `order`."""
        begins, lengths = (
            self._up(block.offsets[:-1][order]),
            self._up(np.diff(block.offsets)[order]),
        )
        row = torch.repeat_interleave(lengths)
        start = torch.cumsum(lengths, 0) - lengths
        inside = torch.arange(len(row), device=self._device) - start[row]
        index = begins[row] + inside
        chosen = keep[index]
        index, row = index[chosen], row[chosen]
        q = self._up(block.rollout_logprobs)[index].double()
        p = self._up(block.train_logprobs)[index].double()
        return Tokens(
            index=index,
            row=row,
            t=index - self._up(spans[0][order])[row],
            length=self._up((spans[1] - spans[0])[order])[row],
            q=q,
            p=p,
            raw=p - q,
            d=(p - q).clamp(-options.clamp, options.clamp),
        )

    def _side(
        self, block: PairBlock, tokens: Tokens, columns: Columns, options: MeasureOptions
    ) -> Columns | None:
        """SIDE_COLUMNS, each [n]; None without side information."""
        found: Columns = {}
        if block.entropy is not None:
            found |= entropy_columns(self._up(block.entropy)[tokens.index].double(), tokens)
        if block.kept_mass is not None:
            kept = self._up(block.kept_mass)[tokens.index].double()
            found |= kept_columns(kept, tokens, options.clamp)
        if block.sampled_rank is not None:
            found |= rank_columns(self._up(block.sampled_rank)[tokens.index].double())
        if block.ref_logprobs is not None:
            ref = self._up(block.ref_logprobs)[tokens.index].double()
            found |= ref_columns(ref, tokens, options.clamp)
        if block.token_ids is not None:
            window = options.lag_window
            response, seen = layout.occurred_before(block, block.token_ids, window)
            known = (self._up(block.token_ids)[tokens.index] >= 0) & (tokens.t < window)
            chosen = {
                "ids": known,
                "seen": self._up(seen)[tokens.index] & known,
                "resp": self._up(response)[tokens.index] & known,
            }
            found |= seen_columns(chosen, tokens, columns["rho_m1"])
        if not found:
            return None
        zero = torch.zeros_like(tokens.q)
        return {name: found.get(name, zero) for name in SIDE_COLUMNS}

    def _extremes(self, block: PairBlock, tokens: Tokens, columns: Columns) -> F64:
        """EXTREMES; −inf where there is no such value."""
        rank = tokens.q[:0]
        if block.sampled_rank is not None:
            rank = self._up(block.sampled_rank)[tokens.index].double()
            rank = rank[rank >= 0]
        found = (
            tokens.raw.abs(),
            tokens.raw,
            -tokens.raw,
            -tokens.q,
            -tokens.p,
            columns["prob_abs"],
            rank,
        )
        return np.array([float(x.max()) if len(x) else -np.inf for x in found])

    def _profiles(self, block: PairBlock, tokens: Tokens, columns: Columns) -> dict[str, F64]:
        """PROFILES but `length`."""
        buckets = profile_buckets(tokens)
        if block.token_ids is not None:
            ids = self._up(block.token_ids)[tokens.index].long()
            hashed = (ids * 2654435761 % 2**32) >> 24
            buckets["token"] = torch.where(ids < 0, -1, hashed)
        values = torch.stack([columns[name] for name in PROFILE_COLUMNS], 1)
        found = {"token": np.zeros((PROFILES["token"], len(PROFILE_COLUMNS)))}
        for name, bucket in buckets.items():
            inside = bucket >= 0
            found[name] = sum_by(values[inside], bucket[inside], PROFILES[name])
        return found

    def _spans(self, block: PairBlock, tokens: Tokens, columns: Columns) -> F64:
        """PROFILE_COLUMNS of every piece of a sample that one weight version sampled."""
        pieces = layout.span_pieces(block)
        values = torch.stack([columns[name] for name in PROFILE_COLUMNS], 1)
        out = np.zeros((len(pieces), len(PROFILE_COLUMNS)))
        for i, (_, begin, end, _) in enumerate(pieces):
            inside = (tokens.index >= begin) & (tokens.index < end)
            out[i] = values[inside].sum(0).cpu().numpy()
        return out

    def _temperatures(
        self, block: PairBlock, tokens: Tokens, options: MeasureOptions
    ) -> dict[float, F64]:
        """T' -> (n, Σk3, Σ|Δ|); see reference.counterfactual_temperatures."""
        own = block.train_temperature
        if block.logsumexp_T is None or block.temperatures is None or own not in block.temperatures:
            return {}
        lse = [self._up(row)[tokens.index].double() for row in block.logsumexp_T]
        logit = own * (tokens.p + lse[block.temperatures.index(own)])
        found = {}
        for temperature, normaliser in zip(block.temperatures, lse, strict=True):
            d = logit / temperature - normaliser - tokens.q
            d = d[torch.isfinite(d)].clamp(-options.clamp, options.clamp)
            sums = (len(d), float(k3(d).sum()), float(d.abs().sum()))
            found[float(temperature)] = np.array(sums, np.float64)
        return found


def k3(d: Tensor) -> Tensor:
    """e^Δ − 1 − Δ in float64, without cancellation; see formulas.k3."""
    small = d.abs() <= 0.5
    near = torch.where(small, d, 0.0)
    series = torch.ones_like(near)
    for n in range(_SERIES_TERMS, 2, -1):
        series = 1.0 + near / n * series
    return torch.where(small, near * near / 2 * series, torch.expm1(d) - d)


def token_columns(tokens: Tokens, options: MeasureOptions) -> Columns:
    """COLUMNS, each float64 [n]; formulas as in reference.token_columns."""
    q, p, d = tokens.q, tokens.p, tokens.d
    rho_m1, inv_m1, k3s = torch.expm1(d), torch.expm1(-d), k3(d)
    r = d.abs() / (-torch.expm1(q)).clamp(min=formulas.NOISE_FLOOR)
    lr = torch.log(r + formulas.LOG_EPSILON)
    x = torch.log1p(tokens.t.double())
    pair = follows(tokens, torch.ones_like(q, dtype=torch.bool))
    big = d.abs() > formulas.DISAGREE
    # fmt: off
    columns: Columns = {
        "n": torch.ones_like(q),
        "length": torch.zeros_like(q),  # a property of the sample, filled in by the caller
        "q": q, "p": p, "qq": q * q, "pp": p * p, "qp": q * p,
        "d_raw": tokens.raw, "abs_raw": tokens.raw.abs(),
        "d": d, "abs": d.abs(), "d2": d**2, "d3": d**3, "d4": d**4, "k3": k3s, "k3_2": k3s**2,
        "rho_m1": rho_m1, "rho2_m1": torch.expm1(2 * d), "inv_rho_m1": inv_m1,
        "mult_m1": torch.expm1(d.abs()),
        **probability_columns(q, p),
        "out_08_12": outside(d, 0.8, 1.2),
        "out_09_11": outside(d, 0.9, 1.1),
        "out_clip": outside(d, options.clip_low, options.clip_high),
        "q_above": d < -formulas.ONE_SIDED, "q_below": d > formulas.ONE_SIDED,
        "confident_disagreement": big & (q > formulas.LOG_HALF),
        "zero_q": q == 0, "zero_p": p == 0, "zero_d": tokens.raw == 0,
        **grid_columns(q, p),
        **midpoint_columns("wp", torch.exp(d / 2), d, (q + p) / 2),
        **midpoint_columns("wm", torch.exp(-d / 2), d, (q + p) / 2),
        "r": r, "r2": r * r, "lr": lr, "lr2": lr * lr, "x": x, "xx": x * x, "xlr": x * lr,
        "lr_lag1_n": pair, "lr_lag1": torch.where(pair, lr * torch.roll(lr, 1), 0.0),
        "rho_d": rho_m1 * d, "rho_p": rho_m1 * p, "inv_d": inv_m1 * d, "inv_q": inv_m1 * q,
        "big": big, "big_pair": big & follows(tokens, big),
        **fill_columns(tokens, "q", q, p),
        **fill_columns(tokens, "p", p, q),
    }
    # fmt: on
    return {name: column.double() for name, column in columns.items()}


def probability_columns(q: Tensor, p: Tensor) -> Columns:
    """e^q and e^p, their products, |e^p − e^q| and 1 − e^q."""
    eq, ep = torch.exp(q), torch.exp(p)
    return {
        "prob_abs": (ep - eq).abs(),
        "eq": eq,
        "ep": ep,
        "eqq": eq * eq,
        "epp": ep * ep,
        "eqp": eq * ep,
        "one_minus_eq": -torch.expm1(q),
    }


def midpoint_columns(name: str, weight: Tensor, d: Tensor, m: Tensor) -> Columns:
    """Weighted sums of Δ and m = (q + p)/2."""
    return {
        name: weight,
        f"{name}_d": weight * d,
        f"{name}_m": weight * m,
        f"{name}_dd": weight * d * d,
        f"{name}_dm": weight * d * m,
        f"{name}_mm": weight * m * m,
    }


def grid_columns(q: Tensor, p: Tensor) -> Columns:
    """Where both are at least ¼ away from 0: on the bfloat16 grid, on the float16 grid?"""
    grid = (q.abs() >= formulas.GRID_SMALLEST) & (p.abs() >= formulas.GRID_SMALLEST)
    found = {"grid_n": grid}
    for name, x in (("q", q), ("p", p)):
        found[f"grid_{name}_bf16"] = grid & (x.to(torch.bfloat16).double() == x)
        found[f"grid_{name}_fp16"] = grid & (x.to(torch.float16).double() == x)
    return found


def outside(d: Tensor, low: float, high: float) -> Tensor:
    """ρ outside [low, high]."""
    return (d < float(np.log(low))) | (d > float(np.log(high)))


def follows(tokens: Tokens, these: Tensor) -> Tensor:
    """[n]: the token before (t − 1 of the same sample) was counted and is one of `these` [n]."""
    found = torch.zeros_like(these)
    next_to = (torch.diff(tokens.index) == 1) & (torch.diff(tokens.row) == 0)
    found[1:] = next_to & these[:-1]
    return found


def fill_columns(tokens: Tokens, side: str, value: Tensor, other: Tensor) -> Columns:
    """Whole-number log-probs and what stands on the other side."""
    fill = value == torch.round(value)
    columns = {
        f"fill_{side}": torch.ones_like(value),
        f"fill_{side}_v": value,
        f"fill_{side}_vv": value * value,
        f"fill_{side}_{'p' if side == 'q' else 'q'}": other,
        f"fill_{side}_far": tokens.d.abs() > formulas.FILL_FAR,
        f"fill_{side}_pair": follows(tokens, fill),
    }
    return where_known(fill, columns)


def where_known(known: Tensor, columns: Mapping[str, Tensor]) -> Columns:
    """Zero the columns where the side value is unknown."""
    return {name: torch.where(known, column.double(), 0.0) for name, column in columns.items()}


def entropy_columns(entropy: Tensor, tokens: Tokens) -> Columns:
    """See reference.entropy_columns."""
    known = torch.isfinite(entropy)
    h = torch.where(known, entropy, 0.0)
    surprise, qsurprise = -tokens.p - h, -tokens.q - h
    columns = {"h_n": torch.ones_like(h), "h": h, "hh": h * h}
    columns |= {"ph": tokens.p * h, "dh": tokens.d * h}
    columns |= {"surprise": surprise, "surprise2": surprise**2}
    columns |= {"qsurprise": qsurprise, "qsurprise2": qsurprise**2}
    return where_known(known, columns)


def kept_columns(kept: Tensor, tokens: Tokens, clamp: float) -> Columns:
    """See reference.kept_columns."""
    known = (kept > 0) & (kept <= 1.001)
    log_kept = torch.log(torch.where(known, kept, 1.0))
    d = (tokens.raw - log_kept).clamp(-clamp, clamp)
    columns = {"kept_n": torch.ones_like(d), "kept_log": log_kept}
    return where_known(known, columns | {"kept_k3": k3(d), "kept_abs": d.abs()})


def rank_columns(rank: Tensor) -> Columns:
    """See reference.rank_columns."""
    columns = {"rank_n": torch.ones_like(rank), "rank": rank, "rank_top1": rank == 0}
    return where_known(rank >= 0, columns)


def ref_columns(ref: Tensor, tokens: Tokens, clamp: float) -> Columns:
    """See reference.ref_columns."""
    known = torch.isfinite(ref) & (ref > formulas.SENTINEL) & (ref <= 0)
    ref = torch.where(known, ref, tokens.p)
    d = (ref - tokens.p).clamp(-clamp, clamp)
    columns = {"ref_n": torch.ones_like(d), "ref_k1": -d, "ref_k2": d * d / 2}
    columns |= {"ref_k3": k3(d), "ref_abs": d.abs(), "ref_qp_pr": -tokens.d * d, "ref_pr2": d * d}
    columns["ref_abs_q"] = (tokens.q - ref).clamp(-clamp, clamp).abs()
    return where_known(known, columns)


def seen_columns(chosen: Mapping[str, Tensor], tokens: Tokens, rho_m1: Tensor) -> Columns:
    """n, Δ and e^Δ − 1 over each chosen set of tokens."""
    found: Columns = {}
    for name, which in chosen.items():
        columns = {f"{name}_n": torch.ones_like(rho_m1), f"{name}_d": tokens.d}
        found |= where_known(which, columns | {f"{name}_rho": rho_m1})
    return found


def sum_by(values: Tensor, bucket: Tensor, buckets: int) -> F64:
    """Σ of values [n, C] by bucket [n], as numpy [buckets, C]."""
    out = torch.zeros((buckets, values.shape[1]), dtype=torch.float64, device=values.device)
    return np.asarray(out.index_add_(0, bucket, values).cpu().numpy())


def by_row(columns: Columns, names: tuple[str, ...], row: Tensor, samples: int) -> F64:
    """Σ per sample, [S, len(names)]."""
    return sum_by(torch.stack([columns[name] for name in names], 1), row, samples)


def largest_by_row(tokens: Tokens, samples: int) -> F64:
    """Largest unclamped |Δ| per sample; 0 where nothing was counted."""
    out = torch.zeros(samples, dtype=torch.float64, device=tokens.raw.device)
    out.scatter_reduce_(0, tokens.row, tokens.raw.abs(), "amax")
    return np.asarray(out.cpu().numpy())


def coverage(
    block: PairBlock, classes: dict[str, int], tokens: Tokens, sums: F64, options: MeasureOptions
) -> I64:
    """COVERAGE counts."""
    column = sums.sum(axis=0)
    counts = classes | {
        "received": block.tokens,
        "counted": len(tokens.q),
        "zero_rollout": int(column[COLUMN["zero_q"]]),
        "zero_train": int(column[COLUMN["zero_p"]]),
        "delta_zero": int(column[COLUMN["zero_d"]]),
        "clamped": int((tokens.raw.abs() > options.clamp).sum()),
    }
    return np.array([counts[name] for name in COVERAGE], np.int64)


def temperature_bounds(tokens: Tokens) -> I64:
    """Tokens beyond the bound of each of BOUND_TEMPERATURES."""
    slack = formulas.BOUND_SLACK + formulas.BOUND_SLACK_PER_NAT * tokens.p.abs()
    found = []
    for temperature in BOUND_TEMPERATURES:
        edge = tokens.p * (1.0 / temperature)
        cold = temperature < 1
        beyond = tokens.q < edge - slack if cold else tokens.q > edge + slack
        found.append(int(beyond.sum()))
    return np.array(found, np.int64)


def histogram(tokens: Tokens) -> I64:
    """Counts of |Δ| > 0 by the bits of its float32 form, rows Δ >= 0 and Δ < 0."""
    moved = tokens.raw[tokens.raw != 0]
    bits = moved.abs().float().view(torch.int32).long()
    bucket = ((bits >> 17) - HIST_BASE).clamp(0, HIST_BUCKETS - 1)
    bucket = bucket + HIST_BUCKETS * (moved < 0)
    counts = torch.bincount(bucket, minlength=2 * HIST_BUCKETS)
    return np.asarray(counts.cpu().numpy().reshape(2, HIST_BUCKETS))


def digits(values: Tensor, buckets: int) -> Tensor:
    """Number of binary digits, capped; exact below 2^53."""
    return torch.frexp(values.double()).exponent.long().clamp(max=buckets - 1)


def profile_buckets(tokens: Tokens) -> dict[str, Tensor]:
    """The bucket of every counted token; −1: in none."""
    t, rest = tokens.t, tokens.length - 1 - tokens.t
    return {
        "position": digits(t, PROFILES["position"]),
        "from_end": digits(rest, PROFILES["from_end"]),
        "first": torch.where(t < PROFILES["first"], t, -1),
        "last": torch.where(rest < PROFILES["last"], rest, -1),
        "q": torch.floor(-2 * tokens.q).long().clamp(max=PROFILES["q"] - 1),
        "relative": PROFILES["relative"] * t // tokens.length.clamp(min=1),
    }


def lag_statistics(
    tokens: Tokens, lags: I64, options: MeasureOptions
) -> tuple[F64, layout.LagScan]:
    """Σ of LAG_COLUMNS over LAGS, and the scan of every row over `lags` [S, L]."""
    samples, window = len(lags), options.lag_window
    device = tokens.q.device
    near = tokens.t < window
    spot = tokens.row[near] * window + tokens.t[near]
    where = torch.full((samples * window,), -1, dtype=torch.int64, device=device)
    where[spot] = torch.nonzero(near).reshape(-1)
    lag_of_row = torch.tensor(lags, device=device)
    count, size = np.zeros(lags.shape), np.zeros(lags.shape)
    totals = np.zeros((len(LAGS), len(LAG_COLUMNS)))
    row, t = tokens.row[near], tokens.t[near]
    for k in range(lags.shape[1]):
        other = t + lag_of_row[row, k]
        inside = (other >= 0) & (other < window)
        partner = torch.where(inside, where[row * window + other.clamp(0, window - 1)], -1)
        both = partner >= 0
        values = lag_columns(tokens.q[near][both], tokens.p[partner[both]], options.clamp)
        sums = sum_by(values, row[both], samples)
        count[:, k], size[:, k] = sums[:, 0], sums[:, 1]
        if k < len(LAGS):
            totals[k] = sums.sum(axis=0)
    return totals, layout.LagScan(lags, count, size)


def lag_columns(q: Tensor, p: Tensor, clamp: float) -> Tensor:
    """LAG_COLUMNS [n, 8] of aligned q and p."""
    d = (p - q).clamp(-clamp, clamp)
    return torch.stack([torch.ones_like(q), d.abs(), k3(d), q, p, q * q, p * p, q * p], 1)


def heads(tokens: Tokens, samples: int) -> layout.Heads:
    """The first counted tokens of every row and its first |Δ| > 2."""
    device = tokens.q.device
    counts = torch.bincount(tokens.row, minlength=samples)
    start = torch.cumsum(counts, 0) - counts
    place = torch.arange(len(tokens.row), device=device) - start[tokens.row]
    few = place < layout.HEAD
    values = torch.full((samples, 2, layout.HEAD), torch.nan, dtype=torch.float64, device=device)
    values[tokens.row[few], 0, place[few]] = tokens.q[few]
    values[tokens.row[few], 1, place[few]] = tokens.p[few]
    big = tokens.d.abs() > formulas.DISAGREE
    far = torch.iinfo(torch.int64).max
    first = torch.full((samples,), far, dtype=torch.int64, device=device)
    first.scatter_reduce_(0, tokens.row[big], tokens.t[big], "amin")
    first[first == far] = -1
    return layout.Heads(values.cpu().numpy(), first.cpu().numpy())


def worst(tokens: Tokens, count: int) -> list[tuple[int, int]]:
    """(index, row) of the largest |Δ| > 0; among equals the earlier row and position first."""
    size = tokens.raw.abs()
    if not len(size) or count == 0:
        return []
    edge = torch.topk(size, min(count, len(size))).values[-1]
    candidates = torch.nonzero((size >= edge) & (size > 0)).reshape(-1)
    ranked = candidates[torch.argsort(-size[candidates], stable=True)][:count]
    return list(zip(tokens.index[ranked].tolist(), tokens.row[ranked].tolist(), strict=True))
