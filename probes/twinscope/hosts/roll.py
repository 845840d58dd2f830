"""ROLL: a DataProto after `old_log_probs`, with `enable_old_logprobs_recompute: true`.

Its log-prob columns are of the next token: [B,T-1] for `input_ids` [B,T]. Without recomputation
`old_log_probs` is all zeros: the service counts exact zeros and judges such a step `unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["read_batch"]


def read_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `Probe.pair` from a DataProto's `batch`.

    `infer_logprobs` q and `old_log_probs` p, [B,T-1]; `response_mask` [B,T], column t of it
    belongs to `input_ids[:, t]`. ROLL's engine and trainer both stay at temperature 1.
    """
    names = set(batch.keys())
    return {
        "rollout_logprobs": batch["infer_logprobs"],
        "train_logprobs": batch["old_log_probs"],
        **({"ref_logprobs": batch["ref_log_probs"]} if "ref_log_probs" in names else {}),
        "mask": batch["response_mask"][:, 1:],
        "token_ids": batch["input_ids"][:, 1:],
        "train_fingerprint": {"name": "roll", "temperature_applied": False},
    }
