"""Pairs become PairBlocks: contiguous arrays of at most so many tokens, ready to measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinscope.wire.batch import Batch
from twinscope.wire.schema import TENSOR_BY_NAME
from twinscope_service.join.arriving import prepare
from twinscope_service.join.records import LOGPROBS, Load, Pair, PairSide, Part
from twinscope_service.measure.records import PairBlock

KEYS = ("offsets", "prompt_offsets", "mask", "ids_digest", *LOGPROBS.values())
# nats; logit − logsumexp of a certain token in float32: logits up to 128 are 7.6e-6 apart and less
ROUNDING = 1e-5
CARRIED = tuple(name for name in TENSOR_BY_NAME if name not in KEYS)  # passed on as they are


@dataclass(frozen=True)
class Source:
    """The batches that hold one pair's sides; pairs of equal sources are gathered together."""

    rollout: int
    train: int
    ref: int | None


@dataclass(frozen=True)
class Shape:
    """What a source can tell; blocks hold pairs of one shape, so that None never means "some"."""

    tensors: tuple[tuple[str, PairSide], ...]  # carried tensor -> the side that gives it
    masked: bool
    with_ref: bool
    temperatures: tuple[float, ...] | None
    train_temperature: float  # already inside the train side's log-probs
    groups: tuple[tuple[str, PairSide], ...]


def gather(pairs: Sequence[Pair], load: Load, *, block_tokens: int) -> Iterator[PairBlock]:
    """The pairs as blocks of about `block_tokens` tokens at most, in order of arrival per shape."""
    shapes: dict[Source, Shape] = {}
    for pair in pairs:
        source = _source(pair)
        if source not in shapes:
            shapes[source] = _shape(source, load)
    by_shape: dict[Shape, list[Pair]] = {}
    for pair in pairs:
        by_shape.setdefault(shapes[_source(pair)], []).append(pair)
    for shape, members in by_shape.items():
        for some in _cut(members, block_tokens):
            yield _block(some, shape, cache(load))  # as many bodies as the block has tokens for


def paired_blocks(batch: Batch, *, block_tokens: int) -> Iterator[PairBlock]:
    """The blocks of one paired batch that needs no join: a trace file."""
    arriving = prepare(batch, seq=0)
    pairs = [
        Pair(
            key=key,
            sample_id=arriving.sample_id(i),
            step=batch.step or 0,
            rollout=arriving.part("rollout", i),
            train=arriving.part("train", i),
            ref=arriving.part("ref", i) if "ref" in arriving.sides else None,
        )
        for i, key in enumerate(arriving.keys)
    ]
    return gather(pairs, lambda _: batch, block_tokens=block_tokens)


def _source(pair: Pair) -> Source:
    return Source(
        pair.rollout.batch, pair.train.batch, None if pair.ref is None else pair.ref.batch
    )


def _shape(source: Source, load: Load) -> Shape:
    """The owner of a tensor is asked first; what both may send is taken from the train side."""
    rollout, train = load(source.rollout), load(source.train)
    tensors = [(name, side) for name in CARRIED if (side := _giver(name, rollout, train))]
    groups: dict[str, PairSide] = dict.fromkeys(train.groups, "train")
    groups.update(dict.fromkeys(rollout.groups, "rollout"))
    masked = "mask" in rollout.tensors or "mask" in train.tensors
    return Shape(
        tensors=tuple(tensors),
        masked=masked,
        with_ref=source.ref is not None,
        temperatures=train.temperatures,
        train_temperature=train_temperature(train.train, rollout.sampling or train.sampling),
        groups=tuple(groups.items()),
    )


def train_temperature(train: Mapping[str, Any] | None, sampling: Mapping[str, Any] | None) -> float:
    """The temperature that the trainer says to have divided by; 1 where it says nothing.

    `temperature_applied` is the number itself, or true for the temperature of `sampling`.
    """
    applied = (train or {}).get("temperature_applied")
    if applied is True:
        applied = (sampling or {}).get("temperature")
    is_number = isinstance(applied, int | float) and not isinstance(applied, bool)
    return float(applied) if is_number and applied > 0 else 1.0  # type: ignore[arg-type, operator]


def _giver(name: str, rollout: Batch, train: Batch) -> PairSide | None:
    first: PairSide = "rollout" if TENSOR_BY_NAME[name].side == "rollout" else "train"
    order: tuple[PairSide, ...] = (
        ("rollout", "train") if first == "rollout" else ("train", "rollout")
    )
    batches = {"rollout": rollout, "train": train}
    return next((side for side in order if name in batches[side].tensors), None)


def _cut(pairs: Sequence[Pair], most: int) -> Iterator[list[Pair]]:
    """Slices of at most `most` tokens; one sample is never cut."""
    some: list[Pair] = []
    tokens = 0
    for pair in pairs:
        if some and tokens + pair.train.tokens > most:
            yield some
            some, tokens = [], 0
        some.append(pair)
        tokens += pair.train.tokens
    if some:
        yield some


