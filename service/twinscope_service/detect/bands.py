"""The first verdict: plain level bands on one closed step, no history needed.

The levels are our synthesis of what frameworks gate on and what teams report as healthy; they are
labelled so wherever they are shown. They are wide on purpose: a run's own baseline (the detectors)
is the sharper instrument. What could not be looked at is `unknown`, never `ok`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from twinscope_service.detect.disputed import (
    Disputed,
    count_disputed,
    told,
    too_many,
    worth_a_word,
)
from twinscope_service.detect.versions import ahead
from twinscope_service.measure.records import COLUMN, COVERAGE, PROFILE_COLUMNS, Summary

Verdict = Literal["ok", "inconsistent", "unknown"]
Metrics = Mapping[str, float | None]
SOURCE = "an absolute level from published figures"


@dataclass(frozen=True)
class Band:
    """Levels of rollout_train_kl, nats per token: above `warn` it is noted, `bound` decides."""

    warn: float
    bound: float


K3_BANDS: dict[str, Band] = {
    "aligned": Band(5e-13, 5e-9),  # bitwise or batch-invariant engines: |Δ| of 1e-6 and 1e-4
    "dense": Band(2e-3, 1e-2),
    "dense_fp16": Band(3e-4, 3e-3),
    "moe": Band(1e-2, 3e-2),
    "moe_replay": Band(4e-3, 1e-2),  # the trainer replays the engine's expert choices
    "fp8": Band(1e-2, 3e-2),
    "hybrid": Band(3e-2, 1e-1),  # state-space layers, 4-bit floats
}


@dataclass(frozen=True)
class Bands:
    """All levels of the first verdict."""

    k3: Mapping[str, Band] = field(default_factory=lambda: K3_BANDS)
    model_class: str = "auto"  # auto: from the fingerprints
    rho_bound: float = 0.02  # |E[ρ] − 1|; it must also be significant
    rho_significance: float = 5.0  # standard errors, clustered by sample
    outside_warn: float = 0.25  # share of tokens with ρ outside [0.9, 1.1]
    outside_bound: float = 0.40
    pearson_bound: float = 0.95  # correlation of the probabilities
    pearson_spread: float = (
        0.1  # least standard deviation of e^q for a correlation to mean anything
    )
    min_tokens: int = 1000
    min_coverage: float = 0.5
    max_unusable: float = 0.05


@dataclass(frozen=True)
class StepFacts:
    """What the join and the stages know of the step. Samples; None in a fingerprint: not sent."""

    train_samples: int = 0
    rollout_samples: int = 0
    joined: int = 0
    retokenized: int = 0
    short: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # side -> came, expected
    crashed: tuple[str, ...] = ()  # stages that failed on data of this step
    rollout: Mapping[str, Any] | None = None  # engine fingerprint
    train: Mapping[str, Any] | None = None  # trainer fingerprint
    disputed: Disputed | None = None  # None: as the summary says
    disputed_before: Sequence[Disputed] = ()  # closed steps of the run, oldest first


@dataclass(frozen=True)
class Judgement:
    """The verdict on a step, and why; an `ok` may carry reasons to keep an eye on."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()


def judge(summary: Summary, metrics: Metrics, *, facts: StepFacts, bands: Bands) -> Judgement:
    """The verdict on one step. `metrics`: derive(summary)."""
    blind = tuple(_blind(summary, facts, bands))
    if blind:
        return Judgement("unknown", blind)
    faults = tuple(_faults(summary, metrics, facts, bands))
    partial = tuple(_partial(summary, facts, bands))
    if faults:
        return Judgement("inconsistent", faults + partial)
    if partial:
        return Judgement("unknown", partial)
    return Judgement("ok", tuple(_notes(summary, metrics, facts, bands)))


def model_class(
    rollout: Mapping[str, Any] | None, train: Mapping[str, Any] | None
) -> Literal["dense", "moe", "moe_replay", "fp8", "hybrid"]:
    """The class whose bands apply, by the fingerprints; `dense` if they say nothing."""
    said = [*(rollout or {}).items(), *(train or {}).items()]
    words = " ".join(f"{key}={value}".lower() for key, value in said if value not in (None, False))
    if re.search(r"fp4|mamba|jamba|nemotron-?h|hybrid|state_space", words):
        return "hybrid"
    if re.search(r"fp8|int8|int4|awq|gptq|w[48]a\d", words):
        return "fp8"
    if re.search(
        r"moe|mixtral|experts|\ba\d+b\b|-a\d+b|deepseek-?v[2-9]|gpt-oss|\bep=[2-9]", words
    ):
        return "moe_replay" if re.search(r"(router|routing|expert)\w*replay", words) else "moe"
    return "dense"


def _blind(summary: Summary, facts: StepFacts, bands: Bands) -> Iterator[str]:
    """Why nothing can be said."""
    for stage in facts.crashed:
        yield f"{stage} failed on data of this step; see the service's log"
    counted = _covered(summary, "counted")
    if not counted and not facts.joined and not summary.samples:
        if facts.retokenized:
            yield f"all {facts.retokenized} samples hold other tokens on the two sides"
        elif not facts.train_samples:
            yield "the train side never came"
        elif not facts.rollout_samples:
            yield "no matching rollout side came"
        else:
            yield "no sample found its other side"
        return
    if counted < bands.min_tokens:
        yield f"{counted} counted tokens are too few: {bands.min_tokens} are needed"
    elif _covered(summary, "delta_zero") == counted and bands.model_class != "aligned":
        yield (
            "bypass: both sides are equal on every token, as when the trainer takes over the "
            "engine's log-probs instead of recomputing them; an engine that is bitwise equal "
            "to the trainer is declared by model_class = aligned"
        )


