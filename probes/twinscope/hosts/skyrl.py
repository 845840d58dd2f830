"""SkyRL: a training callback, given to the trainer; nothing is computed for it.

    trainer = RayPPOTrainer(..., callbacks=[twinscope.hosts.skyrl.make_callback()])

The batch is read at the end of the step: `action_log_probs` are those of before the update, which
SkyRL keeps. The driver has the whole batch, so the step is closed there; its metrics follow when
SkyRL logs them. The losses that skip the policy's forward leave no p, and an event says so. SkyRL's
fully asynchronous trainer takes no callbacks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from twinscope.hosts.attach import Attachment, Host
from twinscope.hosts.scalars import read_scalars
from twinscope.hosts.sides import choose, send
from twinscope.probe import Probe

__all__ = ["make_callback", "read_batch"]

SKYRL = Host("skyrl", "TWINSCOPE_SKYRL", versions=((0, 3),))
CALLBACKS = "skyrl.train.utils.callbacks"
WHY = "this loss skips the policy's forward pass (_skip_policy_forward)"


def make_callback(probe: Probe | None = None) -> Any:
    """A `TrainingCallback`. Raises DidNotAttach for another SkyRL (TWINSCOPE_SKYRL=untested)."""
    from importlib import import_module

    attachment = Attachment(SKYRL, make_probe=lambda: probe or Probe())
    version = getattr(sys.modules.get("skyrl"), "__version__", None) or _installed()
    SKYRL.check(version, "untested" if attachment.switch == "untested" else "on")

    def on_train_start(_: Any, trainer: Any, callback_input: Any, control: Any) -> None:
        attachment.guard.run("skyrl", None, lambda: attachment.announce(version))

    def on_step_end(_: Any, trainer: Any, callback_input: Any, control: Any) -> None:
        attachment.guard.run("skyrl", None, lambda: _send(attachment, callback_input))

    def on_log(_: Any, trainer: Any, callback_input: Any, control: Any) -> None:
        attachment.guard.run("skyrl", None, lambda: _log(attachment, callback_input))

    methods = {"on_train_start": on_train_start, "on_step_end": on_step_end, "on_log": on_log}
    base = import_module(CALLBACKS).TrainingCallback
    return type("TwinScopeCallback", (base,), methods)()


def _installed() -> str | None:
    from importlib import metadata

    try:
        return metadata.version("skyrl")
    except metadata.PackageNotFoundError:
        return None


def _send(attachment: Attachment, callback_input: Any) -> None:
    step, batch = int(callback_input.global_step), callback_input.batch
    if batch is None:
        return
    fields = read_batch(batch)
    if "train_logprobs" not in fields and attachment.first("action_log_probs"):
        attachment.probe().event(
            "host_side_missing", host="skyrl", field="action_log_probs", why=WHY, step=step
        )
    fields["train_fingerprint"] = {"name": "skyrl", "temperature_applied": True}
    send(attachment.probe(), choose(fields), step=step)
    attachment.probe().close_step(step)


def _log(attachment: Attachment, callback_input: Any) -> None:
    """SkyRL logs a step after its end, and evaluations, which have none of the names."""
    values = read_scalars(callback_input.logs)
    if values:
        attachment.probe().scalar(step=int(callback_input.global_step), values=values)


def read_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `Probe.pair` from a TrainingInputBatch.

    [B,A]: `rollout_logprobs` q, `action_log_probs` p, `loss_mask`, `response_mask`; the responses
    are the last A columns of `sequences` [B,S].
    """
    width = batch["response_mask"].shape[1]
    found = {
        "rollout_logprobs": batch.get("rollout_logprobs"),
        "train_logprobs": batch.get("action_log_probs"),
        "ref_logprobs": batch.get("base_action_log_probs"),
        "mask": batch["loss_mask"],
        "token_ids": batch["sequences"][:, -width:],
    }
    return {name: value for name, value in found.items() if value is not None}
