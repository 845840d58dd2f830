"""Splitting a batch into posts loses nothing: the parts, put together, are the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from twinscope.capture import capture_side
from twinscope.items import Block, split_block
from twinscope.slabs import SlabPool
from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode


def _block(lengths: list[int], prompts: list[int]) -> Block:
    tokens, samples = sum(lengths), len(lengths)
    rng = np.random.default_rng(tokens)
    cuts = np.cumsum(lengths)[:-1]

    def ragged(values: Any) -> list[Any]:
        return np.split(values, cuts)

    return capture_side(
        "paired",
        3,
        {
            "rollout_logprobs": ragged(-rng.random(tokens)),
            "train_logprobs": ragged(-rng.random(tokens)),
        },
        run="r",
        fields={
            "token_ids": ragged(np.arange(tokens)),
            "mask": ragged(np.arange(tokens) % 3),
            "logsumexp": {0.5: ragged(rng.random(tokens)), 2.0: ragged(rng.random(tokens))},
            "prompt_ids": [np.arange(length) for length in prompts],
            "reward": rng.random(samples),
            "sample_ids": [f"s{n}" for n in range(samples)],
            "groups": {"engine": [f"e{n % 2}" for n in range(samples)]},
            "version_spans": [(s, 0, s) for s in range(samples) if lengths[s]],
        },
        part={"index": 0},
        pool=SlabPool(0),
    )


def _decode(part: Any) -> Batch:
    return decode(b"".join(part.post().pieces))


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    post_bytes=st.integers(1, 2000),
    data=st.data(),
)
def test_parts_put_together_are_the_whole(
    lengths: list[int], post_bytes: int, data: st.DataObject
) -> None:
    """Every tensor, id, label and span, whatever the limit; samples are never cut."""
    prompts = data.draw(st.lists(st.integers(0, 4), min_size=len(lengths), max_size=len(lengths)))
    block = _block(lengths, prompts)
    whole = _decode(split_block(block, 1 << 30)[0])
    parts = split_block(block, post_bytes)
    found = [_decode(part) for part in parts]

    for name in set(whole.tensors) - {"offsets", "prompt_offsets"}:
        axis = 1 if name == "logsumexp_T" else 0
        joined = np.concatenate([batch.tensors[name] for batch in found], axis=axis)
        assert_array_equal(joined, whole.tensors[name])
    assert [n for b in found for n in np.diff(b.offsets)] == lengths
    assert [n for b in found for n in np.diff(b.tensors["prompt_offsets"])] == prompts
    assert sum((b.sample_ids or () for b in found), ()) == whole.sample_ids
    assert sum((b.groups["engine"] for b in found), ()) == whole.groups["engine"]
    firsts = np.cumsum([0] + [b.samples for b in found])
    spans = [
        (s + firsts[i], t, v) for i, b in enumerate(found) for s, t, v in b.version_spans or ()
    ]
    assert spans == list(whole.version_spans or ())
    assert len({part.batch_id for part in parts}) == len(parts)
    assert sum(part.count.tokens for part in parts) == block.tokens
    assert sum(part.nbytes for part in parts) == block.weigh()(block.samples)
    for part in parts:
        assert part.nbytes <= post_bytes or part.last - part.first == 1


def test_parts_are_as_large_as_allowed() -> None:
    """Few large posts, not many small ones; a sample larger than the limit travels alone."""
    block = _block([50] * 40 + [1000], [1] * 41)
    parts = split_block(block, 8_000)

    assert [part.last - part.first for part in parts][-1] == 1
    for part in parts[:-2]:
        assert part.nbytes > 0.75 * 8_000
