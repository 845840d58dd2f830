"""Sampling causes: one side's number is not the density that the tokens were drawn from.

Three identities need nothing but the pair (docs/diagnosis.md): E[ρ] = 1 if q is the sampled
density, E[1/ρ] = 1 if p is, and E[ρ] = kept mass if the engine truncated and renormalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, log, sqrt
from typing import Any

import numpy as np

from twinscope_service.diagnose.claim import Claim, Diagnostic, K3From, explained
from twinscope_service.diagnose.level import expected_floor, level_strength
from twinscope_service.diagnose.temperature import (
    ExactTemperature,
    TemperatureFit,
    bound_kept,
    fit_temperature,
    k3_in_shared_contexts,
    temperature_from_logsumexp,
)
from twinscope_service.diagnose.view import Estimate, View
from twinscope_service.measure.records import EXTREME

Z_EVIDENCE = 5.0  # p = 6e-7: about 30 tests are made per diagnosis
FIT = 0.6  # least |correlation| of q − p with (q + p)/2 under a temperature
MIXED_FIT = 0.3  # the same besides lost mass, which blurs it
NEUTRAL: dict[str, tuple[float, ...]] = {  # values that change nothing
    "temperature": (1.0,),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
}
LEAST_SURPRISE = 0.01  # of the entropy: what a temperature of 0.99 does
LOST_MASS_GIBBS = 2.5  # |mean Δ| over half its mean square that lost mass gives at least
LOST_BESIDE_COLD = 0.02  # below, a T under 1 may seem to lose mass: few tokens carry much of E[ρ]
LEAST_FACTOR = 0.005  # |ln c| of q = c·p: below, wrong weights bend Δ as much
# |Δ of the line at p = 0| over the mean Δ: up to 0.03 where log-probs are divided, 0.25 and more
# where mass is lost, on the labelled traces (Δ is then bounded, and has its size early)
LINE_BENT = 0.12
LEFT_OVER = 3.0  # times the healthy k3 that divided log-probs leave beside their line
PLATEAU_FROM = 2  # buckets of q, half a nat each: below −1 nat the law has lost what it loses
PLATEAU_TOKENS, PLATEAU_BUCKETS = 25, 5  # in each bucket, and so many buckets
FLAT = 2.5  # χ² of the plateau per degree of freedom ...
UNEVEN = 0.006  # ... with what a plateau of top-p is uneven by: the last kept token overshoots
SEEN_SHARE = 0.15  # least share of Var Δ that "token occurred before" must explain for a penalty


# ---- temperature


def temperature_not_restored(view: View) -> Claim | None:
    """q = βp − Λ(β): one side divides the logits by a temperature that the other does not."""
    if view.tokens < 200 or view.correlation < 0.5:
        return None
    fit = fit_temperature(view)
    if fit is None:
        return None
    exact = None if fit.shared else temperature_from_logsumexp(view)
    ratio = fit.ratio if exact is None else exact.ratio
    strength = _temperature_strength(view, fit, exact)
    if strength < 0.7 or abs(log(ratio)) < 0.015:
        return None
    sampled = ratio if fit.honest == "rollout" else 1.0 / ratio
    left, source = _k3_at_temperature(view, fit, exact, sampled)
    return Claim(
        cause="temperature_not_restored",
        kind="tested",
        strength=strength,
        evidence=_temperature_words(fit, ratio, exact is not None),
        estimate={
            "temperature": round(sampled, 4),  # of the sampling law, the other side being at 1
            "engine_over_trainer": round(ratio, 4),
            "standard_error": None if exact is not None else round(fit.se, 4),
            "sampled_by": fit.honest,
            "from": "logsumexp_T" if exact is not None else _from_pairs(view, fit),
        },
        k3_after=left,
        k3_from=source,
        fix=_temperature_fix(fit, ratio),
    )


def _k3_at_temperature(
    view: View, fit: TemperatureFit, exact: ExactTemperature | None, sampled: float
) -> tuple[float | None, K3From]:
    """What would be left, best source first; `sampled`: temperature of the sampling law.

    None where mass is lost too: what that alone leaves is not known.
    """
    if exact is not None:
        return exact.k3, "step"
    if view.rho_excess.z < -Z_EVIDENCE:
        return None, "step"
    own = view.history is not None and view.history.baseline is not None
    shared = None if own else k3_in_shared_contexts(view, fit)
    if shared is not None:
        return shared, "contexts"
    return expected_floor(view, temperature=sampled), "level"


def _from_pairs(view: View, fit: TemperatureFit) -> str:
    """What the estimate rests on; lost mass differs between contexts and biases it."""
    if fit.shared:
        return "first tokens of answers to one prompt"
    return "pairs, roughly: mass is lost too" if view.rho_excess.z < -Z_EVIDENCE else "pairs"


def _temperature_strength(view: View, fit: TemperatureFit, exact: ExactTemperature | None) -> float:
    """From the fit's correlation, its distance from 1 and the hard bound; log-sum-exp decides."""
    away = abs(log(fit.ratio)) / max(fit.se / fit.ratio, 1e-9)
    wanted = MIXED_FIT if view.rho_excess.z < -Z_EVIDENCE else FIT
    strength = min(fit.fit / wanted, away / Z_EVIDENCE, 3.0) * bound_kept(view, fit)
    if exact is None:
        return strength
    gain = view.k3 / max(exact.k3, 1e-12)  # how much of the mismatch goes at that temperature
    return max(strength, min(gain / 3.0, 3.0)) if gain > 2.0 else min(strength, 0.5)


