"""The few metrics that a run's page shows beside KL, under the names the frameworks log them by.

    probe.scalar(step=step, values=read_scalars(metrics))

One table for all of them: their names do not collide. What is not in it is not sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["NAMES", "read_scalars"]

# Ours: theirs, the first that is there. `reward` is the score before a KL penalty.
NAMES: Mapping[str, tuple[str, ...]] = {
    "reward": (
        "critic/score/mean",  # verl, ROLL
        "reward/avg_raw_reward",  # SkyRL
        "ppo_actor/task_reward/avg",  # AReaL
        "rollout/raw_reward",  # slime
        "reward",  # OpenRLHF, NeMo-RL, TRL
    ),
    "grad_norm": (
        "actor/grad_norm",  # verl
        "actor_train/grad_norm",  # ROLL
        "policy/grad_norm",  # SkyRL
        "ppo_actor/update/grad_norm",  # AReaL
        "train/grad_norm",  # slime
        "optim/grad_norm",  # prime-rl
        "trainer/grad_norm/mean",  # torchtitan
        "actor_grad_norm",  # OpenRLHF
        "grad_norm",  # NeMo-RL, TRL
    ),
    "entropy": (
        "actor/entropy",  # verl
        "policy/policy_entropy",  # SkyRL
        "ppo_actor/update/entropy/avg",  # AReaL
        "train/entropy_loss",  # slime: the mean entropy, without its coefficient
        "entropy/all/mean",  # prime-rl
        "trainer/entropy/mean",  # torchtitan
        "entropy_loss",  # OpenRLHF: likewise
        "approx_entropy",  # NeMo-RL
        "entropy",  # TRL
    ),
    "kl": (
        "actor/kl_loss",  # verl, ROLL
        "actor/reward_kl_penalty",  # verl, with the penalty in the reward
        "critic/kl",  # ROLL, likewise
        "policy/policy_kl",  # SkyRL
        "loss/avg_kl",  # SkyRL, with the penalty in the reward
        "train/kl_loss",  # slime
        "kl",  # OpenRLHF, TRL
        "kl_penalty",  # NeMo-RL
    ),
    "kl_coef": (
        "actor/kl_coef",  # verl
        "actor/reward_kl_penalty_coeff",  # verl
        "critic/kl_coef",  # ROLL
        "loss/kl_loss_coef",  # SkyRL
    ),
    "lr": (
        "actor/lr",  # verl, ROLL
        "policy/policy_lr",  # SkyRL
        "ppo_actor/update/lr",  # AReaL
        "train/lr-pg_0",  # slime
        "optim/lr",  # prime-rl
        "trainer/lr",  # torchtitan
        "actor_lr",  # OpenRLHF
        "learning_rate",  # TRL
        "lr",  # NeMo-RL
    ),
    "loss": (
        "actor/pg_loss",  # verl
        "policy/policy_loss",  # SkyRL
        "ppo_actor/update/actor_loss/avg",  # AReaL
        "train/loss",  # slime
        "loss/mean",  # prime-rl, torchtitan
        "policy_loss",  # OpenRLHF
        "loss",  # NeMo-RL, TRL
    ),
}


def read_scalars(metrics: object) -> dict[str, float]:
    """What of `metrics` the service knows, by its names. Never raises: it stands in a host's loop.

    Values are numbers, or arrays and tensors of one element; others count as absent.
    """
    if not isinstance(metrics, Mapping):
        return {}
    found = {
        ours: next((metrics[name] for name in theirs if name in metrics), None)
        for ours, theirs in NAMES.items()
    }
    numbers = {name: _number(value) for name, value in found.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(value: Any) -> float | None:
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):  # text, None; more than one element
        return None
