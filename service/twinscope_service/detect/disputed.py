"""Disputed tokens: the engine was sure of them (q > ln ½), the trainer is 2 nats and more below.

Precision and kernels do not make them: on 125 000 recorded tokens of healthy pairs the largest
such gap is 0.4 nats. A few of them hardly move a mean, so they are counted by themselves: per
sample, since tokens of one sample are not independent, and only where both sides had the same
weights as far as is known. Too many is more than healthy engines show, or than this run has shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log

import numpy as np

from twinscope_service.measure.formulas import DISAGREE, LOG_HALF, k3
from twinscope_service.measure.records import ATTRIBUTE, COLUMN, SampleRows, Summary, WorstToken

# Samples with a disputed token, per counted token, of healthy pairs of a class. dense, moe: upper
# 95 % bounds from recorded pairs without any (125 000 and 22 000 tokens, the latter doubled for
# larger experts); the others are guesses on the safe side.
USUAL: dict[str, float] = {
    "aligned": 2.5e-5,
    "dense": 2.5e-5,
    "dense_fp16": 2.5e-5,
    "moe_replay": 1e-4,
    "moe": 3e-4,
    "fp8": 1e-3,
    "hybrid": 1e-3,
}
LEAST = 1e-5  # of the tokens: fewer are too few to matter to anybody
LEARNING = 20  # closed steps before a run's own rate is asked
SPANS = 24  # most of the latest steps that are taken together
FACTOR = 4.0  # times the run's own rate, at least
CHANCE, CHANCE_OWN = 1e-4, 1.2e-5  # of an accusation per healthy step, and per span
PLACES = 3  # tokens that are named


@dataclass(frozen=True)
class Disputed:
    """What was counted in a step, or in several together."""

    samples: int  # with at least one disputed token
    tokens: int  # counted ones
    healthy: bool = True  # the step's verdict was ok: part of the run's own rate

    def __add__(self, other: Disputed) -> Disputed:
        return Disputed(self.samples + other.samples, self.tokens + other.tokens)

    def __sub__(self, other: Disputed) -> Disputed:
        return Disputed(self.samples - other.samples, self.tokens - other.tokens)


NONE = Disputed(0, 0)


def count_disputed(summary: Summary) -> Disputed:
    """Of the samples at equal weights, or of unknown versions; without rows, of all tokens."""
    rows = summary.rows
    if not len(rows.keys):
        behind = bool(summary.version_lag) and min(summary.version_lag) > 0
        found, tokens = (int(summary.sums[COLUMN[c]]) for c in ("confident_disagreement", "n"))
        return NONE if behind else Disputed(found, tokens)
    fresh = ~_behind(rows)
    found = rows.sums[fresh, COLUMN["confident_disagreement"]]
    return Disputed(int(np.count_nonzero(found)), int(rows.sums[fresh, COLUMN["n"]].sum()))


def _behind(rows: SampleRows) -> np.ndarray:
    """[S] bool: made by older weights than those that score it."""
    rollout, train = ATTRIBUTE["rollout_version"], ATTRIBUTE["train_version"]
    known = (rows.known >> rollout) & (rows.known >> train) & 1 == 1
    behind: np.ndarray = known & (rows.attributes[:, train] > rows.attributes[:, rollout])
    return behind


def worth_a_word(now: Disputed) -> bool:
    """Is there any, and not only here and there in a very large step?"""
    return now.samples >= max(LEAST * now.tokens, 1.0)


def too_many(now: Disputed, past: Sequence[Disputed], *, kind: str) -> str | None:
    """Against what they are too many, in words; None: they are not.

    `past`: closed steps, oldest first. `kind`: model class, of USUAL.
    """
    if not worth_a_word(now):
        return None
    usual = USUAL[kind]
    if poisson_tail(now.samples, usual * now.tokens) < CHANCE:
        return f"healthy {kind} pairs show fewer than {usual:g} per token"
    return _against_own(now, past)


def _against_own(now: Disputed, past: Sequence[Disputed]) -> str | None:
    """The latest steps together against all before them."""
    recent, before = now, sum((step for step in past if step.healthy), NONE)
    for span in range(1, SPANS + 1):
        earlier = len(past) - (span - 1)
        if earlier < LEARNING:
            return None
        if _is_more(recent, before):
            steps = "" if span == 1 else f", {recent.samples} in the last {span} steps"
            return f"this run had {before.samples} in {before.tokens} tokens before{steps}"
        last = past[earlier - 1]
        recent += last
        before = before - last if last.healthy else before
    return None


def _is_more(recent: Disputed, before: Disputed) -> bool:
    """Several times as many per token, and not by chance."""
    if before.tokens == 0 or recent.tokens == 0:
        return False
    enough = recent.samples / recent.tokens >= FACTOR * before.samples / before.tokens
    return enough and predictive_tail(recent, before) < CHANCE_OWN


def told(now: Disputed, summary: Summary) -> str:
    """How many, where the worst of them are, and what they make of mean k3."""
    shown = [t for t in summary.worst if t.q > LOG_HALF and t.q - t.p > DISAGREE]
    places = "; ".join(map(_place, shown[:PLACES]))
    total = max(float(summary.sums[COLUMN["k3"]]), 1e-300)
    share = sum(float(k3(np.array(t.p - t.q))) for t in shown) / total
    samples = "1 sample holds" if now.samples == 1 else f"{now.samples} samples hold"
    return (
        f"{samples} tokens that the engine is sure of (above ½) and the trainer finds over 7 times "
        f"less likely, which make {share:.0%} of rollout_train_kl: {places}"
    )


def _place(token: WorstToken) -> str:
    sample = token.sample_id or token.sample_key[:8]
    return f"{sample} token {token.position} ({exp(token.q):.2f} against {exp(token.p):.2g})"


def poisson_tail(least: int, mean: float) -> float:
    """P(K >= least) of a Poisson count; 1 where `least` is at most the mean."""
    if least <= mean:
        return 1.0
    term = exp(least * log(mean) - mean - lgamma(least + 1)) if mean > 0.0 else 0.0
    total, k = 0.0, least
    while term > 1e-17 * total and term > 0.0:
        total, k = total + term, k + 1
        term *= mean / k
    return min(total, 1.0)


def predictive_tail(recent: Disputed, before: Disputed) -> float:
    """P(at least as many as in `recent`) for the unknown rate that gave `before`.

    Jeffreys' prior: the rate is Gamma(samples + ½) / tokens, so the count is negative binomial.
    """
    shape, share = before.samples + 0.5, recent.tokens / (recent.tokens + before.tokens)
    least = recent.samples
    if least <= shape * share / (1.0 - share):
        return 1.0
    logarithm = lgamma(least + shape) - lgamma(shape) - lgamma(least + 1)
    term = exp(logarithm + shape * log(1.0 - share) + least * log(share))
    total, k = 0.0, least
    while term > 1e-17 * total and term > 0.0:
        total, k = total + term, k + 1
        term *= share * (k - 1 + shape) / k
    return min(total, 1.0)
