"""One step's evidence and statistics as JSON: worst tokens, kept samples, profiles, lags."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode
from twinscope_service.measure.records import (
    LAG_COLUMNS,
    LAGS,
    PROFILE_COLUMNS,
    Summary,
    WorstToken,
)

SAMPLE_TENSORS = ("token_ids", "rollout_logprobs", "train_logprobs", "ref_logprobs", "mask")


def describe_evidence(summary: Summary | None, body: bytes | None) -> dict[str, Any]:
    """Worst tokens (from the summary) and kept samples (from the evidence), as far as kept."""
    worst = () if summary is None else summary.worst
    batch = None if body is None else decode(body)
    return {
        "worst_tokens": [_worst_token(token) for token in worst],
        "samples": [] if batch is None else [_sample(batch, s) for s in range(batch.samples)],
    }


def _worst_token(token: WorstToken) -> dict[str, Any]:
    fields = asdict(token)
    fields["abs"] = -fields.pop("minus_abs")
    fields["token_id"] = None if token.token_id < 0 else token.token_id
    fields["sample_id"] = token.sample_id or None
    return fields


def _sample(batch: Batch, s: int) -> dict[str, Any]:
    """Sample `s` with its token arrays."""
    begin, end = (int(offset) for offset in batch.offsets[s : s + 2])
    found: dict[str, Any] = {
        "sample_id": None if batch.sample_ids is None else batch.sample_ids[s],
        "tokens": end - begin,
    }
    for name in SAMPLE_TENSORS:
        if name in batch.tensors:
            found[name] = batch.tensors[name][begin:end].tolist()
    if "prompt_ids" in batch.tensors:
        first, last = (int(offset) for offset in batch.tensors["prompt_offsets"][s : s + 2])
        found["prompt_ids"] = batch.tensors["prompt_ids"][first:last].tolist()
    for name, labels in batch.groups.items():
        found.setdefault("groups", {})[name] = labels[s]
    return found


def describe_profiles(summary: Summary) -> dict[str, Any]:
    """Sums by position, length, probability, lag, version lag and group, with column names."""
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
    }
