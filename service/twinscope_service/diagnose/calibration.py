"""From strengths to confidences: logistic curves fitted on the fault lab's labelled cases.

`python -m twinscope_service.lab.evaluate --fit` prints the coefficients below; they are constants,
so that an answer never depends on what else a service has seen. Strength 1 is the threshold.
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


def odds_of_fault(claim: Claim) -> float:
    """Probability that something of this kind is wrong, before a group is split."""
    bias, slope = CURVE[claim.kind]
    raw = 1.0 / (1.0 + exp(-(bias + slope * claim.strength)))
    return CEILING[claim.kind] * raw


def confidence(claim: Claim, claims: list[Claim]) -> float:
    """Calibrated probability that `claim` names the cause; sets share theirs by strength."""
    alone = odds_of_fault(claim)
    if claim.kind != "set":
        return alone
    rivals = [c for c in claims if c.kind in ("set", "declared")]
    total = sum(c.strength**4 for c in rivals)
    return alone * min(claim.strength**4 / total, 0.6)


def noise_confidence(claims: list[Claim]) -> float:
    """Probability that nothing is wrong: no claim is true. Rivals of one set count once."""
    sets = [odds_of_fault(c) for c in claims if c.kind in ("set", "declared")]
    singles = [odds_of_fault(c) for c in claims if c.kind not in ("set", "declared")]
    clear = 1.0 - max(sets, default=0.0)
    for odds in singles:
        clear *= 1.0 - odds
    return 0.98 * clear
