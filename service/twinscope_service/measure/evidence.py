"""What is kept of the tokens themselves: the worst samples, and some chosen by chance.

The worst are those that add most to mean k3; the others are the smallest by a hash of their key, so
every rank and every merge picks the same ones, as fair a sample as a random draw. Like a Summary,
Evidence is a monoid: `merge_evidence` keeps what one pass over both inputs would have kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinscope.wire.batch import Batch
from twinscope.wire.codec import encode_batch
from twinscope_service.measure import layout
from twinscope_service.measure.records import COLUMN, MeasureOptions, PairBlock, Summary

TOKEN_ARRAYS = (
    "rollout_logprobs",
    "train_logprobs",
    "ref_logprobs",
    "mask",
    "token_ids",
    "entropy",
    "kept_mass",
    "sampled_rank",
)
SAMPLE_ARRAYS = (
    "pad_left",
    "cached_tokens",
    "turn",
    "pack_slot",
    "rollout_version",
    "train_version",
    "advantage",
    "reward",
)
MOST_TOKENS = 4096  # kept of one sample, around its worst token
MOST_PROMPT = 4096  # last prompt tokens kept


@dataclass(frozen=True)
class KeptSample:
    """One sample, or the part of it around its worst token."""

    key: bytes  # 16 bytes
    score: float  # Σ k3 over the whole sample
    first: int  # index of the first kept token
    tokens: int  # of the whole sample
    arrays: Mapping[str, NDArray[Any]]  # TOKEN_ARRAYS as far as known, [kept tokens]
    prompt: NDArray[np.int32] | None  # its last MOST_PROMPT ids
    values: Mapping[str, Any] = field(default_factory=dict)  # SAMPLE_ARRAYS as far as known
    groups: Mapping[str, str] = field(default_factory=dict)
    sample_id: str = ""


@dataclass(frozen=True)
class Evidence:
    """Kept samples: the worst first; those chosen by chance in the order of their hash."""

    worst: tuple[KeptSample, ...] = ()
    chance: tuple[KeptSample, ...] = ()

    @property
    def samples(self) -> tuple[KeptSample, ...]:
        """Every kept sample once, the worst first."""
        seen = {(s.key, s.score) for s in self.worst}
        return self.worst + tuple(s for s in self.chance if (s.key, s.score) not in seen)


def collect(block: PairBlock, summary: Summary, options: MeasureOptions) -> Evidence:
    """The evidence of `block`, whose Summary is `summary` (with rows)."""
    order = layout.sample_order(block)
    scores = summary.rows.sums[:, COLUMN["k3"]]
    keys = [key.tobytes() for key in summary.rows.keys]
    by_score = sorted(range(len(keys)), key=lambda i: (-scores[i], keys[i]))
    by_chance = sorted(range(len(keys)), key=lambda i: (_lot(keys[i]), keys[i]))
    chosen = by_score[: options.worst_samples], by_chance[: options.random_samples]
    kept = {i: _keep(block, int(order[i]), float(scores[i])) for i in {*chosen[0], *chosen[1]}}
    worst = tuple(kept[i] for i in chosen[0] if scores[i] > 0)
    return Evidence(worst, tuple(kept[i] for i in chosen[1]))


def merge_evidence(a: Evidence, b: Evidence, options: MeasureOptions) -> Evidence:
    """What one pass over the inputs of both would have kept."""
    worst = sorted((*a.worst, *b.worst), key=lambda s: (-s.score, s.key))
    chance = sorted((*a.chance, *b.chance), key=lambda s: (_lot(s.key), s.key, -s.score))
    return Evidence(tuple(worst[: options.worst_samples]), tuple(chance[: options.random_samples]))


def to_batch(evidence: Evidence, *, run: str, step: int) -> Batch | None:
    """The kept samples as a paired batch, which is also a trace; None if nothing was kept.

    Tensors that not every kept sample has are left out. `part` says which samples are the worst and
    where a cut sample begins.
    """
    samples = evidence.samples
    if not samples:
        return None
    named = [s for s in samples if s.sample_id]
    unique = len({s.sample_id for s in named}) == len(samples)
    part = {"worst": len(evidence.worst), "first_token": [s.first for s in samples]}
    return Batch(
        run=run,
        side="paired",
        step=step,
        tensors=_tensors(samples),
        sample_ids=tuple(s.sample_id for s in samples) if unique else None,
        groups=_groups(samples),
        part=part,
    )


def to_body(evidence: Evidence, *, run: str, step: int) -> bytes | None:
    """`to_batch` as bytes of a trace file."""
    batch = to_batch(evidence, run=run, step=step)
    return None if batch is None else b"".join(encode_batch(batch))


def context(block: PairBlock, index: int, width: int = 8) -> dict[str, list[Any]]:
    """The tokens around token `index` (on the token axis N), within its sample: what led there."""
    sample = int(np.searchsorted(block.offsets, index, side="right")) - 1
    begin = max(int(block.offsets[sample]), index - width)
    end = min(int(block.offsets[sample + 1]), index + width + 1)
    found: dict[str, list[Any]] = {"offset": list(range(begin - index, end - index))}
    for name in TOKEN_ARRAYS:
        array = getattr(block, name)
        if array is not None:
            found[name] = array[begin:end].tolist()
    return found


def _lot(key: bytes) -> bytes:
    """A number drawn by the key."""
    return hashlib.blake2b(key, digest_size=8, person=b"evidence").digest()


def _keep(block: PairBlock, sample: int, score: float) -> KeptSample:
    begin, end = int(block.offsets[sample]), int(block.offsets[sample + 1])
    low, high = _window(block, begin, end)
    arrays = {
        name: getattr(block, name)[low:high].copy()
        for name in TOKEN_ARRAYS
        if getattr(block, name) is not None
    }
    prompt = None
    if block.prompt_ids is not None and block.prompt_offsets is not None:
        first, last = (int(x) for x in block.prompt_offsets[sample : sample + 2])
        prompt = block.prompt_ids[max(first, last - MOST_PROMPT) : last].copy()
    return KeptSample(
        key=block.sample_keys[sample].tobytes(),
        score=score,
        first=low - begin,
        tokens=end - begin,
        arrays=arrays,
        prompt=prompt,
        values={
            name: getattr(block, name)[sample]
            for name in SAMPLE_ARRAYS
            if getattr(block, name) is not None
        },
        groups={name: labels[sample] for name, labels in block.groups.items()},
        sample_id="" if block.sample_ids is None else block.sample_ids[sample],
    )


def _window(block: PairBlock, begin: int, end: int) -> tuple[int, int]:
    """At most MOST_TOKENS of a sample, around its largest |Δ| (NaN counts as none)."""
    if end - begin <= MOST_TOKENS:
        return begin, end
    with np.errstate(invalid="ignore"):
        size = np.abs(block.train_logprobs[begin:end] - block.rollout_logprobs[begin:end])
    centre = begin + int(np.argmax(np.where(np.isfinite(size), size, 0)))
    low = min(max(begin, centre - MOST_TOKENS // 2), end - MOST_TOKENS)
    return low, low + MOST_TOKENS


def _tensors(samples: tuple[KeptSample, ...]) -> dict[str, NDArray[Any]]:
    lengths = [len(s.arrays["rollout_logprobs"]) for s in samples]
    tensors: dict[str, NDArray[Any]] = {"offsets": _offsets(lengths)}
    for name in TOKEN_ARRAYS:
        if all(name in s.arrays for s in samples):
            _put(tensors, name, np.concatenate([s.arrays[name] for s in samples]))
    for name in SAMPLE_ARRAYS:
        if all(name in s.values for s in samples):
            _put(tensors, name, np.array([s.values[name] for s in samples]))
    prompts = [s.prompt for s in samples if s.prompt is not None]
    if len(prompts) == len(samples):
        tensors["prompt_ids"] = np.concatenate(prompts)
        tensors["prompt_offsets"] = _offsets([len(prompt) for prompt in prompts])
    return tensors


def _put(tensors: dict[str, NDArray[Any]], name: str, array: NDArray[Any]) -> None:
    """Add a tensor, unless a negative integer says that some of it is unknown."""
    if array.dtype.kind == "f" or array.min(initial=0) >= 0:
        tensors[name] = array


def _offsets(lengths: Iterable[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(list(lengths))]).astype(np.int64)


def _groups(samples: tuple[KeptSample, ...]) -> dict[str, tuple[str, ...]]:
    names = sorted({name for s in samples for name in s.groups})
    return {name: tuple(s.groups.get(name, "") for s in samples) for name in names}
