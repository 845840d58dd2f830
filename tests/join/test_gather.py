"""Pairs become blocks: the same tokens, whatever way the samples came in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from batches import Sample, batch_of, make_samples
from hypothesis import given, settings
from hypothesis import strategies as st
from joining import Desk, measure

from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode, encode
from twinscope_service.join.gather import gather, paired_blocks, train_temperature
from twinscope_service.measure.records import Summary


def assert_same(found: Summary, expected: Summary) -> None:
    """Counts exactly; sums to rounding (relative to the sum of magnitudes over few tokens)."""
    np.testing.assert_array_equal(found.coverage, expected.coverage)
    np.testing.assert_array_equal(found.histogram, expected.histogram)
    np.testing.assert_array_equal(found.extremes, expected.extremes)
    np.testing.assert_array_equal(found.rows.keys, expected.rows.keys)
    np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found.side, expected.side, rtol=1e-11, atol=1e-11)
    assert found.worst == expected.worst


def _parts(samples: Sequence[Sample], dice: random.Random) -> list[list[Sample]]:
    """The samples in random order, cut at random places."""
    shuffled = dice.sample(samples, len(samples))
    cuts = sorted(dice.randrange(len(samples) + 1) for _ in range(dice.randrange(5)))
    bounds = [0, *cuts, len(samples)]
    return [shuffled[low:high] for low, high in pairwise(bounds)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 24), named=st.booleans())
def test_any_order_and_any_split_give_what_the_whole_batch_gives(
    seed: int, count: int, named: bool
) -> None:
    """Three sides, cut and shuffled independently, a tenth sent twice."""
    dice = random.Random(seed)
    samples = make_samples(seed, count)
    expect = {"rollout": count, "train": count, "ref": count}
    posts: list[Batch] = []
    for side in ("rollout", "train", "ref"):
        for part in _parts(samples, dice):
            step = 0 if side == "train" else dice.choice([None, 0])
            posts.append(batch_of(part, side, step=step, named=named, expect=expect))
    if named:  # without ids a repeated part is told apart by the id of its batch, not by the join
        posts += dice.sample(posts, 1 + len(posts) // 10)
    dice.shuffle(posts)
    desk = Desk()

    for post in posts:
        desk.send(post)

    assert len(desk.pairs) == count
    assert desk.join.waiting_samples == desk.join.waiting_tokens == 0
    assert desk.join.steps[0].complete
    whole = _with_ref(batch_of(samples, "paired", step=0, named=named), samples)
    expected = measure(paired_blocks(whole, block_tokens=10**9))
    assert_same(desk.measured(block_tokens=dice.choice([1, 50, 10**9])), expected)


def _with_ref(batch: Batch, samples: Sequence[Sample]) -> Batch:
    ref = np.concatenate([s.ref for s in samples]).astype(np.float32)
    return replace(batch, tensors={**batch.tensors, "ref_logprobs": ref})


def test_a_token_counts_if_both_masks_let_it() -> None:
    """Train's mask and rollout's; a side without one excludes nothing."""
    sample = next(s for s in make_samples(2, 20) if len(s.ids) >= 8)
    n = len(sample.ids)
    one, two = np.ones(n, np.uint8), np.ones(n, np.uint8)
    one[0], two[1] = 0, 0
    desk = Desk()
    desk.send(batch_of([replace(sample, mask=one)], "rollout"))
    desk.send(batch_of([replace(sample, mask=two)], "train", step=0))
    desk.send(batch_of([replace(sample, name="other", mask=one)], "rollout"))
    desk.send(batch_of([replace(sample, name="other")], "train", step=0))

    coverage = dict(zip(("received", "counted"), desk.measured().coverage[:2], strict=True))
    assert coverage == {"received": 2 * n, "counted": 2 * n - 3}


def test_what_rounding_puts_above_zero_is_a_certain_token_and_no_marker() -> None:
    """Up to 1e-5 nats: read as 0 on either side; beyond it stays what it is, for all to see."""
    p = np.array([3e-7, -0.5, 1.2e-5, 1.0, -2.0], np.float32)
    q = np.array([-1e-4, 1e-5, -0.1, -0.1, -2.0], np.float32)
    arrays = {"offsets": np.array([0, 5]), "rollout_logprobs": q, "train_logprobs": p}
    (block,) = paired_blocks(Batch("r", "paired", 0, arrays), block_tokens=100)

    expected_p = np.array([0.0, -0.5, 1.2e-5, 1.0, -2.0], np.float32)
    np.testing.assert_array_equal(block.train_logprobs, expected_p)
    np.testing.assert_array_equal(block.rollout_logprobs, np.minimum(q, 0.0))
    assert p[0] > 0.0  # the batch itself is not written to


def test_side_information_goes_with_its_sample() -> None:
    """Per-token, per-sample and per-prompt values of either side, in the order of the pairs."""
    samples = [s for s in make_samples(4, 12) if len(s.ids) > 2][:4]
    train = _tagged(batch_of(samples, "train", step=0), samples, "train")
    order = [2, 0, 3, 1]
    rollout = _tagged(
        batch_of([samples[i] for i in order], "rollout"), [samples[i] for i in order], "rollout"
    )
    desk = Desk()
    desk.send(rollout)
    desk.send(train)

    (block,) = gather(desk.pairs, desk.batches.__getitem__, block_tokens=10**9)

    assert block.sample_ids == tuple(s.name for s in samples)
    first = np.array([s.ids[0] for s in samples])
    assert block.cached_tokens is not None
    assert block.entropy is not None
    assert block.prompt_offsets is not None
    assert block.prompt_ids is not None
    np.testing.assert_array_equal(block.cached_tokens, first)
    np.testing.assert_array_equal(block.entropy, np.concatenate([s.ids for s in samples]))
    np.testing.assert_array_equal(block.prompt_ids, np.concatenate([s.prompt for s in samples]))
    assert block.prompt_offsets.tolist() == [0, 4, 8, 12, 16]
    assert block.groups == {"engine": tuple(s.name for s in samples)}
    assert block.version_spans == tuple((i, 1, int(s.ids[0])) for i, s in enumerate(samples))
    assert block.logsumexp_T is not None
    assert block.logsumexp_T.shape == (2, block.tokens)


def _tagged(batch: Batch, samples: Sequence[Sample], side: str) -> Batch:
    """The batch with values that name their sample and token."""
    ids = np.concatenate([s.ids for s in samples])
    first = np.array([s.ids[0] for s in samples], np.int32)
    tensors = dict(batch.tensors)
    header = {"run": "r", "side": side, "sample_ids": list(batch.sample_ids or ())}
    if side == "train":
        header |= {"step": 0, "temperatures": [0.5, 1.0]}
        tensors["entropy"] = ids.astype(np.float32)
        tensors["logsumexp_T"] = np.stack([ids, ids + 1]).astype(np.float32)
        tensors["prompt_ids"] = np.concatenate([s.prompt for s in samples])
        tensors["prompt_offsets"] = np.arange(0, 4 * len(samples) + 1, 4, dtype=np.int64)
    else:
        header["groups"] = {"engine": [s.name for s in samples]}
        header["version_spans"] = [[i, 1, int(first[i])] for i in range(len(samples))]
        tensors["cached_tokens"] = first
    return decode(b"".join(encode(header, {k: (v, v.shape) for k, v in tensors.items()})))


def test_blocks_never_mix_what_is_known_with_what_is_not() -> None:
    """None means unknown for every sample of a block: sources that tell more are kept apart."""
    a, b = make_samples(5, 2, longest=10)
    known = batch_of([a], "paired", step=0)
    entropy = np.zeros(known.tokens, np.float32)
    desk = Desk()
    desk.send(replace(known, tensors={**known.tensors, "entropy": entropy}))
    desk.send(batch_of([b], "paired", step=0))

    blocks = list(gather(desk.pairs, desk.batches.__getitem__, block_tokens=10**9))
    assert [block.entropy is None for block in blocks] == [False, True]


@pytest.mark.parametrize(
    ("applied", "sampling", "expected"),
    [(None, {"temperature": 0.7}, 1.0), (0.7, None, 0.7), (True, {"temperature": 0.6}, 0.6),
     (True, None, 1.0), (False, {"temperature": 0.6}, 1.0), (-1, None, 1.0), ("0.7", None, 1.0)],
)  # fmt: skip
def test_the_trainers_temperature_is_taken_from_its_header(
    applied: object, sampling: dict[str, float] | None, expected: float
) -> None:
    """A number, or true for the sampling temperature; anything else says nothing."""
    assert train_temperature({"temperature_applied": applied}, sampling) == expected
