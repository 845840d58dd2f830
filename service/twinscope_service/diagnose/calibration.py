"""From strengths to confidences: logistic curves, checked on the fault lab's labelled cases.

`python -m twinscope_service.lab.evaluate` prints how often answers of each confidence are right on
cases held out, with --fit the curves that the other half of the cases would give. The constants
lie close to those and leave a ceiling below 1; they are constants, so that an answer never
depends on what else a service has seen. Strength 1 is the threshold.
"""

from __future__ import annotations

from math import exp

from twinscope_service.diagnose.claim import Claim, Kind

# kind -> (bias, slope) of the log-odds in `strength`
CURVE: dict[Kind, tuple[float, float]] = {
    "exact": (-3.0, 6.0),
    "tested": (-4.5, 5.5),
    "declared": (-4.5, 4.5),
    "set": (-5.0, 5.0),
}
CEILING: dict[Kind, float] = {"exact": 0.98, "tested": 0.96, "declared": 0.8, "set": 0.95}

# Structural hints against the structureless set: where the level says that something is wrong, a
# hint of this strength is as likely as the whole set.
EVEN_HINT = 0.75
EVEN_DECLARED = 0.5  # a fingerprint difference is a reason of its own
HINT_SLOPE = 5.0
STRUCTURAL = frozenset(
    {
        "rope_mismatch",
        "train_mode_dropout",
        "padding_attended",
        "position_offset",
        "stale_prefix_cache",
        "mixed_weight_versions",
        "lora_not_applied",
    }
)


def odds_of_fault(claim: Claim) -> float:
    """Probability that something of this kind is wrong, before a group is split."""
    bias, slope = CURVE[claim.kind]
    raw = 1.0 / (1.0 + exp(-(bias + slope * claim.strength)))
    return CEILING[claim.kind] * raw


def confidence(claim: Claim, claims: list[Claim]) -> float:
    """Calibrated probability that `claim` names the cause; rivals share that something is wrong."""
    alone = odds_of_fault(claim)
    rivals = [c for c in claims if _one_of_many(c)]
    unnamed = max((odds_of_fault(c) for c in rivals if c.kind != "tested"), default=0.0)
    if not _one_of_many(claim) or unnamed == 0.0:
        return alone
    shared = unnamed * _share_of(claim, rivals)
    return shared if claim.kind != "tested" else max(alone, shared)


def _one_of_many(claim: Claim) -> bool:
    """Claims that explain the same raised level, of which one is true."""
    return claim.kind in ("set", "declared") or claim.cause in STRUCTURAL


def _share_of(claim: Claim, rivals: list[Claim]) -> float:
    """This claim's part among its rivals."""
    return _vote(claim, rivals) / sum(_vote(c, rivals) for c in rivals)


def _vote(claim: Claim, rivals: list[Claim]) -> float:
    """Structural hints vote by strength, the set has one vote together, split by strength."""
    if claim.kind == "tested":
        return exp(HINT_SLOPE * (claim.strength - EVEN_HINT))
    if claim.kind == "declared":
        return exp(HINT_SLOPE * (claim.strength - EVEN_DECLARED))
    others = [c for c in rivals if c.kind == "set"]
    return claim.strength**4 / sum(c.strength**4 for c in others)


def noise_confidence(claims: list[Claim]) -> float:
    """Probability that nothing is wrong: no claim is true. Rivals of one level count once."""
    sets = [odds_of_fault(c) for c in claims if _one_of_many(c)]
    singles = [odds_of_fault(c) for c in claims if not _one_of_many(c)]
    clear = 1.0 - max(sets, default=0.0)
    for odds in singles:
        clear *= 1.0 - odds
    return 0.98 * clear
