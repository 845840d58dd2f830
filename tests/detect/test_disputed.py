"""Tokens that the engine is sure of and the trainer is not: counted, placed, held to a past."""

from __future__ import annotations

from dataclasses import replace
from math import exp, lgamma, log

import numpy as np
import pytest
from batches import recorded_traces

from twinscope.wire.batch import Batch
from twinscope.wire.codec import read_trace
from twinscope_service import replay
from twinscope_service.detect.bands import Bands, Judgement, StepFacts, judge
from twinscope_service.detect.disputed import (
    CHANCE,
    CHANCE_OWN,
    USUAL,
    Disputed,
    count_disputed,
    poisson_tail,
    predictive_tail,
    too_many,
    worth_a_word,
)
from twinscope_service.lab.cases import summarise
from twinscope_service.measure.derive import derive
from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.records import MeasureOptions

ENGINE = build_engine("reference")
HEALTHY = ("healthy_bf16", "healthy_fp32", "moe_bf16", "moe_fp32_trainer", "norm_eps_1e-4",
           "store_bf16", "temperature_0.7_restored", "temperature_0.7_both_raw")  # fmt: skip
QUIET = [Disputed(0, 10_000)] * 30


def doubted(batch: Batch, count: int, *, seed: int = 1) -> tuple[Batch, list[tuple[int, int]]]:
    """`count` tokens of one sample each, of q above 0.74, that the trainer puts 9 nats lower."""
    q, p = (batch.tensors[f"{side}_logprobs"].copy() for side in ("rollout", "train"))
    sample = np.repeat(np.arange(batch.samples), np.diff(batch.offsets))
    sure = np.flatnonzero(q > np.log(0.74))
    _, first = np.unique(sample[sure], return_index=True)
    chosen = np.random.default_rng(seed).choice(sure[first], count, replace=False)
    p[chosen] = q[chosen] - 9.0
    places = [(int(sample[i]), int(i - batch.offsets[sample[i]])) for i in chosen]
    return replace(batch, tensors={**batch.tensors, "train_logprobs": p}), places


def judged(batch: Batch, past: list[Disputed]) -> Judgement:
    """The first verdict on a batch after closed steps."""
    summary, _ = summarise(batch, ENGINE)
    metrics = derive(summary, MeasureOptions())
    return judge(summary, metrics, facts=StepFacts(disputed_before=past), bands=Bands())


def test_three_tokens_are_too_many_for_a_run_that_never_had_one() -> None:
    """Mean k3 stays within its band; the tokens are named by sample and position."""
    batch, places = doubted(replay.recording("healthy_bf16"), 3)
    verdict = judged(batch, [Disputed(0, 10_000)] * 40)

    assert verdict.verdict == "inconsistent"
    (reason,) = verdict.reasons
    assert "this run had 0 in 400000 tokens before" in reason
    assert batch.sample_ids is not None
    for sample, position in places:
        assert f"{batch.sample_ids[sample]} token {position} (" in reason


def test_many_tokens_are_too_many_without_a_past() -> None:
    """The first step of a run is held against what healthy pairs show."""
    batch, _ = doubted(replay.recording("healthy_bf16"), 8)
    verdict = judged(batch, [])

    assert verdict.verdict == "inconsistent"
    assert "healthy dense pairs show fewer" in verdict.reasons[0]


def test_a_single_token_is_a_word_and_no_accusation() -> None:
    """One in ten thousand may happen, and its place is told."""
    batch, _ = doubted(replay.recording("healthy_bf16"), 1)
    verdict = judged(batch, QUIET)

    assert verdict.verdict == "ok"
    assert any("1 sample holds tokens" in reason for reason in verdict.reasons)


def test_one_token_in_every_step_is_too_many_after_some() -> None:
    """No step has more than one, but for thirty steps there was none."""
    past = list(QUIET)
    told = []
    for _ in range(12):
        told.append(too_many(Disputed(1, 10_000), past, kind="dense") is not None)
        past.append(Disputed(1, 10_000, healthy=not told[-1]))

    assert told[:2] == [False, False]
    assert all(told[7:])