def _faults(summary: Summary, metrics: Metrics, facts: StepFacts, bands: Bands) -> Iterator[str]:
    """What is out of its band."""
    kind = _class(facts, bands)
    k3, where = _fresh_k3(summary, metrics, bands)
    if k3 is not None and k3 > bands.k3[kind].bound:
        bound = bands.k3[kind].bound
        yield f"rollout_train_kl {k3:.3g}{where} is above {bound:g} ({SOURCE}; {kind} model)"
    rho, error = metrics.get("rho_mean"), metrics.get("rho_mean_se")
    least = max(bands.rho_bound, bands.rho_significance * (error or 0.0))
    if rho is not None and error is not None and abs(rho - 1) > least:
        yield (
            f"the mean ratio is {rho:.4f}, {abs(rho - 1) / max(error, 1e-300):.0f} standard errors "
            "from 1: the rollout log-probs are not those of the law that was sampled"
        )
    outside = metrics.get("outside_09_11")
    if outside is not None and outside > bands.outside_bound:
        share = f"{outside:.0%} of the tokens have a ratio outside [0.9, 1.1]"
        yield f"{share}: more than {bands.outside_bound:.0%} ({SOURCE})"
    pearson = metrics.get("pearson_prob")
    if (
        pearson is not None
        and pearson < bands.pearson_bound
        and _spread(summary) > bands.pearson_spread
    ):
        low = f"below {bands.pearson_bound:g} ({SOURCE})"
        yield f"the probabilities correlate by {pearson:.3f}, {low}"
    disputed = facts.disputed or count_disputed(summary)
    against = too_many(disputed, facts.disputed_before, kind=kind)
    if against is not None:
        yield f"{told(disputed, summary)}; {against}"


def _partial(summary: Summary, facts: StepFacts, bands: Bands) -> Iterator[str]:
    """What was not looked at, or not at the weights it says: too much to call the rest `ok`."""
    if facts.train_samples and facts.joined < bands.min_coverage * facts.train_samples:
        share = facts.joined / facts.train_samples
        yield (
            f"only {facts.joined} of {facts.train_samples} train samples ({share:.0%}) found their "
            f"rollout side: {bands.min_coverage:.0%} are needed"
        )
    for side, (came, expected) in facts.short.items():
        yield f"only {came} of the {expected} {side} samples came that `expect` named"
    contradiction = ahead(summary)
    if contradiction is not None:
        yield contradiction
    live = _covered(summary, "received") - _covered(summary, "masked_out")
    unusable = {name: _covered(summary, name) for name in ("nonfinite", "sentinel", "positive")}
    if sum(unusable.values()) > bands.max_unusable * live:
        parts = ", ".join(f"{count} {name}" for name, count in unusable.items() if count)
        yield f"of {live} unmasked tokens many hold no log-prob: {parts}"


def _notes(summary: Summary, metrics: Metrics, facts: StepFacts, bands: Bands) -> Iterator[str]:
    """What an `ok` step should be told with."""
    kind = _class(facts, bands)
    k3, where = _fresh_k3(summary, metrics, bands)
    warn = bands.k3[kind].warn
    if k3 is not None and k3 > warn:
        level = f"rollout_train_kl {k3:.3g}{where} is above {warn:g}, no more than worth a look"
        yield f"{level} ({SOURCE}; {kind} model)"
    outside = metrics.get("outside_09_11")
    if outside is not None and outside > bands.outside_warn:
        yield f"{outside:.0%} of the tokens have a ratio outside [0.9, 1.1] ({SOURCE})"
    disputed = facts.disputed or count_disputed(summary)
    if worth_a_word(disputed):
        yield f"{told(disputed, summary)}; so few may be chance, here or there"
    if facts.joined < facts.train_samples:
        yield f"{facts.joined} of {facts.train_samples} train samples found their rollout side"
    if facts.retokenized:
        yield f"{facts.retokenized} samples hold other tokens on the two sides and were left out"


def _class(facts: StepFacts, bands: Bands) -> str:
    if bands.model_class != "auto":
        return bands.model_class
    return model_class(facts.rollout, facts.train)


def _fresh_k3(summary: Summary, metrics: Metrics, bands: Bands) -> tuple[float | None, str]:
    """k3 at equal weights where versions are known and enough tokens have them, else of all.

    Tokens that older weights sampled differ because the policy moved: that is no inconsistency.
    """
    fresh = summary.version_lag.get(0)
    if fresh is not None and len(summary.version_lag) > 1:
        n, k3 = fresh[PROFILE_COLUMNS.index("n")], fresh[PROFILE_COLUMNS.index("k3")]
        if n >= bands.min_tokens:
            return float(k3 / n), " at equal weights"
    if summary.version_lag and fresh is None:
        return metrics.get(
            "k3_mean"
        ), f" (sampled by weights {min(summary.version_lag)} old or more)"
    return metrics.get("k3_mean"), ""


def _spread(summary: Summary) -> float:
    """Standard deviation of e^q over counted tokens."""
    n, total, squares = (float(summary.sums[COLUMN[name]]) for name in ("n", "eq", "eqq"))
    return max(squares / n - (total / n) ** 2, 0.0) ** 0.5 if n else 0.0


def _covered(summary: Summary, name: str) -> int:
    return int(summary.coverage[COVERAGE.index(name)])
