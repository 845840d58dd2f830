"""Where tokens and samples lie: live spans, the order of rows, attributes. Shared by all engines.

Nothing here touches a log-prob; it is integer bookkeeping over samples (axis S) in numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinscope_service.measure.records import (
    ATTRIBUTE,
    ATTRIBUTES,
    F64,
    I64,
    LAG_MIN_TOKENS,
    LAGS,
    PairBlock,
)

HEAD = 8  # tokens at the start of a sample that its row carries
PROMPT_WINDOW = 512  # ids at the end of a prompt that a response id is looked up in


def key_order(keys: NDArray[np.uint8]) -> I64:
    """Stable order of 16-byte keys [S,16], as bytes compare."""
    halves = np.ascontiguousarray(keys).reshape(-1, 16).view(">u8")
    return np.lexsort((halves[:, 1], halves[:, 0])).astype(np.int64)


def repeated_keys(keys: NDArray[np.uint8]) -> I64:
    """Indices of the sorted `keys` [S,16] that occur more than once."""
    repeated = np.zeros(len(keys), bool)
    same = (keys[1:] == keys[:-1]).all(axis=1)
    repeated[1:] |= same
    repeated[:-1] |= same
    return np.flatnonzero(repeated).astype(np.int64)


def sample_order(block: PairBlock) -> I64:
    """Sample indices sorted by key, [S]. Rows of a Summary come in this order.

    Equal keys (a group that sampled the same response twice) are told apart by their log-probs,
    so that the order depends on the samples alone and not on how they arrived.
    """
    order = key_order(block.sample_keys)
    spots = repeated_keys(block.sample_keys[order])
    if len(spots):
        order[spots] = sorted(order[spots].tolist(), key=lambda s: _content(block, s))
    return order


def _content(block: PairBlock, sample: int) -> tuple[bytes, bytes]:
    here = slice(int(block.offsets[sample]), int(block.offsets[sample + 1]))
    pair = block.rollout_logprobs[here].tobytes() + block.train_logprobs[here].tobytes()
    return block.sample_keys[sample].tobytes(), hashlib.blake2b(pair).digest()


def live_spans(block: PairBlock) -> tuple[I64, I64]:
    """First and one past the last token with mask 1, per sample; equal where there is none."""
    begin, end = block.offsets[:-1], block.offsets[1:]
    if block.mask is None:
        return begin.copy(), end.copy()
    live = np.flatnonzero(block.mask)
    low, high = np.searchsorted(live, begin), np.searchsorted(live, end)
    some = low < high
    padded = np.append(live, 0)
    first = np.where(some, padded[np.minimum(low, len(live))], begin)
    last = np.where(some, padded[np.maximum(high, 1) - 1] + 1, begin)
    return first.astype(np.int64), last.astype(np.int64)


def bit_length(values: I64, buckets: int) -> I64:
    """Bucket of a position or length: its number of binary digits (0, 1, 2-3, 4-7 ...), capped."""
    return np.minimum(np.frexp(values.astype(np.float64))[1], buckets - 1).astype(np.int64)


@dataclass(frozen=True)
class LagScan:
    """How well q[t] fits p[t + lag], per row and scanned lag; the first lags are LAGS."""

    lags: I64  # [S, len(LAGS) + 2] the last two: +pad_left, -pad_left; 0 where there is none
    count: F64  # [S, len(LAGS) + 2] pairs
    size: F64  # [S, len(LAGS) + 2] Σ|q[t] - p[t + lag]|, clamped


@dataclass(frozen=True)
class Heads:
    """How every row begins."""

    values: F64  # [S, 2, HEAD] q and p of the first counted tokens; NaN beyond the last
    first_big: I64  # [S] t of the first |Δ| > 2; -1: none


def scanned_lags(block: PairBlock, order: I64) -> I64:
    """The lags to scan, [S, len(LAGS) + 2], rows in `order`."""
    pad = np.zeros(block.samples, np.int64)
    if block.pad_left is not None:
        pad = np.maximum(block.pad_left.astype(np.int64), 0)[order]
    return np.column_stack([np.tile(np.array(LAGS), (block.samples, 1)), pad, -pad])


def attributes(
    block: PairBlock, order: I64, first: I64, scan: LagScan, heads: Heads
) -> tuple[F64, I64]:
    """Attributes [S, len(ATTRIBUTES)] and the bit mask of the known ones [S], rows in `order`.

    `first` [S] is the first live token per sample (in block order), as `live_spans` gives it.
    """
    values = np.zeros((block.samples, len(ATTRIBUTES)))
    known = np.zeros(block.samples, np.int64)
    for name, column in _given(block):
        usable = np.isfinite(column) if column.dtype.kind == "f" else np.greater_equal(column, 0)
        _put(values, known, name, column[order].astype(np.float64), usable[order])
    _best_lags(values, known, scan)
    _put(values, known, "first_big", heads.first_big.astype(np.float64), heads.first_big >= 0)
    for i in range(HEAD):
        there = ~np.isnan(heads.values[:, 0, i])
        _put(values, known, f"head_q{i}", heads.values[:, 0, i], there)
        _put(values, known, f"head_p{i}", heads.values[:, 1, i], there)
    for name, hashes in _context_hashes(block, first):
        _put(values, known, name, hashes[order], hashes[order] >= 0)
    return values, known


def _context_hashes(block: PairBlock, first: I64) -> Iterator[tuple[str, F64]]:
    """52 bits of a hash of the prompt ids, and of (prompt, first response id); -1: no response."""
    if block.token_ids is None or block.prompt_ids is None or block.prompt_offsets is None:
        return
    prompts, firsts = np.full((2, block.samples), -1.0)
    for s in range(block.samples):
        if first[s] == block.offsets[s + 1]:
            continue
        prompt = block.prompt_ids[block.prompt_offsets[s] : block.prompt_offsets[s + 1]]
        context = hashlib.blake2b(prompt.tobytes(), digest_size=8)
        prompts[s] = _52_bits(context.digest())
        context.update(block.token_ids[first[s] : first[s] + 1].tobytes())
        firsts[s] = _52_bits(context.digest())
    yield "prompt_hash", prompts
    yield "first_hash", firsts


def _52_bits(digest: bytes) -> int:
    """As many bits as a float64 holds exactly."""
    return int.from_bytes(digest, "little") >> 12


def occurred_before(
    block: PairBlock, ids: NDArray[np.int32], window: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Per token [N]: its id occurs earlier in the live response; earlier there or in the prompt.

    Only the first `window` tokens of a live span are looked at (the rest is False), and the last
    PROMPT_WINDOW of the prompt. Masked tokens inside the live span (tool output) count as
    occurrences, padding does not.
    """
    first, last = live_spans(block)
    response, seen = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
    for s in range(block.samples):
        end = min(last[s], first[s] + window)
        here = ids[first[s] : end]
        _, start, inverse = np.unique(here, return_index=True, return_inverse=True)
        again = start[inverse] < np.arange(len(here))
        response[first[s] : end] = again
        prompt = _prompt(block, s)[-PROMPT_WINDOW:]
        seen[first[s] : end] = again | np.isin(here, prompt)
    return response, seen


