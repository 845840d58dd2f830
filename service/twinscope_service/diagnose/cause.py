"""The result of diagnosis: Claim (what one cause's function says) and Cause (what users see)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Family = Literal["sampling", "alignment", "format", "weights", "numerics", "none"]

# fmt: off
FAMILIES: dict[Family, tuple[str, ...]] = {
    "sampling": ("temperature_not_restored", "temperature_on_logprobs", "truncation_not_mirrored",
                 "penalty_not_mirrored", "sampling_not_as_reported"),
    "alignment": ("token_shift", "sample_permutation", "padding_attended", "position_offset",
                  "mask_includes_non_response", "boundary_token", "retokenized"),
    "format": ("missing_value_sentinel", "nonfinite_values", "wrong_token_logprob",
               "bf16_logprob_storage", "bypass_mode", "side_missing"),
    "weights": ("stale_weights", "partial_weight_sync", "corrupt_weight_layout", "lora_not_applied",
                "stale_prefix_cache", "mixed_weight_versions", "update_lost_to_rounding"),
    "numerics": ("rope_mismatch", "low_precision_logits", "quantized_rollout", "moe_router_flips",
                 "train_mode_dropout", "norm_or_precision_mismatch"),
    "none": ("numerical_noise",),
}
# fmt: on
FAMILY_OF: dict[str, Family] = {cause: fam for fam, causes in FAMILIES.items() for cause in causes}

ESTIMATES = {  # what an estimate is, where its name alone misleads
    "engine_over_trainer": "temperature, engine's over trainer's",
    "from": "estimated from",
    "sampled_by": "the tokens follow",
    "top_p_at_most": "top-p, if that is the rule, at most",
    "samples": "samples concerned",
    "onset_step": "began at step",
}


@dataclass(frozen=True)
class Cause:
    """One ranked cause. `k3_after` is the k3 that would remain without it; None: unknown.

    `group` lists the ids that these data cannot tell apart (this one included; empty: it stands
    alone) and `separator` is the one field or test that would tell them apart.
    """

    cause: str
    family: Family
    confidence: float  # calibrated: the share of such answers that are right, 0..1
    evidence: str  # one sentence with the numbers
    fix: str  # what to check or change next
    estimate: Mapping[str, Any] = field(default_factory=dict)
    k3_after: float | None = None
    k3_after_is: str = ""  # what that number is, in words; "" without one
    group: tuple[str, ...] = ()
    separator: str = ""
    runbook: str = ""  # path below docs/, e.g. causes/token_shift.md
    share: float = 1.0  # share of the counted tokens' samples that the cause touches

    def as_json(self) -> dict[str, Any]:
        """The object of `analyze --json` and the API (DESIGN.md §11)."""
        return {
            **asdict(self),
            "estimate": dict(self.estimate),
            "estimate_in_words": named_estimates(self.estimate),
            "group": list(self.group),
        }


def named_estimates(estimate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """{title, value} of each estimate as people read it, the same number once.

    From the pair alone a temperature is a ratio of the two sides, and is called so.
    """
    ratio = estimate.get("engine_over_trainer")
    named: list[dict[str, Any]] = []
    for name, value in estimate.items():
        is_ratio = name == "temperature" and ratio is not None and value == ratio
        if is_ratio or any(one["value"] == value for one in named):
            continue
        named.append({"title": ESTIMATES.get(name, name.replace("_", " ")), "value": value})
    return named
