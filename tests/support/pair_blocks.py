"""Pair blocks for the measure tests: ragged, with specials, with side information; and comparisons.

`blocks` is a hypothesis strategy; everything it draws is small enough for the reference engine.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from twinscope_service.measure import layout, reference
from twinscope_service.measure.records import (
    COLUMN,
    COLUMNS,
    COVERAGE,
    PROFILE_COLUMNS,
    SIDE_COLUMNS,
    MeasureOptions,
    PairBlock,
    SampleRows,
    Summary,
)

OPTIONS = MeasureOptions(worst_tokens=8, lag_window=32)
SPECIALS = (np.nan, np.inf, -np.inf, -9999.0, -3.4e38, 0.3, 0.0, -0.0, -1.0, -1000.0, -1e-30, -98.0)
SAMPLE_ARRAYS = ("pad_left", "cached_tokens", "rollout_version", "train_version")


def key_of(name: str) -> NDArray[np.uint8]:
    """A sample key."""
    return np.frombuffer(hashlib.blake2b(name.encode(), digest_size=16).digest(), np.uint8)


def make_block(
    q: Sequence[Sequence[float]], p: Sequence[Sequence[float]], **side: Any
) -> PairBlock:
    """A block from one list per sample and side; `side`: other fields of PairBlock."""
    keys = [key_of(str(i)) for i in range(len(q))]
    fields: dict[str, Any] = {
        "offsets": np.concatenate([[0], np.cumsum([len(x) for x in q])]).astype(np.int64),
        "rollout_logprobs": np.array([x for sample in q for x in sample], np.float32),
        "train_logprobs": np.array([x for sample in p for x in sample], np.float32),
        "sample_keys": np.array(keys, np.uint8).reshape(len(q), 16),
    }
    return PairBlock(**(fields | side))


def random_block(seed: int, lengths: Sequence[int], *, sides: bool = False) -> PairBlock:
    """A healthy-looking block of the given lengths; `sides`: with all side information."""
    rng = np.random.default_rng(seed)
    n, s = sum(lengths), len(lengths)
    q = -rng.exponential(1.0, n)
    p = np.minimum(q + rng.normal(0, 0.1, n), 0)
    block = make_block([[]] * s, [[]] * s)
    fields: dict[str, Any] = {
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "rollout_logprobs": q.astype(np.float32),
        "train_logprobs": p.astype(np.float32),
        "sample_keys": np.array([key_of(f"{seed} {i}") for i in range(s)], np.uint8).reshape(s, 16),
        "mask": (rng.random(n) < 0.85).astype(np.uint8),
    }
    if sides:
        fields |= side_information(rng, lengths)
    return dataclasses.replace(block, **fields)


def side_information(rng: np.random.Generator, lengths: Sequence[int]) -> dict[str, Any]:
    """Every optional field, with unknown values among them."""
    n, s = sum(lengths), len(lengths)
    prompts = rng.integers(0, 6, s)
    spans = [(i, int(rng.integers(0, length)), 3) for i, length in enumerate(lengths) if length > 4]
    return {
        "sample_ids": tuple(f"sample {i}" for i in range(s)),
        "token_ids": rng.integers(-1, 40, n).astype(np.int32),
        "ref_logprobs": np.where(rng.random(n) < 0.1, np.nan, -rng.exponential(1, n)).astype("f4"),
        "entropy": np.where(rng.random(n) < 0.1, np.nan, rng.exponential(1, n)).astype("f4"),
        "logsumexp_T": rng.normal(20, 1, (3, n)).astype(np.float32),
        "temperatures": (0.7, 1.0, 1.3),
        "kept_mass": rng.uniform(-0.1, 1.1, n).astype(np.float32),
        "sampled_rank": rng.integers(-1, 5, n).astype(np.int32),
        "prompt_ids": rng.integers(0, 40, int(prompts.sum())).astype(np.int32),
        "prompt_offsets": np.concatenate([[0], np.cumsum(prompts)]).astype(np.int64),
        "pad_left": rng.integers(-1, 9, s).astype(np.int32),
        "cached_tokens": rng.integers(-1, 9, s).astype(np.int32),
        "turn": rng.integers(0, 3, s).astype(np.int32),
        "pack_slot": rng.integers(0, 3, s).astype(np.int32),
        "rollout_version": rng.integers(-1, 4, s).astype(np.int64),
        "train_version": rng.integers(-1, 6, s).astype(np.int64),
        "advantage": np.where(rng.random(s) < 0.2, np.nan, rng.normal(0, 1, s)).astype(np.float32),
        "reward": rng.normal(0, 1, s).astype(np.float32),
        "groups": {"engine": tuple(f"e{i % 3}" if i % 4 else "" for i in range(s))},
        "version_spans": tuple(spans[::2]),
    }


@st.composite
def blocks(draw: st.DrawFn, *, sides: bool = True) -> PairBlock:
    """Ragged blocks, some samples empty, special values sprinkled in."""
    lengths = draw(st.lists(st.integers(0, 40), max_size=6))
    seed = draw(st.integers(0, 2**32 - 1))
    block = random_block(seed, lengths, sides=sides and draw(st.booleans()))
    q, p = block.rollout_logprobs.copy(), block.train_logprobs.copy()
    for values in (q, p):
        for _ in range(draw(st.integers(0, 6)) if len(q) else 0):
            values[draw(st.integers(0, len(q) - 1))] = draw(st.sampled_from(SPECIALS))
    mask = block.mask if draw(st.booleans()) else None
    return dataclasses.replace(block, rollout_logprobs=q, train_logprobs=p, mask=mask)


def take(block: PairBlock, samples: Sequence[int]) -> PairBlock:
    """The block of these samples, in this order."""
    bounds = [(int(block.offsets[s]), int(block.offsets[s + 1])) for s in samples]
    index = np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in bounds)])
    changed: dict[str, Any] = {"offsets": _offsets([b - a for a, b in bounds])}
    chosen = np.array(samples, np.int64)
    for field in dataclasses.fields(block):
        value = getattr(block, field.name)
        if not isinstance(value, np.ndarray) or field.name in ("offsets", "prompt_offsets"):
            continue
        if field.name == "prompt_ids":
            continue
        if field.name == "logsumexp_T":
            changed[field.name] = np.ascontiguousarray(value[:, index])
        else:
            by_sample = field.name in _BY_SAMPLE
            changed[field.name] = np.ascontiguousarray(value[chosen if by_sample else index])
    if block.prompt_offsets is not None and block.prompt_ids is not None:
        edges = [(block.prompt_offsets[s], block.prompt_offsets[s + 1]) for s in samples]
        pieces = [block.prompt_ids[a:b] for a, b in edges]
        changed["prompt_ids"] = np.concatenate([np.zeros(0, np.int32), *pieces])
        changed["prompt_offsets"] = _offsets([len(piece) for piece in pieces])
    if block.sample_ids is not None:
        changed["sample_ids"] = tuple(block.sample_ids[s] for s in samples)
    changed["groups"] = {k: tuple(v[s] for s in samples) for k, v in block.groups.items()}
    if block.version_spans is not None:
        place = {s: i for i, s in enumerate(samples)}
        moved = [(place[s], first, v) for s, first, v in block.version_spans if s in place]
        changed["version_spans"] = tuple(moved)
    return dataclasses.replace(block, **changed)


_BY_SAMPLE = {
    "sample_keys", "pad_left", "cached_tokens", "turn", "pack_slot", "rollout_version",
    "train_version", "advantage", "reward",
}  # fmt: skip


def _offsets(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Σ|x| over the counted tokens of a block, per column: what a sum's rounding is relative to."""

    sums: NDArray[np.float64]  # [len(COLUMNS)]
    side: NDArray[np.float64]  # [len(SIDE_COLUMNS)]

    def of(self, what: str, columns: int) -> NDArray[np.float64] | float:
        """The sizes for an array of Summary, by its name and its last axis."""
        if what in ("sums", "rows.sums"):
            return self.sums
        if what in ("side", "rows.side"):
            return self.side
        if columns == len(PROFILE_COLUMNS):
            return self.sums[[COLUMN[name] for name in PROFILE_COLUMNS]]
        return 0.0