def _prompt(block: PairBlock, sample: int) -> NDArray[np.int32]:
    if block.prompt_ids is None or block.prompt_offsets is None:
        return np.zeros(0, np.int32)
    return block.prompt_ids[block.prompt_offsets[sample] : block.prompt_offsets[sample + 1]]


def _given(block: PairBlock) -> Iterator[tuple[str, NDArray[Any]]]:
    names = "pad_left cached_tokens turn pack_slot rollout_version train_version advantage reward"
    for name in names.split():
        column = getattr(block, name)
        if column is not None:
            yield name, column
    if block.prompt_offsets is not None:
        yield "prompt_length", np.diff(block.prompt_offsets)


def _put(values: F64, known: I64, name: str, column: F64, usable: NDArray[np.bool_]) -> None:
    values[usable, ATTRIBUTE[name]] = column[usable]
    known[usable] |= 1 << ATTRIBUTE[name]


def best_lags(scan: LagScan) -> tuple[F64, F64, F64]:
    """[S] the lag with the smallest mean |q[t] − p[t + lag]|, that mean, and the one at lag 0.

    Ties go to the lag nearest to 0. A mean over too few pairs is infinite: not known.
    """
    enough = scan.count >= LAG_MIN_TOKENS
    mean = np.where(enough, scan.size / np.maximum(scan.count, 1), np.inf)
    by_distance = np.lexsort((scan.lags, np.abs(scan.lags)), axis=1)
    ranked = np.take_along_axis(mean, by_distance, axis=1)
    lags = np.take_along_axis(scan.lags, by_distance, axis=1)
    best = np.argmin(ranked, axis=1)[:, None]
    chosen = np.take_along_axis(lags, best, 1)[:, 0].astype(np.float64)
    return chosen, ranked.min(axis=1), mean[:, LAGS.index(0)]


def _best_lags(values: F64, known: I64, scan: LagScan) -> None:
    best, at_best, at_zero = best_lags(scan)
    _put(values, known, "best_lag", best, np.isfinite(at_best))
    _put(values, known, "best_lag_abs", at_best, np.isfinite(at_best))
    _put(values, known, "lag0_abs", at_zero, np.isfinite(at_zero))


def group_labels(block: PairBlock, order: I64) -> dict[str, tuple[str, ...]]:
    """Group labels with rows in `order`."""
    return {name: tuple(labels[s] for s in order) for name, labels in block.groups.items()}


def version_lags(block: PairBlock) -> tuple[I64, NDArray[np.bool_]] | None:
    """train_version − rollout_version per sample [S] and where it is known; None: nowhere."""
    if block.rollout_version is None or block.train_version is None:
        return None
    known = (block.rollout_version >= 0) & (block.train_version >= 0)
    return block.train_version - block.rollout_version, known


def span_pieces(block: PairBlock) -> list[tuple[int, int, int, int]]:
    """Samples whose rollout version changes inside, cut up: (sample, begin, end, version lag).

    begin and end index the token axis N. Tokens before a sample's first span have its
    `rollout_version`. Empty without `version_spans` or `train_version`.
    """
    if not block.version_spans or block.train_version is None:
        return []
    changes: dict[int, list[tuple[int, int]]] = {}
    for sample, first, version in block.version_spans:
        changes.setdefault(sample, []).append((first, version))
    pieces = []
    for sample in sorted(changes):
        begin, end = int(block.offsets[sample]), int(block.offsets[sample + 1])
        steps = sorted(changes[sample])
        if steps[0][0] > 0:
            given = -1 if block.rollout_version is None else int(block.rollout_version[sample])
            steps.insert(0, (0, given))
        edges = [*(min(begin + first, end) for first, _ in steps), end]
        train = int(block.train_version[sample])
        for (_, version), low, high in zip(steps, edges, edges[1:], strict=False):
            if version >= 0 and train >= 0 and low < high:
                pieces.append((sample, low, high, train - version))
    return pieces
