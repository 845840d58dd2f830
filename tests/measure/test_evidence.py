"""Kept samples: the right ones, the same however the data were split, readable as a trace."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from pair_blocks import make_block, random_block, take

from twinscope.wire.codec import decode
from twinscope_service.join.gather import paired_blocks
from twinscope_service.measure import evidence
from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.evidence import Evidence, collect, merge_evidence, to_batch, to_body
from twinscope_service.measure.records import COLUMN, MeasureOptions, PairBlock

OPTIONS = MeasureOptions(worst_samples=3, random_samples=2)


def kept(block: PairBlock) -> Evidence:
    """The evidence of a block."""
    return collect(block, build_engine("reference").measure(block, OPTIONS), OPTIONS)


def names(found: Evidence) -> list[list[str]]:
    """Ids of the worst samples, and of those chosen by chance."""
    return [[s.sample_id for s in group] for group in (found.worst, found.chance)]


def test_the_worst_samples_are_those_that_add_most_to_k3() -> None:
    """In order, and never a sample without any difference."""
    p = [[-1.0], [-1.5], [-3.0], [-1.1]]
    ids = tuple("abcd")
    found = kept(make_block([[-1.0]] * 4, p, sample_ids=ids))
    assert names(found)[0] == ["c", "b", "d"]
    assert "a" not in names(kept(make_block([[-1.0]] * 2, p[:2], sample_ids=("a", "b"))))[0]


def test_any_split_keeps_the_same_samples() -> None:
    """A monoid: shards merge to what one pass would have kept, in either order."""
    block = random_block(1, [6] * 20, sides=True)
    whole = kept(block)
    parts = [kept(take(block, range(k, 20, 3))) for k in range(3)]
    a = merge_evidence(merge_evidence(parts[0], parts[1], OPTIONS), parts[2], OPTIONS)
    b = merge_evidence(parts[2], merge_evidence(parts[1], parts[0], OPTIONS), OPTIONS)
    assert names(a) == names(b) == names(whole)
    assert len(whole.worst) == 3
    assert len(whole.chance) == 2


def test_kept_samples_are_a_trace_that_measures_the_same() -> None:
    """Through the bytes of a trace file, back into a block, with every array."""
    block = random_block(2, [6] * 20, sides=True)
    block = dataclasses.replace(block, token_ids=np.arange(120, dtype=np.int32))
    body = to_body(kept(block), run="r", step=7)
    assert body is not None
    batch = decode(body)
    assert batch.sample_ids is not None
    assert {"token_ids", "mask", "ref_logprobs", "prompt_ids"} <= set(batch.tensors)
    places = [block.sample_ids.index(name) for name in batch.sample_ids if block.sample_ids]
    engine = build_engine("reference")
    (read,) = paired_blocks(batch, block_tokens=10_000)
    found, expected = (engine.measure(b, OPTIONS) for b in (read, take(block, places)))
    for name in ("n", "k3", "abs", "qp"):
        assert found.sums[COLUMN[name]] == pytest.approx(expected.sums[COLUMN[name]], rel=1e-14)


def test_a_long_sample_is_cut_around_its_worst_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evidence has a bounded size; `part` says where the kept part begins."""
    monkeypatch.setattr(evidence, "MOST_TOKENS", 10)
    p = np.full(100, -1.0)
    p[70] = -9.0
    batch = to_batch(kept(make_block([[-1.0] * 100], [p])), run="r", step=0)
    assert batch is not None
    assert batch.part == {"worst": 1, "first_token": [65]}
    assert batch.tensors["train_logprobs"].tolist().index(-9.0) == 5


def test_nothing_measured_keeps_nothing() -> None:
    """No batch rather than an empty one."""
    assert to_body(kept(make_block([], [])), run="r", step=0) is None


def test_context_shows_the_tokens_around() -> None:
    """Inside the sample only."""
    ids = np.arange(10, dtype=np.int32)
    block = make_block([[-1.0] * 4, [-2.0] * 6], [[-1.0] * 4, [-2.0] * 6], token_ids=ids)
    found = evidence.context(block, 5, width=2)
    assert found["offset"] == [-1, 0, 1, 2]
    assert found["token_ids"] == [4, 5, 6, 7]
