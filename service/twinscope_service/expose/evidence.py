"""One step's evidence and statistics as JSON: worst tokens, kept samples, profiles, lags."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode
from twinscope_service.diagnose.alignment import fits_elsewhere
from twinscope_service.expose.text import TokenText
from twinscope_service.join.gather import paired_blocks
from twinscope_service.measure import layout, reference
from twinscope_service.measure.derive import policy_ref_by_length
from twinscope_service.measure.records import (
    COVERAGE,
    HIST_BASE,
    LAG_COLUMNS,
    LAGS,
    PROFILE_COLUMNS,
    MeasureOptions,
    Summary,
    WorstToken,
)

TOKEN_TENSORS = (
    "token_ids",
    "rollout_logprobs",
    "train_logprobs",
    "ref_logprobs",
    "mask",
    "entropy",
    "kept_mass",
    "sampled_rank",
)
SAMPLE_TENSORS = (
    "rollout_version",
    "train_version",
    "turn",
    "pad_left",
    "cached_tokens",
    "advantage",
    "reward",
)
HIST_PER_OCTAVE = 4  # buckets of |Δ| per factor of two, of the 64 that are counted


def describe_evidence(
    summary: Summary | None, body: bytes | None, *, text: TokenText | None = None
) -> dict[str, Any]:
    """Worst tokens (from the summary) and kept samples (from the evidence), as far as kept.

    With `text` each token that has an id has its text too. `lag` of a sample: q[t] fits p[t + lag],
    as diagnosis judges it; 0: aligned.
    """
    worst = [_worst_token(token) for token in (() if summary is None else summary.worst)]
    batch = None if body is None else decode(body)
    samples = [] if batch is None else [_sample(batch, s) for s in range(batch.samples)]
    for sample, lag in zip(samples, [] if batch is None else sample_lags(batch), strict=True):
        sample["lag"] = lag
    if text is not None:
        for token in worst:
            token["text"] = None if token["token_id"] is None else text.of(token["token_id"])
        for sample in samples:
            if "token_ids" in sample:
                sample["text"] = [text.of(token) for token in sample["token_ids"]]
    return {"worst_tokens": worst, "samples": samples}


def _worst_token(token: WorstToken) -> dict[str, Any]:
    fields = asdict(token)
    fields["abs"] = -fields.pop("minus_abs")
    fields["token_id"] = None if token.token_id < 0 else token.token_id
    fields["sample_id"] = token.sample_id or None
    return fields


def _sample(batch: Batch, s: int) -> dict[str, Any]:
    """Sample `s` with its token arrays."""
    begin, end = (int(offset) for offset in batch.offsets[s : s + 2])
    part = batch.part or {}
    first = part.get("first_token", [])
    found: dict[str, Any] = {
        "sample_id": None if batch.sample_ids is None else batch.sample_ids[s],
        "tokens": end - begin,
        "chosen": "worst" if s < part.get("worst", 0) else "chance",
        "first_token": first[s] if s < len(first) else 0,
    }
    for name in TOKEN_TENSORS:
        if name in batch.tensors:
            found[name] = batch.tensors[name][begin:end].tolist()
    for name in SAMPLE_TENSORS:
        if name in batch.tensors:
            found[name] = batch.tensors[name][s].item()
    if "prompt_ids" in batch.tensors:
        first, last = (int(offset) for offset in batch.tensors["prompt_offsets"][s : s + 2])
        found["prompt_ids"] = batch.tensors["prompt_ids"][first:last].tolist()
    for name, labels in batch.groups.items():
        found.setdefault("groups", {})[name] = labels[s]
    return found


def sample_lags(batch: Batch) -> list[int | None]:
    """Per sample of a paired batch the lag at which its sides fit; None: too short to tell."""
    options = MeasureOptions()
    found: list[int | None] = []
    for block in paired_blocks(batch, block_tokens=max(batch.tokens, 1)):
        order = np.arange(block.samples)
        first, last = layout.live_spans(block)
        counted = reference.classify(block) == "counted"
        tokens = reference.counted_tokens(block, order, first, counted, last - first, options)
        _, scan = reference.lag_statistics(block, order, tokens, options)
        best, at_best, at_zero = layout.best_lags(scan)
        known = np.isfinite(at_best) & np.isfinite(at_zero)
        lag = np.where(fits_elsewhere(best, at_best, at_zero), best, 0)
        found += [int(lag[s]) if known[s] else None for s in order]
    return found


def describe_profiles(summary: Summary) -> dict[str, Any]:
    """Sums by position, length, probability, lag and group, and the histogram of |Δ|, named."""
    return {
        "columns": list(PROFILE_COLUMNS),
        "profiles": {name: table.tolist() for name, table in summary.profiles.items()},
        "version_lag": {str(lag): row.tolist() for lag, row in summary.version_lag.items()},
        "groups": [
            {"name": name, "label": label, "sums": row.tolist()}
            for (name, label), row in summary.groups.items()
        ],
        "lags": {
            "columns": list(LAG_COLUMNS),
            "lag": list(LAGS),
            "sums": summary.lags.tolist(),
        },
        "histogram": _histogram(summary),
        "policy_ref_by_length": [
            {"length_below": 1 << bucket, "tokens": tokens, "k3_mean": k3}
            for bucket, (tokens, k3) in policy_ref_by_length(summary.rows).items()
        ],
    }


def _histogram(summary: Summary) -> dict[str, Any]:
    """Counted tokens by |Δ| and sign, without empty ends. `edges`: one more than buckets, nats."""
    width = 64 // HIST_PER_OCTAVE
    counts = summary.histogram.reshape(2, -1, width).sum(axis=2)
    some = np.flatnonzero(counts.sum(axis=0))
    low, high = (int(some[0]), int(some[-1]) + 1) if len(some) else (0, 0)
    bits = (np.arange(low, high + 1, dtype=np.uint32) * width + HIST_BASE) << 17
    return {
        "edges": bits.astype(np.uint32).view(np.float32).tolist(),
        "positive": counts[0, low:high].tolist(),
        "negative": counts[1, low:high].tolist(),
        "zero": int(summary.coverage[COVERAGE.index("delta_zero")]),
    }
