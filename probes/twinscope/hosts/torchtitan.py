"""torchtitan RL: q and p meet inside the loss, and only there; that is where both are read.

    import twinscope.hosts.torchtitan
    twinscope.hosts.torchtitan.observe()    # in a module that the trainer actor imports

torchtitan has no plugin point and no callback: put the line into your config registry, next to the
loss. Wrapped are `DAPOLoss.__call__` (GRPO's is the same), which gets q as `generator_logprobs`,
and the `compute_logprobs` that it calls, whose answer is p and the entropy: nothing is computed for
us. p is that of the training forward, so one optimiser step per batch compares equal weights.

Rows are packed, [B,L], and the loss does not see where samples begin: each run of trained tokens is
sent as a sample of its own, which is one turn of a rollout. `ChunkedLossWrapper` cuts runs at its
chunks. The trainer's policy version is the step; of a tensor-parallel group rank 0 sends.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from importlib import metadata
from types import ModuleType
from typing import Any

from twinscope.errors import DidNotAttach
from twinscope.hosts.attach import Attachment, Host, when_imported, wrap
from twinscope.probe import Probe

__all__ = ["observe", "read_loss"]

TORCHTITAN = Host("torchtitan", "TWINSCOPE_TORCHTITAN", versions=((0, 3),))
LOSS = "torchtitan.experiments.rl.losses.dapo"
TRAINER = "torchtitan.experiments.rl.actors.trainer"


def observe(probe: Probe | None = None) -> None:
    """Have this process's losses observed, from their import on; where there are none, nothing.

    Raises DidNotAttach for another torchtitan, unless TWINSCOPE_TORCHTITAN=untested.
    """
    attachment = Attachment(TORCHTITAN, make_probe=lambda: probe or Probe())
    try:
        version: str | None = metadata.version("torchtitan")
    except metadata.PackageNotFoundError:
        version = None
    TORCHTITAN.check(version, "untested" if attachment.switch == "untested" else "on")
    watch = _Watch(attachment, version)
    when_imported(LOSS, watch.wrap_losses)
    when_imported(TRAINER, watch.wrap_trainer)


def read_loss(labels: Any, logprobs: Any, entropy: Any, **inputs: Any) -> dict[str, Any]:
    """Arguments for `Probe.pair` from one call of the loss; all tensors [B,L], of the labels.

    Only trained tokens are sent, flat, one sample per run of them; the mask comes to the host for
    it. `advantages` are equal within a run.
    """
    mask = inputs["loss_mask"].detach() != 0
    edges = mask.cpu().int()
    zero = edges.new_zeros(edges.shape[0], 1)
    firsts = (edges.diff(dim=1, prepend=zero) == 1)[edges != 0]  # of each trained token
    starts = firsts.nonzero().flatten().tolist()
    found = {
        "rollout_logprobs": inputs["generator_logprobs"].detach()[mask],
        "train_logprobs": logprobs.detach()[mask],
        "entropy": None if entropy is None else entropy.detach()[mask],
        "token_ids": labels[mask],
        "offsets": [*starts, len(firsts)],
        "advantage": inputs["advantages"].detach()[mask].cpu()[starts],
    }
    return {name: value for name, value in found.items() if value is not None}


class _Watch:
    """The wraps of one process."""

    def __init__(self, attachment: Attachment, version: str | None) -> None:
        self._attachment = attachment
        self._version = version
        self._computed = threading.local()  # .value: what compute_logprobs returned last
        self._trainer: Callable[[], Any] = lambda: None

    def wrap_losses(self, module: ModuleType) -> None:
        """The two functions of the loss, or a refusal that the run's history shows."""

        def install() -> None:
            for owner, name in ((module, "compute_logprobs"), (module, "DAPOLoss")):
                if not callable(getattr(owner, name, None)):
                    raise DidNotAttach(f"torchtitan {self._version}: {LOSS} has no {name}")
            wrap(module, "compute_logprobs", self._keep)
            wrap(module.DAPOLoss, "__call__", self._observed)

        self._attachment.guard.run(
            "attach", False, lambda: self._attachment.attach(self._version, install)
        )

    def wrap_trainer(self, module: ModuleType) -> None:
        """Remember the process's trainer: it counts the versions."""

        def remembering(original: Callable[..., None]) -> Callable[..., None]:
            def __init__(trainer: Any, *args: Any, **kwargs: Any) -> None:
                original(trainer, *args, **kwargs)
                self._trainer = weakref.ref(trainer)

            return __init__

        wrap(module.PolicyTrainer, "__init__", remembering)

    def _keep(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compute_logprobs(*args: Any, **kwargs: Any) -> Any:
            self._computed.value = original(*args, **kwargs)
            return self._computed.value

        return compute_logprobs

    def _observed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(loss: Any, logits: Any, labels: Any, *args: Any, **inputs: Any) -> Any:
            self._computed.value = None
            answer = original(loss, logits, labels, *args, **inputs)
            self._attachment.guard.run("torchtitan", None, lambda: self._send(labels, inputs))
            self._computed.value = None  # its graph is the host's to free
            return answer

        return __call__

    def _send(self, labels: Any, inputs: dict[str, Any]) -> None:
        computed, trainer = self._computed.value, self._trainer()
        if computed is None or not _sends(trainer):
            return
        logprobs, entropy = computed if isinstance(computed, tuple) else (computed, None)
        if self._attachment.first("seam"):
            self._attachment.announce(self._version, seam="DAPOLoss")
        step = int(getattr(trainer, "policy_version", 0))
        facts = {"name": "torchtitan", "version": self._version, "temperature_applied": False}
        self._attachment.probe().pair(
            step=step,
            train_version=step,
            train_fingerprint=facts,
            **read_loss(labels, logprobs, entropy, **inputs),
        )


def _sends(trainer: Any) -> bool:
    """One rank of each tensor-parallel group: the others hold the same tokens."""
    mesh = trainer.parallel_dims.get_optional_mesh("tp") if trainer is not None else None
    return mesh is None or mesh.get_local_rank() == 0
