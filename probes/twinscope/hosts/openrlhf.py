"""OpenRLHF: the `Experience` objects that the experience maker returns.

    experiences = self.experience_maker.make_experience_batch(rollout_samples)
    twinscope.hosts.openrlhf.send_experiences(probe, experiences, step=global_step)

OpenRLHF has no plugin point: the line goes into `PPOTrainer.train_step`, or into a wrap of
`RemoteExperienceMaker.make_experience_batch` in a launcher. vLLM is asked for log-probs, and for
processed ones, only with `is_correction_level` other than off.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from twinscope.probe import Probe

__all__ = ["read_experience", "send_experiences"]


def send_experiences(probe: Probe, experiences: Iterable[Any], *, step: int) -> bool:
    """Every experience of a step, in a call each, and its close: the driver has the whole batch.

    Returns whether all were taken.
    """
    reads = [functools.partial(read_experience, experience) for experience in experiences]
    taken = [probe.pair_from(read, step=step) for read in reads]  # all of them, even after a loss
    return probe.close_step(step) and all(taken)


def read_experience(experience: Any) -> dict[str, Any]:
    """Arguments for `Probe.pair` from one Experience.

    [B,A]: `rollout_log_probs` q, `action_log_probs` p, `action_mask`; they are of the last A
    tokens of `sequences` [B,T] (A is T - 1 when whole sequences are kept).
    """
    width = experience.action_mask.shape[1]
    found = {
        "rollout_logprobs": experience.rollout_log_probs,
        "train_logprobs": experience.action_log_probs,
        "ref_logprobs": experience.base_action_log_probs,
        "mask": experience.action_mask,
        "token_ids": experience.sequences[:, -width:],
        "train_fingerprint": {"name": "openrlhf", "temperature_applied": True},
    }
    return {name: value for name, value in found.items() if value is not None}