def test_what_a_run_always_showed_is_not_held_against_it() -> None:
    """Its own steady rate, and a few more by chance: nothing in 2000 steps."""
    counts = np.random.default_rng(7).poisson(0.15, 2000).tolist()
    past: list[Disputed] = []
    for count in counts:
        now = Disputed(count, 10_000)
        assert too_many(now, past[-256:], kind="dense") is None
        past.append(now)


def test_here_and_there_in_a_very_large_step_nobody_is_told() -> None:
    """Ten in eight million tokens are below what matters, however quiet the run was."""
    now = Disputed(10, 8_000_000)

    assert not worth_a_word(now)
    assert too_many(now, [Disputed(0, 8_000_000)] * 50, kind="dense") is None


def test_tokens_of_older_weights_are_not_counted() -> None:
    """The policy moved: that is no dispute; at equal and at unknown versions it is."""
    batch, _ = doubted(replay.recording("healthy_bf16"), 5)

    def counted(lag: int) -> Disputed:
        versions = {
            "rollout_version": np.full(batch.samples, 7 - lag, np.int64),
            "train_version": np.full(batch.samples, 7, np.int64),
        }
        with_versions = replace(batch, tensors={**batch.tensors, **versions})
        return count_disputed(summarise(with_versions, ENGINE)[0])

    assert counted(1) == Disputed(0, 0)
    assert counted(0) == count_disputed(summarise(batch, ENGINE)[0])
    assert counted(0).samples == 5


def test_healthy_recordings_have_no_such_token() -> None:
    """Nor has any part of them: USUAL's bounds for dense and moe rest on it."""
    found = [path for path in recorded_traces() if path.stem in HEALTHY]
    assert found
    tokens = 0
    for path in found:
        batch = read_trace(path)
        q, p = batch.tensors["rollout_logprobs"], batch.tensors["train_logprobs"]
        assert float((q - p)[q > np.log(0.5)].max()) < 0.5
        tokens += q.size
    if len(found) > len(HEALTHY) - 1:
        assert tokens * USUAL["dense"] > 2.0  # and a rate above it would have shown


@pytest.mark.parametrize(("least", "mean"), [(1, 0.01), (3, 0.26), (5, 5.5), (40, 12.0)])
def test_the_poisson_tail_is_what_is_left_of_the_head(least: int, mean: float) -> None:
    """1 less the terms below, in plain sums; 1 from the mean down, where nobody asks."""
    head = sum(exp(k * log(mean) - mean - lgamma(k + 1)) for k in range(least))

    expected = 1.0 if least <= mean else 1.0 - head
    assert poisson_tail(least, mean) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("k", "n", "k0", "n0"), [(3, 1e4, 0, 3e5), (6, 6e4, 2, 2e5)])
def test_the_tail_for_an_unknown_rate_is_the_mixture_of_poisson_tails(
    k: int, n: float, k0: int, n0: float
) -> None:
    """Integrated over the rate's Gamma law with a fine grid."""
    edges = np.linspace(0.0, 40.0, 400_001)
    x = (edges[1:] + edges[:-1]) / 2  # rate times n0
    density = x ** (k0 - 0.5) * np.exp(-x)
    density /= density.sum()
    tails = np.array([poisson_tail(k, float(m)) if m < k else 1.0 for m in x[::40] * n / n0])
    mixed = float((tails * density.reshape(-1, 40).sum(axis=1)).sum())

    found = predictive_tail(Disputed(k, int(n)), Disputed(k0, int(n0)))
    assert found == pytest.approx(mixed, rel=0.01)


def test_the_chance_of_an_accusation_is_stated_for_each_test() -> None:
    """One healthy step in ten thousand, and less per span since the spans are many."""
    assert CHANCE_OWN < CHANCE <= 1e-4