def sizes_of(block: PairBlock, options: MeasureOptions = OPTIONS) -> Sizes:
    """From the reference engine's own columns."""
    order, (first, last) = layout.sample_order(block), layout.live_spans(block)
    keep = reference.classify(block) == "counted"
    tokens = reference.counted_tokens(block, order, first, keep, last - first, options)
    columns = reference.token_columns(tokens, options)
    side = reference.side_columns(block, tokens, columns, options)
    return Sizes(
        np.array([np.abs(columns[name]).sum() for name in COLUMNS]),
        np.array([0.0 if side is None else np.abs(side[name]).sum() for name in SIDE_COLUMNS]),
    )


def assert_same(found: Summary, expected: Summary, *, rel: float, sizes: Sizes) -> None:
    """Counts, extremes and worst tokens equal; sums within `rel` of Σ|x|; all else within `rel`."""
    for field in dataclasses.fields(Summary):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(theirs, SampleRows):
            for inner in dataclasses.fields(SampleRows):
                pair = getattr(ours, inner.name), getattr(theirs, inner.name)
                _assert_close(*pair, rel=rel, sizes=sizes, what=f"rows.{inner.name}")
        elif isinstance(theirs, dict):
            assert set(ours) == set(theirs), field.name
            for key, value in theirs.items():
                what = f"{field.name} {key}"
                _assert_close(ours[key], value, rel=rel, sizes=sizes, what=what)
        else:
            _assert_close(ours, theirs, rel=rel, sizes=sizes, what=field.name)


def _assert_close(found: Any, expected: Any, *, rel: float, sizes: Sizes, what: str) -> None:
    if not isinstance(expected, np.ndarray):
        assert found == expected, what
        return
    assert found.shape == expected.shape, what
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    slack = rel * sizes.of(what, expected.shape[-1]) + 1e-290
    exact = found == expected  # infinities
    with np.errstate(invalid="ignore"):
        near = np.abs(found - expected) <= slack + rel * np.abs(expected)
    assert (exact | near).all(), (what, found[~(exact | near)], expected[~(exact | near)])


def count(summary: Summary, name: str) -> int:
    """One coverage count."""
    return int(summary.coverage[COVERAGE.index(name)])
