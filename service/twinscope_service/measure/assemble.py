"""What compiled and torch engines do after the pass over tokens: from sample rows to a Summary.

Profiles by length, group and version lag are sums of sample rows, so only the pass itself differs
between these engines. (The reference engine computes all of it from tokens, on its own.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twinscope_service.measure import layout
from twinscope_service.measure.merge import sort_rows
from twinscope_service.measure.records import (
    COLUMN,
    F64,
    I64,
    PROFILE_COLUMNS,
    PROFILES,
    SIDE_COLUMNS,
    PairBlock,
    SampleRows,
    Summary,
    WorstToken,
)

_PROFILE_OF_ROW = [COLUMN[name] for name in PROFILE_COLUMNS]


@dataclass(frozen=True)
class Measured:
    """What a pass over the tokens of a block found; rows as in `layout.sample_order`."""

    coverage: I64  # [len(COVERAGE)]
    sums: F64  # [S, len(COLUMNS)]
    side: F64 | None  # [S, len(SIDE_COLUMNS)]
    max_abs: F64  # [S]
    extremes: F64  # [len(EXTREMES)]
    bounds: I64
    histogram: I64  # [2, HIST_BUCKETS]
    profiles: dict[str, F64]  # all of PROFILES but `length`
    lags: F64  # [len(LAGS), len(LAG_COLUMNS)]
    scan: layout.LagScan
    heads: layout.Heads
    span_profiles: F64  # [len(layout.span_pieces(block)), len(PROFILE_COLUMNS)]
    temperature: dict[float, F64]
    worst: list[tuple[int, int]]  # (token index in N, row), worst first


def summarise(block: PairBlock, order: I64, first: I64, found: Measured) -> Summary:
    """The Summary of `block`; `first` [S] are the first live tokens, in block order."""
    values, known = layout.attributes(block, order, first, found.scan, found.heads)
    rows = SampleRows(
        keys=block.sample_keys[order].reshape(block.samples, 16),
        sums=found.sums,
        side=found.side,
        max_abs=found.max_abs,
        attributes=values,
        known=known,
        groups=layout.group_labels(block, order),
    )
    by_row = found.sums[:, _PROFILE_OF_ROW]
    return Summary(
        coverage=found.coverage,
        samples=block.samples,
        sums=found.sums.sum(axis=0),
        side=np.zeros(len(SIDE_COLUMNS)) if found.side is None else found.side.sum(axis=0),
        extremes=found.extremes,
        bounds=found.bounds,
        histogram=found.histogram,
        profiles={**found.profiles, "length": _length_profile(found.sums, by_row)},
        lags=found.lags,
        version_lag=_version_lags(block, order, by_row, found.span_profiles),
        groups=_groups(block, order, by_row),
        temperature=found.temperature,
        rows=sort_rows(rows),
        worst=_worst(block, order, found.worst),
    )


def _length_profile(sums: F64, by_row: F64) -> F64:
    buckets = PROFILES["length"]
    bucket = layout.bit_length(sums[:, COLUMN["length"]].astype(np.int64), buckets)
    profile = np.zeros((buckets, by_row.shape[1]))
    np.add.at(profile, bucket, by_row)
    return profile


def _version_lags(block: PairBlock, order: I64, by_row: F64, spans: F64) -> dict[int, F64]:
    """Whole samples from their rows; samples with version spans from their pieces."""
    found: dict[int, F64] = {}
    pieces = layout.span_pieces(block)
    whole = layout.version_lags(block)
    if whole is not None:
        lag, known = whole[0][order], whole[1][order].copy()
        known &= ~np.isin(order, [sample for sample, *_ in pieces])
        known &= by_row[:, PROFILE_COLUMNS.index("n")] > 0
        for value in np.unique(lag[known]):
            found[int(value)] = by_row[known & (lag == value)].sum(axis=0)
    for (*_, lag_of_piece), sums in zip(pieces, spans, strict=True):
        if sums[0] > 0:
            found[lag_of_piece] = found.get(lag_of_piece, 0) + sums
    return found


def _groups(block: PairBlock, order: I64, by_row: F64) -> dict[tuple[str, str], F64]:
    found = {}
    for name, labels in layout.group_labels(block, order).items():
        column = np.array(labels, dtype=object)
        for label in sorted(set(labels) - {""}):
            found[name, label] = by_row[column == label].sum(axis=0)
    return found


def _worst(block: PairBlock, order: I64, found: list[tuple[int, int]]) -> tuple[WorstToken, ...]:
    return tuple(sorted(describe_token(block, int(order[row]), index) for index, row in found))


def describe_token(block: PairBlock, sample: int, index: int) -> WorstToken:
    """The record of token `index` (on the token axis N) of `sample`."""
    q, p = float(block.rollout_logprobs[index]), float(block.train_logprobs[index])
    return WorstToken(
        minus_abs=-abs(p - q),
        sample_key=block.sample_keys[sample].tobytes().hex(),
        position=index - int(block.offsets[sample]),
        q=q,
        p=p,
        token_id=-1 if block.token_ids is None else int(block.token_ids[index]),
        sample_id="" if block.sample_ids is None else block.sample_ids[sample],
    )
