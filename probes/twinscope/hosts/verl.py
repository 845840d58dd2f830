"""verl: the driver compares q and p in one function; that is where both are read.

verl loads the entry point `verl.plugins: twinscope` in every process that imports it. With
TWINSCOPE_VERL=1 it wraps `verl.utils.debug.metrics.calculate_debug_metrics`, which the V1, V0 and
separated trainers call in the driver once per step, after `old_log_probs` and before the update.
Nothing is computed for us. Where verl skips that call nothing is compared: in bypass mode (p is
never computed) and with `rollout.calculate_log_probs=False`. Both are told, from where the trainers
decide it.

The step is `SkipManager.step`, which both trainers set when a step begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from twinscope.errors import DidNotAttach
from twinscope.hosts.attach import Attachment, Host, when_imported, wrap
from twinscope.hosts.sides import choose, send

__all__ = ["read_batch", "register"]

VERL = Host("verl", "TWINSCOPE_VERL", versions=((0, 9),))
METRICS, FUNCTION = "verl.utils.debug.metrics", "calculate_debug_metrics"
STEPS = "verl.utils.skip.skip_manager"
# Where the trainers copy q into p instead: V0 and the separated ones call a function, V1 does it.
BYPASS, BYPASS_FUNCTION = "verl.trainer.ppo.rollout_corr_helper", "apply_bypass_mode"
V1_TRAINER, V1_METHOD = "verl.trainer.ppo.v1.trainer_base", "_compute_old_log_prob"
WHY_BYPASS = "algorithm.rollout_correction.bypass_mode: p is a copy of q, nothing is compared"
WHY_NO_Q = "actor_rollout_ref.rollout.calculate_log_probs=False: the engine is not asked"
SAMPLE_COLUMNS = {"min_global_steps": "rollout_version"}


def register() -> None:
    """What the entry point does (entry_verl.py)."""
    attachment = Attachment(VERL)
    if attachment.switch != "off":
        attachment.guard.run("register", None, lambda: _register(attachment))


def _register(attachment: Attachment) -> None:
    def install(module: ModuleType) -> None:
        # The version is a file that verl reads before it loads plugins.
        version = getattr(sys.modules.get("verl"), "__version__", None)

        def patch() -> None:
            if not callable(getattr(module, FUNCTION, None)):
                raise DidNotAttach(f"verl {version}: {METRICS} has no {FUNCTION}")
            wrap(module, FUNCTION, lambda original: _wrapped(original, attachment, version))

        attachment.guard.run("attach", False, lambda: attachment.attach(version, patch))

    when_imported(METRICS, install)
    _watch_bypass(attachment)


def _watch_bypass(attachment: Attachment) -> None:
    """Say why nothing comes, where the trainer decides it. Without these functions: silence."""

    def tell(field: str, why: str) -> None:
        if attachment.first(field):
            attachment.probe().event(
                "host_side_missing", host="verl", field=field, why=why, step=_step()
            )

    def telling(original: Callable[..., Any], look: Callable[..., None]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            attachment.guard.run("verl", None, lambda: look(*args))
            return original(*args, **kwargs)

        return watched

    def look_at_v0(*_: Any) -> None:
        tell("old_log_probs", WHY_BYPASS)

    def look_at_v1(trainer: Any, *_: Any) -> None:
        config = trainer.config
        if (config.algorithm.get("rollout_correction") or {}).get("bypass_mode", False):
            tell("old_log_probs", WHY_BYPASS)
        elif not config.actor_rollout_ref.rollout.calculate_log_probs:
            tell("rollout_log_probs", WHY_NO_Q)

    def watch_v0(module: ModuleType) -> None:
        if hasattr(module, BYPASS_FUNCTION):
            wrap(module, BYPASS_FUNCTION, lambda original: telling(original, look_at_v0))

    def watch_v1(module: ModuleType) -> None:
        trainer = getattr(module, "PPOTrainer", None)
        if hasattr(trainer, V1_METHOD):
            wrap(trainer, V1_METHOD, lambda original: telling(original, look_at_v1))

    when_imported(BYPASS, watch_v0)
    when_imported(V1_TRAINER, watch_v1)


def _wrapped(
    original: Callable[..., Any], attachment: Attachment, version: str | None
) -> Callable[..., Any]:
    def calculate_debug_metrics(data: Any) -> Any:
        def capture() -> None:
            if attachment.first("seam"):  # the driver is known by its first call
                attachment.announce(version, seam=FUNCTION)
            step = _step()
            fingerprint = {"name": "verl", "version": version, "temperature_applied": True}
            fields = {**read_batch(data.batch, data.non_tensor_batch), "train_version": step,
                      "train_fingerprint": fingerprint}  # fmt: skip
            send(attachment.probe(), choose(fields), step=step)

        attachment.guard.run("verl", None, capture)
        return original(data)

    return calculate_debug_metrics


def _step() -> int:
    """The trainer's step; 0 where no trainer has begun one."""
    manager = getattr(sys.modules.get(STEPS), "SkipManager", None)
    return max(int(getattr(manager, "step", 0)), 0)


def read_batch(
    batch: Mapping[str, Any], samples: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Arguments for `Probe.pair` from a DataProto's `batch` and `non_tensor_batch`.

    [B,T] right-padded responses: `rollout_log_probs` q (0.0 where padded), `old_log_probs` p,
    `response_mask` (0 also on tool output). [B,P] `prompts`, padded on the left, and
    `attention_mask` [B,P+T] are there in V0 only.
    """
    responses = batch["responses"]
    width = responses.shape[1]
    names = set(batch.keys())
    mask = batch["response_mask"] if "response_mask" in names else batch["attention_mask"]
    found: dict[str, Any] = {
        "rollout_logprobs": _column(batch, names, "rollout_log_probs"),
        "train_logprobs": _column(batch, names, "old_log_probs"),
        "ref_logprobs": _column(batch, names, "ref_log_prob"),
        "entropy": _column(batch, names, "entropy"),
        "mask": mask[:, -width:],
        "token_ids": responses,
    }
    if {"prompts", "attention_mask"} <= names:
        found["prompt_ids"] = batch["prompts"]
        found["prompt_mask"] = batch["attention_mask"][:, : batch["prompts"].shape[1]]
    for column, name in SAMPLE_COLUMNS.items():
        if samples is not None and column in samples:
            found[name] = [int(value) for value in samples[column]]
    return {name: value for name, value in found.items() if value is not None}


def _column(batch: Mapping[str, Any], names: set[str], name: str) -> Any:
    """A column, or None. A TensorDict raises for unknown keys, and its `get` may warn."""
    return batch[name] if name in names else None
