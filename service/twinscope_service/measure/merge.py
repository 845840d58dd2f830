"""The monoid: `merge(a, b)` is the Summary that one pass over both inputs would have given.

Associative and commutative with `empty()` as identity; counts exactly, float64 sums to rounding.
So ranks, shards, devices and time windows all add up, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import TypeVar

import numpy as np

from twinscope_service.measure.layout import key_order, repeated_keys
from twinscope_service.measure.records import (
    ATTRIBUTES,
    BOUND_TEMPERATURES,
    COLUMNS,
    COVERAGE,
    EXTREMES,
    F64,
    HIST_BUCKETS,
    I64,
    LAG_COLUMNS,
    LAGS,
    PROFILE_COLUMNS,
    PROFILES,
    ROW_LIMIT,
    SIDE_COLUMNS,
    MeasureOptions,
    SampleRows,
    Summary,
)

Key = TypeVar("Key")


def empty() -> Summary:
    """The Summary of no tokens: the identity of `merge`."""
    return Summary(
        coverage=np.zeros(len(COVERAGE), np.int64),
        samples=0,
        sums=np.zeros(len(COLUMNS)),
        side=np.zeros(len(SIDE_COLUMNS)),
        extremes=np.full(len(EXTREMES), -np.inf),
        bounds=np.zeros(len(BOUND_TEMPERATURES), np.int64),
        histogram=np.zeros((2, HIST_BUCKETS), np.int64),
        profiles={name: np.zeros((n, len(PROFILE_COLUMNS))) for name, n in PROFILES.items()},
        lags=np.zeros((len(LAGS), len(LAG_COLUMNS))),
        version_lag={},
        groups={},
        temperature={},
        rows=empty_rows(),
        worst=(),
    )


def empty_rows() -> SampleRows:
    """No sample rows: also what is left of a Summary whose rows were given up to save space."""
    return SampleRows(
        keys=np.zeros((0, 16), np.uint8),
        sums=np.zeros((0, len(COLUMNS))),
        side=None,
        max_abs=np.zeros(0),
        attributes=np.zeros((0, len(ATTRIBUTES))),
        known=np.zeros(0, np.int64),
    )


def merge(a: Summary, b: Summary, *, worst_tokens: int = MeasureOptions.worst_tokens) -> Summary:
    """What one pass over the inputs of `a` and of `b` would have measured.

    The caller sees to it that no sample is in both: a Summary cannot tell a second copy from a
    second sample with the same key (a group may sample the same response twice).
    """
    return Summary(
        coverage=a.coverage + b.coverage,
        samples=a.samples + b.samples,
        sums=a.sums + b.sums,
        side=a.side + b.side,
        extremes=np.maximum(a.extremes, b.extremes),
        bounds=a.bounds + b.bounds,
        histogram=a.histogram + b.histogram,
        profiles={name: a.profiles[name] + b.profiles[name] for name in PROFILES},
        lags=a.lags + b.lags,
        version_lag=_add(a.version_lag, b.version_lag),
        groups=_add(a.groups, b.groups),
        temperature=_add(a.temperature, b.temperature),
        rows=merge_rows(a.rows, b.rows),
        worst=tuple(sorted(chain(a.worst, b.worst)))[:worst_tokens],
    )


def merge_all(
    summaries: Iterable[Summary], *, worst_tokens: int = MeasureOptions.worst_tokens
) -> Summary:
    """`merge` over any number of summaries, pairwise, so that rows are copied log2(n) times."""
    level = list(summaries) or [empty()]
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [reduce(lambda a, b: merge(a, b, worst_tokens=worst_tokens), p) for p in pairs]
    return level[0]


def without_rows(summary: Summary) -> Summary:
    """The same totals without the per-sample rows, for long retention."""
    return replace(summary, rows=empty_rows())


def merge_rows(a: SampleRows, b: SampleRows) -> SampleRows:
    """Sorted union of the rows; `side` and groups that one half lacks are 0 and "" there."""
    if not len(b.keys):
        return a
    if not len(a.keys):
        return b
    return sort_rows(
        SampleRows(
            keys=np.concatenate([a.keys, b.keys]),
            sums=np.concatenate([a.sums, b.sums]),
            side=_union_side(a, b),
            max_abs=np.concatenate([a.max_abs, b.max_abs]),
            attributes=np.concatenate([a.attributes, b.attributes]),
            known=np.concatenate([a.known, b.known]),
            groups=_union_groups(a, b),
        )
    )


def sort_rows(rows: SampleRows) -> SampleRows:
    """Rows by key, the first ROW_LIMIT of them; rows with the same key by their content, so that
    the order is canonical. Keys are hashes: what is kept of more is a uniform sample, and the same
    one whatever was merged first.

    No rows at all are always `empty_rows()`: which side columns there would be is not kept.
    """
    if not len(rows.keys):
        return empty_rows()
    order = key_order(rows.keys)
    spots = repeated_keys(rows.keys[order])
    if len(spots):
        order[spots] = sorted(order[spots].tolist(), key=lambda i: _content(rows, i))
    elif len(order) <= ROW_LIMIT and np.array_equal(order, np.arange(len(order))):
        return rows
    return _take(rows, order[:ROW_LIMIT])


def _content(rows: SampleRows, i: int) -> tuple[object, ...]:
    return (
        rows.keys[i].tobytes(),
        rows.sums[i].tolist(),
        float(rows.max_abs[i]),
        [] if rows.side is None else rows.side[i].tolist(),
        rows.attributes[i].tolist(),
        int(rows.known[i]),
        [rows.groups[name][i] for name in sorted(rows.groups)],
    )


def _take(rows: SampleRows, order: I64) -> SampleRows:
    return SampleRows(
        keys=rows.keys[order],
        sums=rows.sums[order],
        side=None if rows.side is None else rows.side[order],
        max_abs=rows.max_abs[order],
        attributes=rows.attributes[order],
        known=rows.known[order],
        groups={name: tuple(labels[i] for i in order) for name, labels in rows.groups.items()},
    )


def _union_side(a: SampleRows, b: SampleRows) -> F64 | None:
    if a.side is None and b.side is None:
        return None
    halves = [
        np.zeros((len(rows.keys), len(SIDE_COLUMNS))) if rows.side is None else rows.side
        for rows in (a, b)
    ]
    return np.concatenate(halves)


def _union_groups(a: SampleRows, b: SampleRows) -> dict[str, tuple[str, ...]]:
    names = sorted({*a.groups, *b.groups})
    return {
        name: a.groups.get(name, ("",) * len(a.keys)) + b.groups.get(name, ("",) * len(b.keys))
        for name in names
    }


def _add(a: Mapping[Key, F64], b: Mapping[Key, F64]) -> dict[Key, F64]:
    keys = [*a, *(key for key in b if key not in a)]
    return {
        key: a[key] + b[key] if key in a and key in b else (a if key in a else b)[key]
        for key in keys
    }
