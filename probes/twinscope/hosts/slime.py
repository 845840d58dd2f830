"""slime and miles: one flag in the trainer, or the files of `--save-debug-train-data`.

    --rollout-data-postprocess-path twinscope.hosts.slime.postprocess

slime calls it on every Megatron rank, after log-probs and before training, with lists of one 1-D
tensor per sample. The ranks that hold whole responses send: last pipeline stage, first tensor
rank, first context rank. With context parallelism each rank holds a part of each response, which
is refused by name; the files hold whole ones. slime skips p when it makes one optimiser step per
rollout, unless `--get-mismatch-metrics` is set: then an event says so.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from twinscope.hosts.attach import Attachment, Host
from twinscope.hosts.scalars import read_scalars
from twinscope.hosts.sides import choose, send

__all__ = ["log", "postprocess", "read_rollout_data", "read_samples"]

SLIME = Host("slime", "TWINSCOPE_SLIME", versions=())
WHY = (
    "slime skips the trainer's log-probs with one optimiser step per rollout; set "
    "--get-mismatch-metrics"
)


@functools.cache
def _attachment() -> Attachment:
    """One per process: slime calls a bare function."""
    return Attachment(SLIME)


def postprocess(args: Any, rollout_id: int, rollout_data: Mapping[str, Any]) -> None:
    """The function behind the flag. Changes nothing in `rollout_data`."""
    attachment = _attachment()
    attachment.guard.run("slime", None, lambda: _send(attachment, args, rollout_id, rollout_data))


def _send(
    attachment: Attachment, args: Any, rollout_id: int, rollout_data: Mapping[str, Any]
) -> None:
    parallel = getattr(args, "context_parallel_size", 1) or 1
    if parallel > 1:
        _refuse(attachment, parallel, rollout_id)
        return
    if not _is_sender() or "rollout_log_probs" not in rollout_data:
        return
    probe = attachment.probe()
    if "log_probs" not in rollout_data and attachment.first("log_probs"):
        probe.event("host_side_missing", host="slime", field="log_probs", why=WHY, step=rollout_id)
    sampling = {"temperature": getattr(args, "rollout_temperature", None),
                "top_p": getattr(args, "rollout_top_p", None),
                "top_k": getattr(args, "rollout_top_k", None)}  # fmt: skip
    fields = read_rollout_data(rollout_data, rollout_id=rollout_id)
    fields["expect"] = _expected(rollout_data)
    fields["sampling"] = {name: value for name, value in sampling.items() if value is not None}
    fields["train_fingerprint"] = {"name": "slime", "temperature_applied": True}
    send(probe, choose(fields), step=rollout_id)


def log(rollout_id: int, metrics: Mapping[str, Any]) -> None:
    """A line in slime's training loop, where it logs: its gradient norm, entropy, kl, lr.

    twinscope.hosts.slime.log(rollout_id, log_dict)
    """
    attachment = _attachment()

    def send_scalars() -> None:
        values = read_scalars(metrics)
        if values:
            attachment.probe().scalar(step=rollout_id, values=values)

    attachment.guard.run("slime", None, send_scalars)


def _expected(data: Mapping[str, Any]) -> dict[str, int] | None:
    """Samples of the whole step, for each side that is sent: every rank knows all raw rewards."""
    whole = data.get("raw_reward")
    if whole is None:
        return None
    sides = {"rollout": "rollout_log_probs", "train": "log_probs"}
    return {side: len(whole) for side, column in sides.items() if column in data}


def _refuse(attachment: Attachment, parallel: int, rollout_id: int) -> None:
    """Once per process. Putting the parts together would be a collective in the host's step."""
    if attachment.first("parallel"):
        reason = f"context_parallel_size={parallel}: this rank holds parts of responses"
        attachment.probe().event("host_refused", host="slime", reason=reason, step=rollout_id)


def _is_sender() -> bool:
    """Whether this rank holds log-probs that no other rank of its group also sends."""
    import sys

    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return True
    return bool(state.is_pipeline_last_stage() and state.get_tensor_model_parallel_rank() == 0)


def read_rollout_data(data: Mapping[str, Any], *, rollout_id: int) -> dict[str, Any]:
    """Arguments for `Probe.pair` from slime's rollout data.

    `tokens`: prompt and response of each sample; `response_lengths`; per response token:
    `rollout_log_probs` q, `log_probs` p, `ref_log_probs`, `loss_masks` (0 on tool output).
    """
    lengths = [int(length) for length in data["response_lengths"]]
    tokens = data["tokens"]
    found: dict[str, Any] = {
        "rollout_logprobs": data.get("rollout_log_probs"),
        "train_logprobs": data.get("log_probs"),
        "ref_logprobs": data.get("ref_log_probs"),
        "mask": data.get("loss_masks"),
        "token_ids": [row[len(row) - n :] for row, n in zip(tokens, lengths, strict=True)],
        "prompt_ids": [row[: len(row) - n] for row, n in zip(tokens, lengths, strict=True)],
        "sample_ids": _ids(data.get("sample_indices"), rollout_id),
        "rollout_version": _versions(data.get("weight_versions")),
        "reward": _rewards(data),
    }
    return {name: value for name, value in found.items() if value is not None}


def read_samples(samples: Sequence[Mapping[str, Any]], *, rollout_id: int) -> dict[str, Any]:
    """The same from the `samples` of slime's newer debug dumps (format_version 2).

    One dictionary per sample, from all data-parallel ranks, whole responses also with context
    parallelism.
    """
    names = set.intersection(*(set(sample) for sample in samples)) if samples else set()
    columns = {name: [sample[name] for sample in samples] for name in names}
    indices = columns.pop("sample_index", [None])
    if None not in indices:
        columns["sample_indices"] = indices
    columns.setdefault("response_lengths", [])
    columns.setdefault("tokens", [])
    return read_rollout_data(columns, rollout_id=rollout_id)


def _ids(indices: Sequence[Any] | None, rollout_id: int) -> list[str] | None:
    return None if indices is None else [f"{rollout_id}-{int(index)}" for index in indices]


def _rewards(data: Mapping[str, Any]) -> list[float] | None:
    """This rank's rewards as they were given; `rewards` are normalised within their groups."""
    whole, mine = data.get("raw_reward"), data.get("partition")
    if data.get("local_raw_reward") is None and whole is not None and mine is not None:
        return _numbers([whole[int(index)] for index in mine])
    return _numbers(data.get("local_raw_reward", data.get("rewards")))


def _numbers(values: Sequence[Any] | None) -> list[float] | None:
    """None where rewards are something else than numbers."""
    if values is None or not all(isinstance(value, (int, float)) for value in values):
        return None
    return [float(value) for value in values]


def _versions(names: Sequence[Any] | None) -> list[int] | None:
    """slime numbers its weights, as strings, one per turn: the first sampled the first token."""
    if names is None:
        return None
    firsts = [str(name[0] if isinstance(name, (list, tuple)) and name else name) for name in names]
    return [int(name) for name in firsts] if all(name.isdecimal() for name in firsts) else None