def _temperature_words(fit: TemperatureFit, ratio: float, exact: bool) -> str:
    """Which side is wrong first: it is what the reader has to change."""
    wrong, right = ("trainer", "engine") if fit.honest == "rollout" else ("engine", "trainer")
    source = "log-sum-exp at other temperatures" if exact else "pairs alone"
    reason = (
        f"q - p goes with p as under a temperature (correlation {fit.fit:.2f}; other faults stay "
        f"below 0.6)"
    )
    if fit.shared:
        source = "first tokens of answers to one prompt"
        reason = "there a mass that is lost as well is the same for all answers"
    return (
        f"the {wrong}'s log-probs are at the wrong temperature: the engine's are at {ratio:.3f} "
        f"times the trainer's (from {source}), and the tokens follow the {right}'s; {reason}"
    )


def _temperature_fix(fit: TemperatureFit, ratio: float) -> str:
    """For the side that is wrong only; the other is right as it is."""
    if fit.honest == "rollout":
        return (
            f"Divide the trainer's logits by the temperature the engine samples at (about "
            f"{ratio:.2f} times the trainer's own) before the log-softmax; if that is not the "
            "temperature you meant, restore the engine's instead."
        )
    return (
        "Let the engine return processed log-probs (vLLM: logprobs_mode=processed_logprobs), "
        "those at the temperature it samples at; the trainer's are right."
    )


def temperature_on_logprobs(view: View) -> Claim | None:
    """q = c·p exactly: log-probs, not logits, were divided by T, so nothing was renormalised.

    Then q is neither the sampled density nor is p, as the other reads it: both identities break, in
    opposite directions, and Δ is a line in p that goes through 0.
    """
    if view.tokens < 200 or view.correlation < 0.95:
        return None
    line, identities = fit_line(view), _both_broken(view)
    if line is None or not 0.3 < line.factor < 3.3 or abs(log(line.factor)) < LEAST_FACTOR:
        return None
    away = abs(line.factor - 1.0) / line.se
    strength = min(away / Z_EVIDENCE, identities / Z_EVIDENCE, LINE_BENT / line.bent, 3.0)
    left = view.total("qq") - line.factor * view.total("qp")
    share = left / max(view.total("d2"), 1e-300)
    k3_left = max(left, 0.0) / 2 / view.tokens
    # what is left is the healthy noise, or little of what there was
    quiet = max(LEFT_OVER * expected_floor(view) / max(k3_left, 1e-12), 0.1 / max(share, 1e-3))
    strength = min(strength, quiet)
    if strength < 0.7:
        return None
    return Claim(
        cause="temperature_on_logprobs",
        kind="tested",
        strength=strength,
        evidence=(
            f"q is {line.factor:.4f} ± {line.se:.4f} times p, a line through 0 (it misses 0 by "
            f"{abs(line.offset):.0%} of the mean Δ; a lost mass misses by a quarter and more); "
            f"{share:.1%} of Δ² is left after that factor"
        ),
        estimate={
            "factor": round(line.factor, 4),
            "temperature": round(1.0 / line.factor, 4),
            "standard_error": round(line.se, 5),
        },
        k3_after=k3_left,
        explains=1.0 - min(share, 1.0),
    )


