"""TRL's GRPOTrainer, and Unsloth's, which is compiled from it: both sides are in the trainer.

    trainer = GRPOTrainer(...)
    twinscope.hosts.trl.observe(trainer)    # one line; before trainer.train()

Wraps this trainer's `_generate_and_score_completions` and adds a callback for scalars and the end
of steps. Nothing is computed for us: with `use_vllm` and `vllm_importance_sampling_correction`
(TRL's default) the batch holds q as `sampling_per_token_logps` and p as `old_per_token_logps`,
float32 [B,T], local to the rank. Otherwise a side is missing, and an event says which and why.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

from twinscope.errors import DidNotAttach
from twinscope.hosts.attach import MARK, Attachment, Host, minors, wrap
from twinscope.hosts.sampling import read_sampling
from twinscope.hosts.scalars import read_scalars
from twinscope.hosts.sides import choose, send
from twinscope.hosts.vllm import read_model
from twinscope.probe import Probe

__all__ = ["observe", "read_batch"]

TRL = Host("trl", "TWINSCOPE_TRL", versions=minors(1, 7, 16))
SEAM = "_generate_and_score_completions"
WHY = {
    "sampling_per_token_logps": "the engine's log-probs are kept only with use_vllm=True",
    "old_per_token_logps": "computed only with use_vllm=True and "
    "vllm_importance_sampling_correction=True (or misaligned generation steps)",
}


def observe(
    trainer: Any, probe: Probe | None = None, *, sides: Literal["both", "train"] = "both"
) -> Probe:
    """Attach to this GRPOTrainer; returns the probe that is used (default: a new one).

    `sides="train"`: the engine's side comes from the vLLM plugin or a server; samples then join by
    content. Raises DidNotAttach for a TRL that this was not written against, unless
    TWINSCOPE_TRL=untested.
    """
    attachment = Attachment(TRL, make_probe=lambda: probe or Probe())
    library = sys.modules.get("trl")
    version = getattr(library, "__version__", None)
    TRL.check(version, "untested" if attachment.switch == "untested" else "on")
    if not callable(getattr(trainer, SEAM, None)):
        raise DidNotAttach(f"trl {version}: {type(trainer).__name__} has no {SEAM}")
    if hasattr(getattr(trainer, SEAM), MARK):
        raise DidNotAttach("trl: this trainer is already observed")
    watch = _Watch(attachment, trainer, version, sides)
    wrap(trainer, SEAM, watch.wrap)
    trainer.add_callback(watch.make_callback())
    attachment.announce(version, trainer=type(trainer).__name__, sides=sides, **watch.missing())
    return attachment.probe()


def read_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `Probe.pair` from what `_generate_and_score_completions` returns.

    [B,T] completions padded on the right, [B,P] prompts on the left. `tool_mask` is 0 on tokens
    that the model did not write. A side that the batch does not have is absent.
    """
    mask = batch["completion_mask"]
    if batch.get("tool_mask") is not None:
        mask = mask * batch["tool_mask"]
    advantage = batch.get("advantages")
    found = {
        "rollout_logprobs": batch.get("sampling_per_token_logps"),
        "train_logprobs": batch.get("old_per_token_logps"),
        "ref_logprobs": batch.get("ref_per_token_logps"),
        "mask": mask,
        "token_ids": batch["completion_ids"],
        "prompt_ids": batch["prompt_ids"],
        "prompt_mask": batch["prompt_mask"],
        "advantage": advantage if getattr(advantage, "ndim", 0) == 1 else None,
    }
    return {name: value for name, value in found.items() if value is not None}


class _Watch:
    """What is kept of one observed trainer."""

    def __init__(
        self, attachment: Attachment, trainer: Any, version: str | None, sides: str
    ) -> None:
        self._attachment = attachment
        self._trainer = trainer
        self._version = version
        self._only: Literal["train"] | None = "train" if sides == "train" else None

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around the trainer's method: called once per generation, on every rank."""

        def generate(*args: Any, **kwargs: Any) -> Any:
            batch = original(*args, **kwargs)
            if self._trainer.model.training:  # evaluation batches belong to no step
                self._attachment.guard.run("trl", None, lambda: self._capture(batch))
            return batch

        return generate

    def _capture(self, batch: Mapping[str, Any]) -> None:
        probe, trainer = self._attachment.probe(), self._trainer
        step = int(trainer.state.global_step)
        given = read_batch(batch)
        for name, why in WHY.items():
            if batch.get(name) is None and self._attachment.first(name):
                probe.event("host_side_missing", host="trl", field=name, why=why, step=step)
        loaded = getattr(trainer, "_last_loaded_step", None)
        given |= {
            "sampling": read_sampling(trainer),
            "rollout_version": loaded if isinstance(loaded, int) and loaded >= 0 else None,
            "train_version": step,
            "rollout_fingerprint": self._engine_facts(),
            "train_fingerprint": self._trainer_facts(),
        }
        send(probe, choose(given, only=self._only), step=step)

    def missing(self) -> dict[str, Any]:
        """What the trainer's settings already say about missing sides, for the heartbeat."""
        trainer = self._trainer
        engine = bool(getattr(trainer, "use_vllm", False))
        corrected = engine and bool(getattr(trainer, "vllm_importance_sampling_correction", False))
        return {"has_rollout_side": engine, "has_train_side": corrected}

    def _engine_facts(self) -> dict[str, Any]:
        """Colocated engines always use processed log-probs; a server's mode is not known here."""
        mode = getattr(self._trainer, "vllm_mode", None)
        known = {"logprobs_mode": "processed_logprobs"} if mode == "colocate" else {}
        engine = sys.modules.get("vllm")
        version = getattr(engine, "__version__", None) if mode == "colocate" else None
        found = {"name": "vllm", "version": version, "vllm_mode": mode, **known}
        return {name: value for name, value in found.items() if value is not None}

    def _trainer_facts(self) -> dict[str, Any]:
        model = self._trainer.model
        config = getattr(model, "config", None)
        found = {
            "name": "trl",
            "version": self._version,
            "dtype": getattr(model, "dtype", None),
            "temperature_applied": True,  # TRL divides its logits by args.temperature
            "attention_backend": getattr(
                getattr(model, "config", None), "_attn_implementation", None
            ),
            # Unsloth's switch that copies q into p: then nothing is compared.
            "bypass": os.environ.get("UNSLOTH_GRPO_ROLLOUT_LOGPROBS_AS_OLD") == "1" or None,
            **read_model(config),
        }
        return {name: value for name, value in found.items() if value is not None}

    def make_callback(self) -> Any:
        """A TrainerCallback: scalars as logged, and the end of a step where one rank knows it."""
        from transformers import TrainerCallback

        def on_log(_: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.scalars(state, kwargs.get("logs") or {})

        def on_step_end(_: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.end_step(state)

        methods = {"on_log": on_log, "on_step_end": on_step_end}
        return type("TwinScopeCallback", (TrainerCallback,), methods)()

    def scalars(self, state: Any, logs: Mapping[str, Any]) -> None:
        """The main rank's numbers of the step that was just made."""
        values = read_scalars(logs)
        if values and state.is_world_process_zero and state.global_step > 0:
            self._attachment.probe().scalar(step=state.global_step - 1, values=values)

    def end_step(self, state: Any) -> None:
        """One rank alone may close the step; with more, the service waits for stragglers."""
        if self._trainer.accelerator.num_processes == 1 and state.global_step > 0:
            self._attachment.probe().close_step(state.global_step - 1)
