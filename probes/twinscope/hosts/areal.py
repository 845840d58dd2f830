"""AReaL: its trajectory dictionaries, after `prox_logp` was computed and before the update.

AReaL has no plugin point: call `read_trajectory` where `rl_trainer` has set `traj["prox_logp"]`.
Its two sides are shifted against each other: `logprobs[t]` is of `input_ids[t]`, `prox_logp[t]` is
of `input_ids[t + 1]`. With `recompute_logprob` and without the decoupled loss AReaL later
overwrites q by p: read before `compute_advantages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["read_trajectory"]


def read_trajectory(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `Probe.pair` from [B,T] tensors; both sides turned into "of token t".

    `versions` [B,T] is AReaL's weight version of each token (-1: not sampled): it becomes one
    version per sample and the spans where it changes.
    """
    mask = trajectory["loss_mask"][:, 1:]
    prox, ref = trajectory.get("prox_logp"), trajectory.get("ref_logp")
    found: dict[str, Any] = {
        "rollout_logprobs": trajectory["logprobs"][:, 1:],
        "train_logprobs": None if prox is None else prox[:, :-1],
        "ref_logprobs": None if ref is None else ref[:, :-1],
        "mask": mask,
        "token_ids": trajectory["input_ids"][:, 1:],
        "train_fingerprint": {"name": "areal", "temperature_applied": True},
    }
    versions = trajectory.get("versions")
    if versions is not None:
        found |= _read_versions(versions[:, 1:].tolist(), mask.tolist())
    return {name: value for name, value in found.items() if value is not None}


def _read_versions(versions: list[list[int]], mask: list[list[Any]]) -> dict[str, Any]:
    """`rollout_version` and `version_spans`, counted from each row's first trained token."""
    firsts: list[int] = []
    spans: list[tuple[int, int, int]] = []
    for sample, (row, kept) in enumerate(zip(versions, mask, strict=True)):
        where = [t for t, flag in enumerate(kept) if flag]
        begin, end = (where[0], where[-1] + 1) if where else (0, 0)
        live = [(t - begin, int(row[t])) for t in range(begin, end) if kept[t] and row[t] >= 0]
        firsts.append(live[0][1] if live else 0)
        last = firsts[-1]
        for at, version in live:
            if version != last:
                spans.append((sample, at, version))
                last = version
    return {"rollout_version": firsts, "version_spans": spans or None}
