"""The default engine: one fused pass in compiled code (numba), one thread, no torch.

Tokens are read once; everything else happens in buffers that stay in the cache. The compiled code
releases the interpreter lock, so threads of a service measure side by side.
"""

from __future__ import annotations

import math

import numpy as np

from twinscope_service.measure import cpu_blocks, cpu_kernel, cpu_side, layout
from twinscope_service.measure.assemble import Measured, summarise
from twinscope_service.measure.cpu_kernel import Pairs, Settings, Totals
from twinscope_service.measure.cpu_side import read_only
from twinscope_service.measure.records import (
    BOUND_TEMPERATURES,
    COLUMN,
    COLUMNS,
    COVERAGE,
    EXTREME,
    EXTREMES,
    F64,
    HIST_BASE,
    HIST_BUCKETS,
    I64,
    LAG_COLUMNS,
    LAGS,
    PROFILE_COLUMNS,
    PROFILES,
    MeasureOptions,
    PairBlock,
    Summary,
)

_TO_COLUMNS = [cpu_blocks.KERNEL_COLUMNS.index(name) for name in COLUMNS]
_TO_PROFILE = [cpu_blocks.PROFILE.index(name) for name in PROFILE_COLUMNS]
_CLASSES = ("masked_out", "nonfinite", "sentinel", "positive", "clamped")
_EXTREMES = ("abs", "d", "minus_d", "minus_q", "minus_p", "prob_abs")  # order of the kernel


class CpuEngine:
    """`MeasureEngine` on one core."""

    name = "cpu"

    def measure(self, block: PairBlock, options: MeasureOptions) -> Summary:
        """Measure every pair of `block`; numbers as the reference engine's, to rounding."""
        order = layout.sample_order(block)
        first, last = cpu_kernel.live_spans(block)
        pairs = to_pairs(block, order, first, last)
        settings = to_settings(options)
        buffers = cpu_blocks.new_buffers()
        window = cpu_kernel.new_window(options.lag_window)
        totals = new_totals(block.samples, pairs.lags.shape[1], options.worst_tokens)
        side = cpu_side.to_side(block, order)
        side_totals = cpu_side.new_side_totals(block, options.lag_window)
        cpu_kernel.measure_samples(pairs, settings, buffers, window, side, totals, side_totals)
        cpu_kernel.finish_q_profile(totals)
        spans = version_spans(block, pairs, settings, buffers)
        found = to_measured(block, pairs, totals, side_totals, spans)
        return summarise(block, order, first, found)


def to_pairs(block: PairBlock, order: I64, first: I64, last: I64) -> Pairs:
    """The kernel's view of a block."""
    mask = np.zeros(0, np.uint8) if block.mask is None else block.mask
    longest = int((last - first).max(initial=0))
    return Pairs(
        q=read_only(block.rollout_logprobs),
        p=read_only(block.train_logprobs),
        mask=read_only(mask),
        begin=first[order],
        end=last[order],
        lags=layout.scanned_lags(block, order),
        log_position=cpu_kernel.log_positions(longest),
        betas=1.0 / np.array(BOUND_TEMPERATURES),
    )


def to_settings(options: MeasureOptions) -> Settings:
    """The kernel's view of the options."""
    return Settings(
        clamp=float(options.clamp),
        log_low=math.log(options.clip_low),
        log_high=math.log(options.clip_high),
        lag_window=int(options.lag_window),
        hist_base=HIST_BASE,
        hist_buckets=HIST_BUCKETS,
    )


