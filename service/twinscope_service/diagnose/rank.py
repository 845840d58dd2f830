"""Diagnosis: from a Summary and what is known around it to ranked causes, best first.

1. Every cause's function states its claim, or says nothing.
2. A convincing claim hides those that it explains: a shifted array makes every later statistic
   meaningless, a temperature raises the level that an unknown weight fault would raise.
3. A claim that touches some samples only is set aside with them and the rest is diagnosed again,
   so that two faults are both found; a loud part of the samples is diagnosed by itself.
4. Strengths become calibrated confidences; what is left over is numerical noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import exp

import numpy as np

from twinscope_service.diagnose import alignment, format, numerics, sampling, weights
from twinscope_service.diagnose.calibration import confidence, noise_confidence
from twinscope_service.diagnose.cause import FAMILY_OF, Cause
from twinscope_service.diagnose.claim import Claim, Diagnostic, K3From
from twinscope_service.diagnose.context import Context, History
from twinscope_service.diagnose.fixes import FIXES
from twinscope_service.diagnose.mixture import loud_samples
from twinscope_service.diagnose.view import Mask, View
from twinscope_service.measure.records import MeasureOptions, Summary

DIAGNOSTICS: tuple[Diagnostic, ...] = (
    *format.DIAGNOSTICS,
    *alignment.DIAGNOSTICS,
    *sampling.DIAGNOSTICS,
    *weights.DIAGNOSTICS,
    *numerics.DIAGNOSTICS,
)

# Lower tiers are looked at first; a convincing claim hides all claims of higher tiers ...
TIER: dict[str, int] = {
    "side_missing": 0, "nonfinite_values": 0, "missing_value_sentinel": 1, "bypass_mode": 1,
    "mask_includes_non_response": 1, "token_shift": 2, "sample_permutation": 2, "retokenized": 2,
    "temperature_on_logprobs": 3, "wrong_token_logprob": 3, "penalty_not_mirrored": 4,
    "temperature_not_restored": 4, "truncation_not_mirrored": 4,
    "padding_attended": 5, "position_offset": 5, "stale_prefix_cache": 5, "lora_not_applied": 5,
    "mixed_weight_versions": 5, "boundary_token": 6, "train_mode_dropout": 6, "rope_mismatch": 7,
    "update_lost_to_rounding": 8, "stale_weights": 8, "partial_weight_sync": 8,
    "corrupt_weight_layout": 8, "moe_router_flips": 8, "quantized_rollout": 8,
    "low_precision_logits": 8, "norm_or_precision_mismatch": 8,
    "bf16_logprob_storage": 9, "sampling_not_as_reported": 9,
}  # fmt: skip
FEW_TOKENS = 400.0
# Kinds of events that begin a trouble of a family.
EVENTS_OF: dict[str, frozenset[str]] = {
    "weights": frozenset({"weight_sync", "restart", "cache_flush", "checkpoint"}),
    "sampling": frozenset({"config_change", "restart"}),
    "numerics": frozenset({"config_change", "restart", "engine_upgrade"}),
}
# ... but never these: they are true or false whatever else is wrong.
INDEPENDENT = frozenset(
    {"bf16_logprob_storage", "side_missing", "nonfinite_values", "bypass_mode", "retokenized"}
)
K3_IS: dict[K3From, str] = {
    "step": "computed from this step",
    "contexts": "estimated from the first tokens that answers to one prompt share",
    "history": "the lowest of this run's steps",
}
HIDES_NOTHING = INDEPENDENT - {"bypass_mode"} | {"mixed_weight_versions"}


@dataclass(frozen=True)
class DiagnoseOptions:
    """`least_confidence`: causes below it are not reported; `most_causes`: length of the answer."""

    least_confidence: float = 0.1
    most_causes: int = 6
    measure: MeasureOptions = field(default_factory=MeasureOptions)


def diagnose(
    summary: Summary,
    *,
    context: Context,
    history: History | None = None,
    options: DiagnoseOptions | None = None,
) -> tuple[Cause, ...]:
    """Ranked causes, best first; `numerical_noise` first when nothing is wrong. Pure."""
    options = options or DiagnoseOptions()
    view = View(summary, context, history)
    claims = at_onset(find_claims(view), view)
    causes = [_cause(view, claim, claims) for claim in claims]
    ranked = sorted(causes, key=lambda c: -c.confidence * _weight(c))
    ranked = _with_noise(ranked, _noise(view, claims))
    kept = [c for i, c in enumerate(ranked) if i == 0 or c.confidence >= options.least_confidence]
    return tuple(kept[: options.most_causes])


def _with_noise(ranked: list[Cause], noise: Cause) -> list[Cause]:
    """Noise comes first when it is likelier than all faults together, else where it belongs."""
    if not ranked or noise.confidence >= 0.5:
        return [noise, *ranked]
    place = sum(1 for c in ranked[1:] if c.confidence > noise.confidence) + 1
    return [*ranked[:place], noise, *ranked[place:]]


def at_onset(claims: list[Claim], view: View) -> list[Claim]:
    """What changed when it began: the onset is part of every estimate, its events of the evidence.

    An event of a claim's own kind (a weight sync for weights, a change of settings for sampling
    and numerics) makes it likelier.
    """
    onset = None if view.history is None else view.history.onset_step
    if onset is None:
        return claims
    events = [
        e.kind for e in view.context.events if e.step is not None and abs(e.step - onset) <= 1
    ]
    found = []
    for claim in claims:
        fits = set(events) & EVENTS_OF.get(FAMILY_OF[claim.cause], frozenset())
        said = f"; began at step {onset}" + (f" with {', '.join(sorted(fits))}" if fits else "")
        found.append(
            replace(
                claim,
                strength=claim.strength * (1.15 if fits else 1.0),
                evidence=claim.evidence + said,
                estimate={**claim.estimate, "onset_step": onset},
            )
        )
    return found


def find_claims(view: View, *, depth: int = 0) -> list[Claim]:
    """The claims that stand, after hiding and after looking at parts of the samples."""
    claims = visible(claim for check in DIAGNOSTICS if (claim := check(view)) is not None)
    if depth >= 2:
        return claims
    partial = next((c for c in claims if c.touched is not None and c.strength >= 1.0), None)
    if partial is not None and not any(_by_context(c) for c in claims):
        return _with_rest(view, claims, partial, depth)
    loud = loud_samples(view)
    if loud is not None and not any(_explains_contrast(c) for c in claims):
        return _with_loud(view, claims, loud, depth)
    return claims


def _by_context(claim: Claim) -> bool:
    """A property of the samples (padding, cached prefix) explains all of them together."""
    return TIER[claim.cause] == 5 and claim.touched is None and claim.strength >= 1.0


def _explains_contrast(claim: Claim) -> bool:
    """Does the claim itself say why some samples are louder than others?"""
    # sentinels, runs, copies; but not the markers that every sum leaves out
    counted = claim.kind == "exact" and TIER[claim.cause] == 1 and claim.hides
    by_sample = claim.touched is not None or TIER[claim.cause] in (5, 6)
    return claim.strength >= 1.0 and (by_sample or counted or claim.cause == "token_shift")


def visible(found: Iterable[Claim]) -> list[Claim]:
    """Drop what a convincing claim of a lower tier explains."""
    claims = sorted(found, key=lambda c: (TIER[c.cause], -c.strength))
    kept: list[Claim] = []
    for claim in claims:
        free = claim.kind == "exact" and claim.cause in INDEPENDENT
        free = free or (claim.cause == "mixed_weight_versions" and not any(map(_spoils, kept)))
        if free or not any(_hides(other, claim) for other in kept):
            kept.append(claim)
    return kept


def _spoils(claim: Claim) -> bool:
    """Numbers of other tokens on all samples: no contrast between samples means anything."""
    everywhere = claim.touched is None and claim.strength >= 1.0
    return everywhere and TIER[claim.cause] in (2, 3) and claim.cause not in HIDES_NOTHING


def _hides(strong: Claim, weak: Claim) -> bool:
    """Does `strong` make `weak` meaningless or superfluous?"""
    if strong.strength < 1.0 or strong.cause in HIDES_NOTHING or not strong.hides:
        return False
    return TIER[strong.cause] < TIER[weak.cause]


def _with_rest(view: View, claims: list[Claim], partial: Claim, depth: int) -> list[Claim]:
    """Set the touched samples aside and diagnose the others; name what is wrong in the touched."""
    touched: Mask = partial.touched
    rest = find_claims(view.narrowed(~touched), depth=depth + 1)
    found = [partial]
    for claim in claims:
        beside = claim.cause in INDEPENDENT or not claim.hides
        if claim is not partial and claim.kind == "exact" and beside:
            found.append(claim)
        elif claim is not partial and claim.cause == "mixed_weight_versions":
            found.append(replace(claim, strength=min(claim.strength, 1.0)))
    if partial.cause == "mixed_weight_versions":
        inner = find_claims(view.narrowed(touched), depth=depth + 1)
        everywhere = {c.cause for c in rest}
        named = [
            _in_part(view, c, touched)
            for c in inner
            if c.strength >= 1.0 and c.cause not in everywhere
        ]
        if any(c.kind != "set" for c in named):  # something else is wrong there than its weights
            found[0] = replace(partial, strength=min(partial.strength, 1.0))
        found += named
    known = {c.cause for c in found}
    if partial.cause in ("token_shift", "sample_permutation"):
        known.add("retokenized")  # what is left of shifted samples looks like it
    return found + [_widened(c, ~touched) for c in rest if c.cause not in known]


def _widened(claim: Claim, part: Mask) -> Claim:
    """A claim about a part, its touched samples counted over all samples."""
    if claim.touched is None:
        return claim
    touched = np.zeros(len(part), bool)
    touched[np.flatnonzero(part)[claim.touched]] = True
    return replace(claim, touched=touched)


def _with_loud(view: View, claims: list[Claim], loud: Mask, depth: int) -> list[Claim]:
    """A clearly louder part of the samples is diagnosed by itself, the rest by itself."""
    inner = [c for c in find_claims(view.narrowed(loud), depth=depth + 1) if c.strength >= 1.0]
    # All samples lag by as much: old weights are further off on some of them, that is no part.
    lagging = {c.cause: c for c in claims if c.touched is None and "version_lag" in c.estimate}
    named = [lagging.get(c.cause) or _in_part(view, c, loud) for c in inner]
    named += [c for c in claims if c.kind == "exact" and c.cause not in {i.cause for i in inner}]
    if not named:
        return claims
    if not lagging and all(c.kind in ("set", "declared") for c in inner):
        named.insert(0, weights.unlabelled_part(view, loud))
    rest = find_claims(view.narrowed(~loud), depth=depth + 1)
    known = {c.cause for c in named}
    return named + [_widened(c, ~loud) for c in rest if c.cause not in known]


def _in_part(view: View, claim: Claim, part: Mask) -> Claim:
    """A claim about some samples, said of the whole view."""
    share = float(view.column("n")[part].sum() / max(view.tokens, 1.0))
    estimate = {**claim.estimate, "samples": int(part.sum()), "share": round(share, 4)}
    others = view.narrowed(~part)
    k3_after = others.k3 if others.tokens > 0 else None
    evidence = f"in {int(part.sum())} of {view.samples} samples: {claim.evidence}"
    return replace(
        claim,
        estimate=estimate,
        touched=part,
        evidence=evidence,
        k3_after=k3_after,
        k3_from="step",
    )


def _cause(view: View, claim: Claim, claims: list[Claim]) -> Cause:
    share = 1.0
    if claim.touched is not None and len(claim.touched) == len(view.column("n")):
        share = float(view.column("n")[claim.touched].sum() / max(view.tokens, 1.0))
    return Cause(
        cause=claim.cause,
        family=FAMILY_OF[claim.cause],
        confidence=round(confidence(claim, claims), 4),
        evidence=claim.evidence,
        fix=claim.fix or FIXES[claim.cause],
        estimate=claim.estimate,
        k3_after=claim.k3_after,
        k3_after_is=_source_of_k3(view, claim),
        group=claim.group,
        separator=claim.separator,
        runbook=f"causes/{claim.cause}.md",
        share=round(share, 4),
    )


def _source_of_k3(view: View, claim: Claim) -> str:
    """Was k3_after computed from this step's numbers, or is it what healthy pairs show?"""
    if claim.k3_after is None:
        return ""
    if claim.k3_from != "level":
        return K3_IS[claim.k3_from]
    own = view.history is not None and view.history.baseline is not None
    return "this run's healthy level" if own else "typical of healthy pairs, not computed"


def _noise(view: View, claims: list[Claim]) -> Cause:
    """What is left: nothing stands out of the healthy floor."""
    counted = view.tokens > 0
    looked = 1.0 - exp(-view.tokens / FEW_TOKENS)  # nothing seen in a few tokens says little
    level = (
        f"k3 {view.k3:.3g} over {int(view.tokens)} tokens" if counted else "no token was counted"
    )
    z = np.array([view.rho_excess.z])
    return Cause(
        cause="numerical_noise",
        family="none",
        confidence=round(max(looked * noise_confidence(claims), 0.05), 4),
        evidence=f"{level}; E[ρ] is 1 within {abs(float(z[0])):.1f} standard errors",
        fix=FIXES["numerical_noise"],
        k3_after=view.k3 if counted else None,
        k3_after_is="computed from this step" if counted else "",
        runbook="causes/numerical_noise.md",
    )


def _weight(cause: Cause) -> float:
    """Among equally sure causes, those that touch more samples come first."""
    return 0.85 + 0.15 * cause.share