def _both_broken(view: View) -> float:
    """|z| of the less broken identity where one is above 1 and the other below it; else 0."""
    z = view.rho_excess.z, view.inverse_excess.z
    return min(abs(z[0]), abs(z[1])) if z[0] * z[1] < 0.0 else 0.0


@dataclass(frozen=True)
class Line:
    """Δ as a line in p. `factor`: c of q = c·p; `offset`: Δ of the line at p = 0 over mean Δ."""

    factor: float
    se: float
    offset: float
    offset_se: float

    @property
    def bent(self) -> float:
        """How far from a line through 0, at least as far as can be told."""
        return max(abs(self.offset), self.offset_se, 1e-3)


def fit_line(view: View) -> Line | None:
    """Least squares over all tokens, errors clustered by sample; None: nothing to fit."""
    n, p, d, pp = (view.column(name) for name in ("n", "p", "d", "pp"))
    dp = pp - view.column("qp")
    total, sum_p, sum_d, sum_pp = (float(x.sum()) for x in (n, p, d, pp))
    determinant = total * sum_pp - sum_p * sum_p
    factor = view.ratio(view.column("qp"), pp)
    if determinant <= 1e-9 * total * sum_pp or sum_d == 0.0 or not 0.0 < factor.se < inf:
        return None
    slope = (total * float(dp.sum()) - sum_p * sum_d) / determinant
    at_zero = (sum_d - slope * sum_p) / total
    # what each sample adds to the offset: the normal equations solved for its own residuals
    moved = sum_pp * (d - at_zero * n - slope * p) - sum_p * (dp - at_zero * p - slope * pp)
    se = sqrt(float((moved * moved).sum())) / determinant
    mean = sum_d / total
    return Line(factor.value, factor.se, at_zero / mean, se / abs(mean))


# ---- truncation


def truncation_not_mirrored(view: View) -> Claim | None:
    """One side renormalises over a kept set: q − p = −ln(kept mass) ≥ 0, so E[ρ] = kept mass."""
    if view.tokens < 200 or view.correlation < 0.5:
        return None
    engine = _lost_mass(view, view.rho_excess, "q_below", "rollout")
    trainer = _lost_mass(view, view.inverse_excess, "q_above", "train")
    claims = [c for c in (engine, trainer) if c is not None]
    return max(claims, key=lambda c: c.strength) if claims else None


def _lost_mass(view: View, excess: Estimate, wrong_side: str, side: str) -> Claim | None:
    """The side `side` covers fewer tokens than the other: a mass below 1 with honest numbers."""
    lost = -excess.value
    least = 0.004
    if excess.z > -Z_EVIDENCE or lost < least or not _lost_inside(view, side, lost):
        return None
    other = view.mean("q_above" if wrong_side == "q_below" else "q_below")
    lopsided = other / max(other + view.mean(wrong_side), 1e-9)
    temperature = fit_temperature(view)
    mixed = temperature is not None and temperature.fit > MIXED_FIT
    strength = min(-excess.z / Z_EVIDENCE, 3.0)
    if not mixed:
        strength = _as_lost_mass_alone(view, side, strength)
    elif temperature is not None and temperature.ratio < 1.0 and lost < LOST_BESIDE_COLD:
        return None
    if strength < 0.3:
        return None
    kept = 1.0 + excess.value
    plain = side == "rollout" and not mixed
    rule, after = _which_truncation(view, plain=plain), _k3_after_truncation(view)
    return Claim(
        cause="truncation_not_mirrored",
        kind="tested",
        strength=strength,
        evidence=(
            f"E[{'ρ' if side == 'rollout' else '1/ρ'}] = {kept:.4f} ± {excess.se:.4f}: the "
            f"{side} side keeps {kept:.1%} of the other's mass; {lopsided:.0%} of the tokens "
            f"that differ lie on one side"
        ),
        estimate={"kept_mass": round(kept, 4), "standard_error": round(excess.se, 5), **rule},
        k3_after=after,
        explains=explained(view, after) if after is not None else 0.9,
    )


