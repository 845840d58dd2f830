"""Both sides of a step sent as in the field: one probe per side, then the step is closed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service_process import ServiceProcess
from transformers_scoring import Scores

from twinscope import Probe

FLUSH_SECONDS = 240.0  # the first batch may find a service that still compiles


def send_step(
    service: ServiceProcess,
    run: str,
    step: int,
    *,
    rollout: Mapping[str, Any],
    train: Scores,
    fingerprint: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Send `rollout` (a reader's answer) and the trainer's tensors; the closed step's view."""
    engine_side, trainer_side = Probe(service.url, run), Probe(service.url, run)
    try:
        assert engine_side.rollout(**rollout)
        assert trainer_side.train(step=step, **train.fields(), fingerprint=fingerprint)
        assert engine_side.flush(FLUSH_SECONDS)
        trainer_side.close_step(step)
        assert trainer_side.flush(FLUSH_SECONDS)
    finally:
        engine_side.close()
        trainer_side.close()
    view: dict[str, Any] = service.get(f"/v1/runs/{run}/steps/{step}")
    return view
