"""prime-rl: token exports, with no code in the trainer (`trainer.enable_token_export = true`).

    <output>/token_exports/step_N/rank_R.jsonl, and STABLE when every rank is done

Each line is one sequence, prompt and response in one; all columns have its length, and
`inference_logprobs[t]` and `trainer_logprobs[t]` are of `token_ids[t]`. p is that of the training
forward itself. A value that was not finite is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["read_records"]


def read_records(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Arguments for `Probe.pair` from the lines of one or several ranks of one step."""
    rows = [(record, *_span(record["loss_mask"])) for record in records]
    rows = [row for row in rows if row[2] > row[1]]
    return {
        "rollout_logprobs": [r["inference_logprobs"][a:b] for r, a, b in rows],
        "train_logprobs": [r["trainer_logprobs"][a:b] for r, a, b in rows],
        "entropy": [_values(r["entropy"][a:b]) for r, a, b in rows],
        "mask": [r["loss_mask"][a:b] for r, a, b in rows],
        "token_ids": [r["token_ids"][a:b] for r, a, b in rows],
        "prompt_ids": [r["token_ids"][:a] for r, a, b in rows],
        "sample_ids": [_id(r) for r, _, _ in rows],
        "groups": {"env": [str(r.get("env_name") or "")[:64] for r, _, _ in rows]},
        "train_fingerprint": {"name": "prime-rl"},
    }


def _span(mask: list[Any]) -> tuple[int, int]:
    """[first, last) position where the loss mask is not 0."""
    first = next((t for t, kept in enumerate(mask) if kept), len(mask))
    last = next((t for t in range(len(mask), 0, -1) if mask[t - 1]), first)
    return first, last


def _values(column: list[Any]) -> list[float]:
    return [float("nan") if value is None else value for value in column]


def _id(record: Mapping[str, Any]) -> str:
    step = record.get("export_step", record["step"])
    return f"{step}-{record['rank']}-{record['export_sequence_idx']}"
