"""What the service keeps of single samples: as numbers per sample, per token, and as an excerpt.

All from `Client.kept`, the JSON of .../evidence: the worst samples of a step and a fair draw.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Sample = Mapping[str, Any]
Row = dict[str, Any]
AROUND = 12  # tokens of an excerpt on either side of the worst one

SAMPLE_COLUMNS: dict[str, type] = {
    "run": str, "step": int, "sample": int, "sample_id": str, "chosen": str, "tokens": int,
    "first_token": int, "lag": int, "counted": int, "abs_mean": float, "abs_max": float,
    "k3_mean": float, "worst_position": int, "reward": float, "advantage": float,
    "rollout_version": int, "train_version": int, "turn": int, "groups": str, "text": str,
}  # fmt: skip
TOKEN_COLUMNS: dict[str, type] = {
    "run": str, "step": int, "sample": int, "sample_id": str, "chosen": str, "position": int,
    "token_id": int, "text": str, "rollout_logprob": float, "train_logprob": float,
    "ref_logprob": float, "delta": float, "mask": int, "entropy": float, "kept_mass": float,
    "sampled_rank": float,
}  # fmt: skip
TENSORS = {  # column of a token -> array of its sample
    "token_id": "token_ids", "text": "text", "rollout_logprob": "rollout_logprobs",
    "train_logprob": "train_logprobs", "ref_logprob": "ref_logprobs", "mask": "mask",
    "entropy": "entropy", "kept_mass": "kept_mass", "sampled_rank": "sampled_rank",
}  # fmt: skip


@dataclass(frozen=True)
class Gaps:
    """How far a sample's sides are apart. None: no token of it can be compared."""

    counted: int  # tokens with both sides, not masked out
    abs_mean: float | None
    abs_max: float | None
    k3_mean: float | None
    worst: int | None  # index of the largest |Δ| in the kept part


def deltas(sample: Sample) -> list[float | None]:
    """Δ = p − q per token, nats; None: masked out, or a side is missing or not finite."""
    rollout, train = sample.get("rollout_logprobs") or [], sample.get("train_logprobs") or []
    mask = sample.get("mask") or [1] * len(rollout)
    return [
        p - q if keep and p is not None and q is not None and math.isfinite(p - q) else None
        for q, p, keep in zip(rollout, train, mask, strict=True)
    ]


def gaps(sample: Sample) -> Gaps:
    """The sample's own means over what is kept of it."""
    found = deltas(sample)
    known = [(abs(delta), t) for t, delta in enumerate(found) if delta is not None]
    if not known:
        return Gaps(0, None, None, None, None)
    largest, worst = max(known, key=lambda one: (one[0], -one[1]))
    k3 = math.fsum(k3_of(delta) for delta in found if delta is not None)
    mean = math.fsum(size for size, _ in known) / len(known)
    return Gaps(len(known), mean, largest, k3 / len(known), worst)


def k3_of(delta: float) -> float:
    """exp(Δ) − 1 − Δ of one token; by its series where the plain form would cancel."""
    if abs(delta) < 1e-3:
        return delta * delta * (0.5 + delta * (1 / 6 + delta / 24))
    return math.expm1(min(delta, 700.0)) - delta


def excerpt(sample: Sample) -> tuple[str, str, str] | None:
    """(before, the worst token, after) as text, or as ids in brackets; None: neither came."""
    worst, pieces = gaps(sample).worst, sample.get("text")
    if pieces is None and sample.get("token_ids") is not None:
        pieces = [f" [{token}] " for token in sample["token_ids"]]
    if worst is None or pieces is None:
        return None
    begin, end = max(worst - AROUND, 0), worst + 1 + AROUND
    before = ("… " if begin else "") + "".join(pieces[begin:worst])
    after = "".join(pieces[worst + 1 : end]) + (" …" if end < len(pieces) else "")
    return before, pieces[worst], after


def sample_rows(run: str, step: int, samples: Sequence[Sample]) -> Iterator[Row]:
    """One row per kept sample; columns SAMPLE_COLUMNS, None where not known."""
    for number, sample in enumerate(samples):
        found = gaps(sample)
        first = sample.get("first_token", 0)
        known = {
            **{name: sample.get(name) for name in SAMPLE_COLUMNS},
            **{n: getattr(found, n) for n in ("counted", "abs_mean", "abs_max", "k3_mean")},
            "run": run, "step": step, "sample": number,
            "worst_position": None if found.worst is None else first + found.worst,
            "groups": json.dumps(sample["groups"]) if sample.get("groups") else None,
            "text": "".join(sample["text"]) if sample.get("text") else None,
        }  # fmt: skip
        yield {name: known[name] for name in SAMPLE_COLUMNS}


def token_rows(run: str, step: int, samples: Sequence[Sample]) -> Iterator[Row]:
    """One row per token of the kept samples; columns TOKEN_COLUMNS, None where not known."""
    for number, sample in enumerate(samples):
        named = {"run": run, "step": step, "sample": number,
                 "sample_id": sample.get("sample_id"), "chosen": sample.get("chosen")}  # fmt: skip
        arrays = {column: sample.get(tensor) for column, tensor in TENSORS.items()}
        for t, delta in enumerate(deltas(sample)):
            values = {column: None if a is None else a[t] for column, a in arrays.items()}
            position = sample.get("first_token", 0) + t
            whole = {**named, **values, "position": position, "delta": delta}
            yield {name: whole[name] for name in TOKEN_COLUMNS}


def parts(samples: Iterable[Sample], *, chosen: str) -> list[Sample]:
    """The samples that were kept as the worst ones, or by chance."""
    return [sample for sample in samples if sample.get("chosen") == chosen]
