"""NeMo-RL: `train_data_step{N}.jsonl`, which its logger writes anyway, or the tensors in process.

One line, or row, per sample, prompt and response in one, padded on the right. Column t of
`generation_logprobs` (q) and `prev_logprobs` (p) is of `token_ids[t]`; column 0 is a dummy. A
sample with `sample_loss_mask` 0 is not trained on. Missing q is filled with 0.0, and with
`force_on_policy_ratio` p is all 0.0: the service counts exact zeros per side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["read_batch", "read_records"]


def read_records(records: Iterable[Mapping[str, Any]], *, step: int) -> dict[str, Any]:
    """Arguments for `Probe.pair` from the lines of one step's file."""
    rows = [(n, record, *_span(record)) for n, record in enumerate(records)]
    rows = [row for row in rows if row[3] > row[2]]
    return {
        "rollout_logprobs": [r["generation_logprobs"][a:b] for _, r, a, b in rows],
        "train_logprobs": [r["prev_logprobs"][a:b] for _, r, a, b in rows],
        "mask": [r["token_loss_mask"][a:b] for _, r, a, b in rows],
        "token_ids": [r["token_ids"][a:b] for _, r, a, b in rows],
        "prompt_ids": [r["token_ids"][:a] for _, r, a, b in rows],
        "sample_ids": [f"{step}-{n}" for n, _, _, _ in rows],
        "train_fingerprint": {"name": "nemo-rl", "temperature_applied": True},
    }


def read_batch(data: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `Probe.pair` from the train data in process: [B,T] tensors of the same names.

    For example in a wrap of `compute_and_apply_seq_logprob_error_masking`, which has them all. The
    files call the inputs `token_ids`, the process `input_ids`, and the masks likewise.
    """
    ids = data["input_ids"] if "input_ids" in data else data["token_ids"]
    tokens = data["token_mask"] if "token_mask" in data else data["token_loss_mask"]
    samples = data["sample_mask"] if "sample_mask" in data else data["sample_loss_mask"]
    return {
        "rollout_logprobs": data["generation_logprobs"][:, 1:],
        "train_logprobs": data["prev_logprobs"][:, 1:],
        "mask": (tokens * samples[:, None])[:, 1:],
        "token_ids": ids[:, 1:],
        "train_fingerprint": {"name": "nemo-rl", "temperature_applied": True},
    }


def _span(record: Mapping[str, Any]) -> tuple[int, int]:
    """[first, last) trained position; empty for samples that are left out."""
    mask = record["token_loss_mask"] if record.get("sample_loss_mask", 1) else []
    kept = [t for t, value in enumerate(mask) if value and t > 0]
    return (kept[0], kept[-1] + 1) if kept else (0, 0)
