"""What frameworks compute from the same pair, for comparison: eager torch on a padded batch.

Written from the formulas of verl 0.9.1 (`calculate_debug_metrics` and `compute_offpolicy_metrics`,
the two functions its trainer runs each step), not from its text: the same tensor operations, one
per formula, with the same masking. Where verl is installed, `installed_verl` gives its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from twinscope_service.measure.records import PairBlock

SAFETY = 20.0  # verl's bound on log ratios before exp


def pad(block: PairBlock) -> tuple[Any, Any, Any]:
    """(train, rollout, mask) as [S, longest] float32 torch tensors, right padded; mask int64."""
    import torch

    lengths = np.diff(block.offsets)
    shape = (block.samples, int(lengths.max()))
    inside = np.arange(shape[1])[None, :] < lengths[:, None]
    train, rollout = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    mask = np.zeros(shape, np.int64)
    train[inside], rollout[inside] = block.train_logprobs, block.rollout_logprobs
    mask[inside] = 1 if block.mask is None else block.mask
    return torch.from_numpy(train), torch.from_numpy(rollout), torch.from_numpy(mask)


def masked_mean(values: Any, mask: Any, axis: int | None = None) -> Any:
    """Mean where mask is 1; excluded values may be anything."""
    import torch

    kept = torch.where(mask.bool(), values, 0.0) * mask
    return kept.sum(axis) / (mask.sum(axis) + 1e-8)


def debug_metrics(train: Any, rollout: Any, mask: Any) -> dict[str, float]:
    """Probabilities: Pearson correlation, and max, mean, std of their absolute difference."""
    import torch

    chosen = mask.bool()
    p, q = torch.exp(train), torch.exp(rollout)
    both = torch.stack([torch.masked_select(p, chosen), torch.masked_select(q, chosen)])
    difference = torch.masked_select(torch.abs(p - q), chosen)
    return {
        "rollout_actor_probs_pearson_corr": torch.corrcoef(both)[0][1].item(),
        "rollout_probs_diff_max": difference.max().item(),
        "rollout_probs_diff_mean": difference.mean().item(),
        "rollout_probs_diff_std": difference.std().item(),
    }


def offpolicy_metrics(train: Any, rollout: Any, mask: Any) -> dict[str, float]:
    """KL (k1, k3), perplexities per sequence and their differences, χ² by token and sequence."""
    import torch

    train_mean, rollout_mean = masked_mean(train, mask, -1), masked_mean(rollout, mask, -1)
    ratio = train - rollout
    gap = rollout_mean - train_mean
    rho = torch.exp(torch.clamp(ratio, -SAFETY, SAFETY))
    total = (torch.where(mask.bool(), ratio, 0.0) * mask).sum(-1)
    seq_rho2 = torch.exp(2.0 * torch.clamp(total, -SAFETY, SAFETY))
    return {
        "training_ppl": torch.exp(-train_mean).mean().item(),
        "training_log_ppl": (-train_mean).mean().item(),
        "rollout_ppl": torch.exp(-rollout_mean).mean().item(),
        "rollout_log_ppl": (-rollout_mean).mean().item(),
        "kl": masked_mean(rollout - train, mask).item(),
        "k3_kl": masked_mean(torch.exp(ratio) - ratio - 1, mask).item(),
        "log_ppl_diff": gap.mean().item(),
        "log_ppl_abs_diff": gap.abs().mean().item(),
        "log_ppl_diff_max": gap.max().item(),
        "log_ppl_diff_min": gap.min().item(),
        "ppl_ratio": torch.exp(gap).mean().item(),
        "chi2_token": (masked_mean(rho.square(), mask) - 1.0).item(),
        "chi2_seq": (seq_rho2.mean() - 1.0).item(),
    }


def both(train: Any, rollout: Any, mask: Any) -> dict[str, float]:
    """What verl's trainer computes each step."""
    return debug_metrics(train, rollout, mask) | offpolicy_metrics(train, rollout, mask)


def installed_verl() -> Callable[[Any, Any, Any], dict[str, float]] | None:
    """verl's own two functions, if verl is installed."""
    try:
        from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics
        from verl.utils.debug.metrics import calculate_debug_metrics
    except ImportError:
        return None

    class Data:
        def __init__(self, batch: dict[str, Any]) -> None:
            self.batch = batch

    def run(train: Any, rollout: Any, mask: Any) -> dict[str, float]:
        batch = {
            "rollout_log_probs": rollout,
            "old_log_probs": train,
            "response_mask": mask,
            "responses": mask,
        }
        found: dict[str, float] = dict(calculate_debug_metrics(Data(batch)))
        return {**found, **compute_offpolicy_metrics(train, rollout, mask)}

    return run
