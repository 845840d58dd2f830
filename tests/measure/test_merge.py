"""Summary is a commutative monoid: any split, any order, the same result."""

from __future__ import annotations

import dataclasses
from functools import reduce

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pair_blocks import OPTIONS, assert_same, blocks, random_block, sizes_of, take

from twinscope_service.measure.engine import MeasureEngine, build_engine
from twinscope_service.measure.merge import empty, merge, merge_all, without_rows
from twinscope_service.measure.records import PairBlock, Summary

SLOW = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
K = OPTIONS.worst_tokens


def measured(block: PairBlock) -> Summary:
    """By the reference engine."""
    return build_engine("reference").measure(block, OPTIONS)


@SLOW
@given(a=blocks(), b=blocks())
def test_merge_commutes(a: PairBlock, b: PairBlock) -> None:
    """Exactly: floating addition commutes, and rows have one order."""
    x, y = measured(a), measured(b)
    assert_same(
        merge(x, y, worst_tokens=K), merge(y, x, worst_tokens=K), rel=0.0, sizes=sizes_of(a)
    )


@SLOW
@given(a=blocks(), b=blocks(), c=blocks())
def test_merge_associates(a: PairBlock, b: PairBlock, c: PairBlock) -> None:
    """Counts exactly, sums to rounding."""
    x, y, z = measured(a), measured(b), measured(c)
    left = merge(merge(x, y, worst_tokens=K), z, worst_tokens=K)
    right = merge(x, merge(y, z, worst_tokens=K), worst_tokens=K)
    sizes = [sizes_of(block) for block in (a, b, c)]
    total = dataclasses.replace(
        sizes[0], sums=sum(s.sums for s in sizes), side=sum(s.side for s in sizes)
    )
    assert_same(left, right, rel=1e-12, sizes=total)


@SLOW
@given(block=blocks())
def test_empty_is_the_identity(block: PairBlock) -> None:
    """On both sides, bit for bit."""
    x, sizes = measured(block), sizes_of(block)
    assert_same(merge(x, empty(), worst_tokens=K), x, rel=0.0, sizes=sizes)
    assert_same(merge(empty(), x, worst_tokens=K), x, rel=0.0, sizes=sizes)


@SLOW
@given(block=blocks(), data=st.data())
def test_any_split_merges_to_the_whole(
    engine: MeasureEngine, block: PairBlock, data: st.DataObject
) -> None:
    """Samples dealt to three shards in any way, measured apart, merged in any order."""
    shard = data.draw(st.lists(st.integers(0, 2), min_size=block.samples, max_size=block.samples))
    parts = [
        engine.measure(take(block, [s for s in range(block.samples) if shard[s] == k]), OPTIONS)
        for k in data.draw(st.permutations(range(3)))
    ]
    whole = engine.measure(block, OPTIONS)
    found = reduce(lambda a, b: merge(a, b, worst_tokens=K), parts)
    assert_same(found, whole, rel=1e-12, sizes=sizes_of(block))


def test_merging_many_is_the_same_as_one_after_the_other() -> None:
    """merge_all pairs them up; the result is the same to rounding."""
    block = random_block(8, [7] * 23, sides=True)
    parts = [measured(take(block, [s])) for s in range(23)]
    expected = measured(block)
    assert_same(merge_all(parts, worst_tokens=K), expected, rel=1e-12, sizes=sizes_of(block))
    assert_same(merge_all([], worst_tokens=K), empty(), rel=0.0, sizes=sizes_of(block))


def test_rows_can_be_given_up_and_totals_stay() -> None:
    """What long retention keeps."""
    whole = measured(random_block(8, [7] * 5, sides=True))
    light = without_rows(whole)
    assert len(light.rows.keys) == 0
    np.testing.assert_array_equal(light.sums, whole.sums)


def test_rows_are_bounded_and_what_is_kept_does_not_depend_on_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A uniform sample by key: the smallest keys of all; totals are of every sample."""
    monkeypatch.setattr("twinscope_service.measure.merge.ROW_LIMIT", 7)
    whole = random_block(3, [20 + i for i in range(18)])
    thirds = [measured(take(whole, range(start, 18, 3))) for start in range(3)]
    orders = [reduce(merge, (thirds[i] for i in order)) for order in ((0, 1, 2), (2, 0, 1))]
    smallest = sorted(key.tobytes() for key in whole.sample_keys)[:7]

    for summary in (*orders, measured(whole)):
        assert [key.tobytes() for key in summary.rows.keys] == smallest
        assert summary.samples == 18
        assert summary.coverage.tolist() == orders[0].coverage.tolist()
    assert orders[0].rows.sums.tolist() == orders[1].rows.sums.tolist()