def _as_lost_mass_alone(view: View, side: str, strength: float) -> float:
    """Heavy tails and divided log-probs move E[ρ] too, but not Δ as a lost mass does.

    Tails do not move the mean of Δ so far beyond its variance; divided log-probs make Δ a line
    in p through 0.
    """
    gibbs = -view.gibbs if side == "rollout" else view.gibbs
    strength *= min(max(gibbs, 0.0) / LOST_MASS_GIBBS, 1.0)
    line = fit_line(view)
    if line is None:
        return strength
    return min(strength, (abs(line.offset) - line.offset_se) / LINE_BENT)


def _lost_inside(view: View, side: str, lost: float) -> bool:
    """Is the mass lost inside the samples too, not just at their first and last tokens?"""
    if not view.whole or side != "rollout":
        return True
    edges = [
        view.profile(name, column)[0] for name in ("first", "last") for column in ("rho_m1", "n")
    ]
    inside = (view.total("rho_m1") - edges[0] - edges[2]) / max(
        view.tokens - edges[1] - edges[3], 1
    )
    return bool(-inside > 0.6 * lost)


def _which_truncation(view: View, *, plain: bool) -> dict[str, Any]:
    """top-p, top-k or min-p, as far as the data say: header, rank of the sampled tokens, bound.

    `plain`: the engine's, and q − p holds no temperature as well: it bounds the kept mass.
    """
    sampling = view.context.sampling or {}
    found: dict[str, Any] = {}
    for key, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        value = sampling.get(key)
        if value not in (None, off, -1):
            found[key] = value
    if view.total("rank_n") > 0 and view.whole:
        found["largest_rank"] = int(view.summary.extremes[EXTREME["rank"]])
    bound = _top_p_bound(view) if plain else None
    if bound is not None:
        found["top_p_at_most"] = round(bound, 3)
    return found


def _top_p_bound(view: View) -> float | None:
    """Under top-p alone unlikely tokens keep one and the same mass P, a little above top_p.

    E[ρ] given q is the mean P of those contexts, whatever the noise of p: its plateau over the
    buckets of q, plus three standard errors. None where there is no plateau (top-k, min-p: P falls
    with q) or too little to see one.
    """
    if not view.whole:
        return None
    n, lost, d, d2 = (view.profile("q", name) for name in ("n", "rho_m1", "d", "d2"))
    use = np.flatnonzero(n >= PLATEAU_TOKENS)
    use = use[use >= PLATEAU_FROM]
    if len(use) < PLATEAU_BUCKETS:
        return None
    n, kept = n[use], 1.0 + lost[use] / n[use]
    variance = np.maximum(d2[use] / n - (d[use] / n) ** 2, 0.0) * kept**2 / n + UNEVEN**2
    weight = 1.0 / variance
    mean = float((weight * kept).sum() / weight.sum())
    chi2 = float((weight * (kept - mean) ** 2).sum())
    if chi2 > FLAT * (len(use) - 1) or mean >= 1.0:
        return None
    return min(mean + 3.0 / sqrt(float(weight.sum())), 1.0)


def _k3_after_truncation(view: View) -> float | None:
    """With the trainer's kept mass: exact. Else None."""
    if view.total("kept_n") > 0.5 * view.tokens:
        return view.mean("kept_k3", "kept_n")
    return None


# ---- penalties


def penalty_not_mirrored(view: View) -> Claim | None:
    """Tokens that occurred before are pushed down on one side only: q − p differs by "seen"."""
    if view.total("ids_n") < 200 or view.correlation < 0.5:
        return None
    seen = _contrast(view, "seen")
    response = _contrast(view, "resp")
    best = response if response.share > seen.share else seen
    strength = min(best.share / SEEN_SHARE, abs(best.z) / (2 * Z_EVIDENCE), 3.0)
    temperature = fit_temperature(view)  # flattens likely tokens, which are often seen ones
    tempered = temperature is not None and temperature.fit > FIT
    if strength < (1.0 if tempered else 0.7):
        return None
    after = view.k3 * max(1.0 - best.share, 0.0)
    scope = "response" if best is response else "prompt or response"
    return Claim(
        cause="penalty_not_mirrored",
        kind="tested",
        strength=strength,
        evidence=(
            f"Δ of tokens seen before in the {scope} is {best.gap:+.3f} nats above that of new "
            f"ones (z {best.z:.0f}), which is {best.share:.0%} of the variance of Δ"
        ),
        estimate={"gap_nats": round(best.gap, 4), "scope": scope},
        k3_after=None,
        explains=max(explained(view, after), 0.8),
    )


