"""The names under which frameworks log these metrics, so that a user can lay curves side by side.

Formulas were read in the versions named here. Where a framework's number can differ from ours on
the same tokens, `differs` says when.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alias:
    """`name` as `framework` logs it equals our `metric`, up to `differs`."""

    name: str
    metric: str
    framework: str
    source: str  # where that framework computes it
    differs: str = ""


_VERL_DEBUG = "verl/utils/debug/metrics.py, calculate_debug_metrics (logged as training/...)"
_VERL_CORR = "verl/trainer/ppo/rollout_corr_helper.py, compute_offpolicy_metrics"
_UNCLAMPED = "theirs does not clamp Δ, and computes e^Δ - Δ - 1 in float32"

# fmt: off
ALIASES: tuple[Alias, ...] = (
    Alias("rollout_probs_diff_mean", "prob_diff_mean", "verl 0.9.1", _VERL_DEBUG),
    Alias("rollout_probs_diff_max", "prob_diff_max", "verl 0.9.1", _VERL_DEBUG),
    Alias("rollout_probs_diff_std", "prob_diff_std", "verl 0.9.1", _VERL_DEBUG),
    Alias("rollout_actor_probs_pearson_corr", "pearson_prob", "verl 0.9.1", _VERL_DEBUG),
    Alias("rollout_corr/kl", "k1_mean", "verl 0.9.1", _VERL_CORR),
    Alias("rollout_corr/k3_kl", "k3_mean", "verl 0.9.1", _VERL_CORR, _UNCLAMPED),
    Alias("rollout_corr/chi2_token", "chi2", "verl 0.9.1", _VERL_CORR),
    Alias("rollout_corr/chi2_seq", "chi2_seq", "verl 0.9.1", _VERL_CORR),
    Alias("rollout_corr/training_ppl", "train_ppl", "verl 0.9.1", _VERL_CORR),
    Alias("rollout_corr/training_log_ppl", "train_log_ppl", "verl 0.9.1", _VERL_CORR),
    Alias("rollout_corr/rollout_ppl", "rollout_ppl", "verl 0.9.1", _VERL_CORR),
    Alias("rollout_corr/rollout_log_ppl", "rollout_log_ppl", "verl 0.9.1", _VERL_CORR),
    Alias("rollout_corr/log_ppl_diff", "log_ppl_diff", "verl 0.9.1", _VERL_CORR),
    Alias("rollout_corr/log_ppl_abs_diff", "log_ppl_abs_diff", "verl 0.9.1", _VERL_CORR),
    Alias("rollout_corr/log_ppl_diff_max", "log_ppl_diff_max", "verl 0.9.1", _VERL_CORR),
    Alias("rollout_corr/log_ppl_diff_min", "log_ppl_diff_min", "verl 0.9.1", _VERL_CORR),
    Alias("rollout_corr/ppl_ratio", "ppl_ratio", "verl 0.9.1", _VERL_CORR),
    Alias("sampling/sampling_logp_difference/mean", "abs_mean", "TRL 1.16.0", "trl/trainer/grpo_trainer.py", "theirs is a mean of per-rank means"),
    Alias("sampling/sampling_logp_difference/max", "abs_max", "TRL 1.16.0", "trl/trainer/grpo_trainer.py"),
    Alias("train_rollout_logprob_abs_diff", "abs_sample_mean", "slime 0.3.1", "slime/backends/megatron_utils/loss.py (logged as train/...)", "with --calculate-per-token-loss theirs is abs_mean"),
    Alias("token_mult_prob_error", "mult_prob_error", "NeMo-RL 0.6", "nemo_rl/algorithms/loss/loss_functions.py", "theirs does not clamp Δ"),
    Alias("gen_kl_error", "k3_mean", "NeMo-RL 0.6", "nemo_rl/algorithms/loss/loss_functions.py", _UNCLAMPED),
    Alias("policy_kl_error", "k3_reverse_mean", "NeMo-RL 0.6", "nemo_rl/algorithms/loss/loss_functions.py", _UNCLAMPED),
    Alias("sampling_importance_ratio", "rho_mean", "NeMo-RL 0.6", "nemo_rl/algorithms/loss/loss_functions.py", "theirs does not clamp Δ"),
    Alias("policy/rollout_train_logprobs_abs_diff_mean", "abs_mean", "SkyRL a9564572e", "skyrl/train/trainer.py"),
    Alias("policy/rollout_train_logprobs_abs_diff_std", "abs_std", "SkyRL a9564572e", "skyrl/train/trainer.py", "ours clamps Δ"),
    Alias("policy/rollout_train_logprobs_abs_diff_max", "abs_max", "SkyRL a9564572e", "skyrl/train/trainer.py"),
    Alias("mismatch_kl/all/mean", "k3_mean", "prime-rl 0.8.0", "prime_rl/trainer/rl/loss.py", _UNCLAMPED),
    Alias("vllm_kl", "k1_mean", "OpenRLHF 0.11.2", "openrlhf/models/loss.py"),
)
# fmt: on