def _block(pairs: list[Pair], shape: Shape, load: Load) -> PairBlock:
    """One block: every array of every sample, concatenated in the order of `pairs`."""
    parts: dict[PairSide, list[Part]] = {
        "rollout": [pair.rollout for pair in pairs],
        "train": [pair.train for pair in pairs],
    }
    if shape.with_ref:
        parts["ref"] = [pair.ref for pair in pairs if pair.ref is not None]
    lengths = np.array([pair.train.tokens for pair in pairs], np.int64)
    carried: dict[str, Any] = {}
    for name, side in shape.tensors:
        carried[name] = _collect(name, parts[side], load)
    if "prompt_ids" in carried:
        carried["prompt_offsets"] = _prompt_offsets(parts[dict(shape.tensors)["prompt_ids"]], load)
    return PairBlock(
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        rollout_logprobs=_log_probs("rollout", parts, load),
        train_logprobs=_log_probs("train", parts, load),
        ref_logprobs=_log_probs("ref", parts, load) if shape.with_ref else None,
        sample_keys=np.frombuffer(b"".join(pair.key for pair in pairs), np.uint8).reshape(-1, 16),
        sample_ids=tuple(pair.sample_id for pair in pairs) if pairs[0].sample_id else None,
        mask=_mask(parts, load) if shape.masked else None,
        temperatures=shape.temperatures,
        train_temperature=shape.train_temperature,
        groups={name: _labels(name, parts[side], load) for name, side in shape.groups},
        version_spans=_spans(parts["rollout"], load),
        **carried,
    )


def _runs(parts: Sequence[Part]) -> Iterator[tuple[int, int, int]]:
    """(batch, first sample, behind the last) of neighbours that lie side by side in one batch."""
    numbered = enumerate(parts)
    for (batch, _), members in groupby(
        numbered, key=lambda item: (item[1].batch, item[1].index - item[0])
    ):
        run = [part for _, part in members]
        yield batch, run[0].index, run[-1].index + 1


def _log_probs(
    side: PairSide, parts: Mapping[PairSide, Sequence[Part]], load: Load
) -> NDArray[np.float32]:
    """One side's log-probs, those that rounding put above 0 at 0: a certain token, no marker."""
    values: NDArray[np.float32] = _collect(LOGPROBS[side], parts[side], load)
    above = values > 0.0
    if not above.any():
        return values
    return np.where(above & (values <= ROUNDING), np.float32(0.0), values)


def _collect(name: str, parts: Sequence[Part], load: Load) -> NDArray[Any]:
    """One tensor of all samples; a view where they lie side by side."""
    axis = TENSOR_BY_NAME[name].shape
    pieces = [_piece(load(batch), name, axis, low, high) for batch, low, high in _runs(parts)]
    if len(pieces) == 1:
        return np.ascontiguousarray(pieces[0])
    return np.concatenate(pieces, axis=len(axis) - 1)


def _piece(batch: Batch, name: str, axis: tuple[str, ...], low: int, high: int) -> NDArray[Any]:
    """Samples low..high of one tensor, cut along its last axis: S, N or M."""
    values = batch.tensors[name]
    if axis[-1] == "S":
        return values[low:high]
    offsets = batch.tensors["prompt_offsets"] if axis[-1] == "M" else batch.offsets
    return values[..., int(offsets[low]) : int(offsets[high])]


def _prompt_offsets(parts: Sequence[Part], load: Load) -> NDArray[np.int64]:
    lengths = [
        np.diff(load(batch).tensors["prompt_offsets"][low : high + 1])
        for batch, low, high in _runs(parts)
    ]
    return np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)


def _mask(parts: dict[PairSide, list[Part]], load: Load) -> NDArray[np.uint8]:
    """A token counts if it counts on both sides; a side without a mask excludes nothing."""
    rollout, train = _side_mask(parts["rollout"], load), _side_mask(parts["train"], load)
    return (rollout & train).astype(np.uint8)


def _side_mask(parts: Sequence[Part], load: Load) -> NDArray[np.bool_]:
    pieces = [_mask_piece(load(batch), low, high) for batch, low, high in _runs(parts)]
    counts: NDArray[np.bool_] = np.concatenate(pieces) != 0
    return counts


def _mask_piece(batch: Batch, low: int, high: int) -> NDArray[np.uint8]:
    begin, end = int(batch.offsets[low]), int(batch.offsets[high])
    if "mask" in batch.tensors:
        mask: NDArray[np.uint8] = batch.tensors["mask"][begin:end]
        return mask
    return np.ones(end - begin, np.uint8)


def _labels(name: str, parts: Sequence[Part], load: Load) -> tuple[str, ...]:
    return tuple(
        label for batch, low, high in _runs(parts) for label in load(batch).groups[name][low:high]
    )


def _spans(parts: Sequence[Part], load: Load) -> tuple[tuple[int, int, int], ...] | None:
    """Weight versions inside samples, renumbered to the block. None: no sample has any."""
    found: list[tuple[int, int, int]] = []
    by_batch: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for position, part in enumerate(parts):
        if part.batch not in by_batch:
            by_batch[part.batch] = _spans_by_sample(load(part.batch))
        for first, version in by_batch[part.batch].get(part.index, ()):
            found.append((position, first, version))
    return tuple(found) or None


def _spans_by_sample(batch: Batch) -> dict[int, list[tuple[int, int]]]:
    spans: dict[int, list[tuple[int, int]]] = {}
    for sample, first, version in batch.version_spans or ():
        spans.setdefault(sample, []).append((first, version))
    return spans