@dataclass(frozen=True)
class Contrast:
    """Mean Δ of seen tokens minus mean Δ of new ones."""

    gap: float
    z: float
    share: float  # of Var Δ between the two classes


def _contrast(view: View, name: str) -> Contrast:
    """Clustered by sample; share = between-class variance / variance."""
    n_in, d_in = view.column(f"{name}_n"), view.column(f"{name}_d")
    n_out, d_out = view.column("ids_n") - n_in, view.column("ids_d") - d_in
    inside, outside = view.ratio(d_in, n_in), view.ratio(d_out, n_out)
    gap, se = inside.value - outside.value, sqrt(inside.se**2 + outside.se**2)
    if not isfinite(se) or se == 0.0:
        return Contrast(0.0, 0.0, 0.0)
    part = float(n_in.sum() / max(view.total("ids_n"), 1.0))
    variance = max(view.mean("d2") - view.mean("d") ** 2, 1e-300)
    return Contrast(gap, gap / se, min(part * (1 - part) * gap**2 / variance, 1.0))


# ---- calibration


def sampling_not_as_reported(view: View) -> Claim | None:
    """E[−p] ≠ H where the pair agrees: tokens were drawn from a law that neither side reports."""
    pair_agrees = abs(view.rho_excess.z) < 2 * Z_EVIDENCE and view.correlation > 0.98
    if view.total("h_n") < 200:
        return _declared_raw(view) if pair_agrees else None
    surprise = view.token_mean("surprise", "h_n")
    # with millions of tokens the pair's own noise is significant: ask for an effect as well
    least = max(LEAST_SURPRISE * max(view.mean("h", "h_n"), 0.3), 3.0 * view.k3)
    if not pair_agrees or abs(surprise.z) < Z_EVIDENCE * 0.7 or abs(surprise.value) < least:
        return None
    quiet = view.mean("d2") < 0.25 * view.mean("surprise2", "h_n")
    colder = surprise.value < 0
    return Claim(
        cause="sampling_not_as_reported",
        kind="tested",
        strength=min(abs(surprise.z) / Z_EVIDENCE, 3.0) * (1.0 if quiet else 0.5),
        evidence=(
            f"sampled tokens are {abs(surprise.value):.3f} nats {'less' if colder else 'more'} "
            f"surprising than the entropy says (z {surprise.z:.1f}): the real sampling was "
            f"{'colder or truncated' if colder else 'hotter'}, and neither side reports it"
        ),
        estimate={
            "surprise_minus_entropy": round(surprise.value, 4),
            "standard_error": round(surprise.se, 4),
            "relative": round(surprise.value / max(view.mean("h", "h_n"), 1e-9), 4),
        },
        k3_after=view.k3,
        explains=0.0,
    )


def _declared_raw(view: View) -> Claim | None:
    """By the headers alone: sampled at T or truncated, raw log-probs returned, and p agrees.

    Raw log-probs are at temperature 1 over the full vocabulary; a p that agrees is so as well.
    """
    sampling, rollout = view.context.sampling or {}, view.context.rollout or {}
    raw = str(rollout.get("logprobs_mode", "")).startswith("raw")
    off = {key: sampling[key] for key, neutral in NEUTRAL.items()
           if sampling.get(key) is not None and sampling[key] not in neutral}  # fmt: skip
    if not raw or not off or view.tokens < 1000 or level_strength(view) >= 1.0:
        return None
    return Claim(
        cause="sampling_not_as_reported",
        kind="declared",
        strength=1.6,
        evidence=(
            f"the engine sampled with {', '.join(f'{k} {v}' for k, v in off.items())} and returns "
            f"raw log-probs, and the trainer's agree with them (k3 {view.k3:.2g}): neither side "
            f"reports the sampled law"
        ),
        estimate=off,
        k3_after=view.k3,
        explains=0.0,
        separator="the trainer's entropy: E[−p] must equal it",
    )


DIAGNOSTICS: tuple[Diagnostic, ...] = (
    temperature_on_logprobs,
    temperature_not_restored,
    truncation_not_mirrored,
    penalty_not_mirrored,
    sampling_not_as_reported,
)