def new_totals(samples: int, lags: int, worst: int) -> Totals:
    """Zeroed output."""
    columns = len(cpu_blocks.PROFILE)
    profiles = {
        name: np.zeros((PROFILES[name], columns))
        for name in ("position", "from_end", "first", "last", "relative")
    }
    return Totals(
        classes=np.zeros(len(_CLASSES), np.int64),
        rows=np.zeros((samples, len(cpu_blocks.KERNEL_COLUMNS))),
        max_abs=np.zeros(samples),
        extremes=np.full(len(_EXTREMES), -np.inf),
        bounds=np.zeros(len(BOUND_TEMPERATURES), np.int64),
        histogram=np.zeros(2 * HIST_BUCKETS + 1, np.int64),
        **profiles,
        q_profile=np.zeros((PROFILES["q"], columns)),
        lag_totals=np.zeros((len(LAGS), len(LAG_COLUMNS))),
        lag_count=np.zeros((samples, lags)),
        lag_size=np.zeros((samples, lags)),
        head=np.full((samples, 2, layout.HEAD), np.nan),
        first_big=np.full(samples, -1, np.int64),
        worst_size=np.zeros(worst),
        worst_token=np.full(worst, -1, np.int64),
        worst_row=np.zeros(worst, np.int64),
        slot=np.zeros(cpu_blocks.BLOCK, np.uint32),
    )


def version_spans(block: PairBlock, pairs: Pairs, settings: Settings, buffers: F64) -> F64:
    """PROFILE_COLUMNS of every piece of a sample that one weight version sampled."""
    pieces = layout.span_pieces(block)
    out = np.zeros((len(pieces), len(cpu_blocks.PROFILE)))
    if pieces:
        edges = np.array([(begin, end) for _, begin, end, _ in pieces], np.int64)
        begins, ends = np.ascontiguousarray(edges.T)
        cpu_kernel.profile_runs(pairs, settings, buffers, begins, ends, out)
    return out[:, _TO_PROFILE]


def to_measured(
    block: PairBlock, pairs: Pairs, totals: Totals, side: cpu_side.SideTotals, spans: F64
) -> Measured:
    """The kernel's output, under the names of records.py."""
    sums = totals.rows[:, _TO_COLUMNS]
    profiles = {
        name: getattr(totals, "q_profile" if name == "q" else name)[:, _TO_PROFILE]
        for name in PROFILES
        if name not in ("length", "token")
    }
    profiles["token"] = side.token[:-1, _TO_PROFILE]
    found = totals.worst_token >= 0
    return Measured(
        coverage=to_coverage(block, totals, sums),
        sums=sums,
        side=cpu_side.side_columns(block, side),
        max_abs=totals.max_abs,
        extremes=to_extremes(totals, int(side.largest_rank[0])),
        bounds=totals.bounds,
        histogram=totals.histogram[:-1].reshape(2, HIST_BUCKETS),
        profiles=profiles,
        lags=totals.lag_totals,
        scan=layout.LagScan(pairs.lags, totals.lag_count, totals.lag_size),
        heads=layout.Heads(totals.head, totals.first_big),
        span_profiles=spans,
        temperature=cpu_side.temperature_sums(block, side),
        worst=list(
            zip(totals.worst_token[found].tolist(), totals.worst_row[found].tolist(), strict=True)
        ),
    )


def to_coverage(block: PairBlock, totals: Totals, sums: F64) -> I64:
    """COVERAGE. The kernel never sees masked ends: they are what is left of `received`."""
    counts = dict(zip(_CLASSES, totals.classes.tolist(), strict=True))
    column = sums.sum(axis=0)
    counts["received"] = block.tokens
    counts["counted"] = int(column[COLUMN["n"]])
    counts["masked_out"] = (
        block.tokens
        - counts["counted"]
        - sum(counts[name] for name in ("nonfinite", "sentinel", "positive"))
    )
    for name, source in (("rollout", "zero_q"), ("train", "zero_p")):
        counts[f"zero_{name}"] = int(column[COLUMN[source]])
    counts["delta_zero"] = int(column[COLUMN["zero_d"]])
    return np.array([counts[name] for name in COVERAGE], np.int64)


def to_extremes(totals: Totals, rank: int) -> F64:
    """EXTREMES; rank < 0: no rank is known."""
    extremes = np.full(len(EXTREMES), -np.inf)
    for name, value in zip(_EXTREMES, totals.extremes, strict=True):
        extremes[EXTREME[name]] = value
    if rank >= 0:
        extremes[EXTREME["rank"]] = rank
    return extremes
