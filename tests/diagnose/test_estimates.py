"""Estimates against known truth: exact categorical laws in float64, and hand-made shifts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from twinscope.counterfactual import DEFAULT_TEMPERATURES as NODES
from twinscope.wire.batch import Batch
from twinscope_service.diagnose.cause import Cause
from twinscope_service.lab.cases import Case, bare, part
from twinscope_service.lab.faults import FAULTS, STRENGTHS, apply
from twinscope_service.replay import recording

Diagnose = Callable[[Batch], tuple[Cause, ...]]
TOKENS, SAMPLES, VOCABULARY = 10_000, 100, 300


def law(seed: int) -> NDArray[np.float64]:
    """[TOKENS, VOCABULARY] logits with contexts from nearly certain to nearly flat."""
    random = np.random.default_rng(seed)
    spread = random.exponential(1.5, (TOKENS, 1))
    logits: NDArray[np.float64] = random.gumbel(size=(TOKENS, VOCABULARY)) + spread * (
        random.standard_normal((TOKENS, VOCABULARY))
    )
    return logits


def log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows normalised, float64."""
    top = x.max(axis=1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(axis=1, keepdims=True))


def cut_at(log_probs: NDArray[np.float64], top_p: float) -> NDArray[np.float64]:
    """The likeliest tokens of each row up to a mass of `top_p`; −inf elsewhere."""
    ordered = np.sort(log_probs, axis=1)[:, ::-1]
    below = np.exp(ordered).cumsum(axis=1) - np.exp(ordered) < top_p
    least = np.where(below, ordered, np.inf).min(axis=1, keepdims=True)
    return np.where(log_probs >= least, log_probs, -np.inf)


def sampled(sampler: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """One token per row, from exp(sampler)."""
    uniform = np.random.default_rng(seed).random((len(sampler), 1))
    found: NDArray[np.int64] = (np.exp(sampler).cumsum(axis=1) < uniform).sum(axis=1)
    return np.minimum(found, sampler.shape[1] - 1)


def pair(
    engine: NDArray[np.float64],
    trainer: NDArray[np.float64],
    tokens: NDArray[np.int64],
    *,
    noise: float = 0.05,
    **side: Any,
) -> Batch:
    """A paired batch of SAMPLES equal samples; p carries `noise` nats at uncertain tokens."""
    rows = np.arange(len(tokens))
    q, p = engine[rows, tokens], trainer[rows, tokens]
    off = np.random.default_rng(9).standard_normal(len(p)) * noise * -np.expm1(q)
    arrays = {
        "offsets": np.linspace(0, len(tokens), SAMPLES + 1).astype(np.int64),
        "rollout_logprobs": q.astype(np.float32),
        "train_logprobs": np.minimum(p + off, 0.0).astype(np.float32),
        "token_ids": tokens.astype(np.int32),
    }
    temperatures = side.pop("temperatures", None)
    return Batch("r", "paired", 0, arrays | side, temperatures=temperatures)


@pytest.mark.parametrize("temperature", [0.7, 0.85, 1.15, 1.3])
def test_a_temperature_is_estimated_from_pairs_alone(
    temperature: float, diagnosed: Diagnose
) -> None:
    """Within 4 % at 10 000 tokens, with the engine's q as the sampled law."""
    logits = law(1)
    engine, trainer = log_softmax(logits / temperature), log_softmax(logits)
    first = diagnosed(pair(engine, trainer, sampled(engine, 2)))[0]

    assert first.cause == "temperature_not_restored"
    assert first.estimate["sampled_by"] == "rollout"
    assert first.estimate["temperature"] == pytest.approx(temperature, rel=0.04)
    assert first.fix.startswith("Divide the trainer's logits")
    assert "processed" not in first.fix  # the engine is right and stays as it is


@pytest.mark.parametrize("temperature", [0.5, 0.6, 1.45, 1.6])
def test_a_far_temperature_is_estimated_within_ten_percent(
    temperature: float, diagnosed: Diagnose
) -> None:
    """The estimator has no bias, so it holds far from 1 as well."""
    logits = law(3)
    engine, trainer = log_softmax(logits / temperature), log_softmax(logits)
    first = diagnosed(pair(engine, trainer, sampled(engine, 4)))[0]

    assert first.cause == "temperature_not_restored"
    assert first.estimate["temperature"] == pytest.approx(temperature, rel=0.10)


def test_raw_engine_log_probs_under_a_tempered_trainer_are_told_from_the_reverse(
    diagnosed: Diagnose,
) -> None:
    """Tokens drawn at 0.7, q reported at 1, p at 0.7: p is the sampled law, T is 0.7."""
    logits = law(5)
    engine, trainer = log_softmax(logits), log_softmax(logits / 0.7)
    first = diagnosed(pair(engine, trainer, sampled(trainer, 6)))[0]

    assert first.cause == "temperature_not_restored"
    assert first.estimate["sampled_by"] == "train"
    assert first.estimate["temperature"] == pytest.approx(0.7, rel=0.04)
    assert first.fix.startswith("Let the engine return processed log-probs")


@pytest.mark.parametrize("temperature", [0.5, 0.63, 0.74, 1.25, 1.6])
def test_log_sum_exp_at_a_few_temperatures_gives_it_to_half_a_percent(
    temperature: float, diagnosed: Diagnose
) -> None:
    """And the k3 that is left is that of the same pair with the temperature restored."""
    logits = law(7)
    engine, trainer = log_softmax(logits / temperature), log_softmax(logits)
    tokens = sampled(engine, 8)
    # p alone is on the wire, so z is known up to its row's constant: take z = ln π
    lse = [np.log(np.exp(trainer / t).sum(axis=1)) for t in NODES]
    batch = pair(
        engine,
        trainer,
        tokens,
        logsumexp_T=np.array(lse, np.float32),
        temperatures=NODES,
    )
    # noise in the logits grows when they are divided
    restored = diagnosed(pair(engine, engine, tokens, noise=0.05 / temperature))[0].k3_after
    first = diagnosed(batch)[0]

    assert first.estimate["from"] == "logsumexp_T"
    assert first.estimate["temperature"] == pytest.approx(temperature, rel=0.005)
    assert restored is not None
    assert first.k3_after == pytest.approx(restored, rel=0.2)


def test_kept_mass_is_estimated_to_one_percent(diagnosed: Diagnose) -> None:
    """top-p 0.9: the mean mass kept is known from the law itself."""
    trainer = log_softmax(law(11))
    ordered = np.sort(trainer, axis=1)[:, ::-1]
    below = np.exp(ordered).cumsum(axis=1) - np.exp(ordered) < 0.9
    least = np.where(below, ordered, np.inf).min(axis=1, keepdims=True)
    engine = log_softmax(np.where(trainer >= least, trainer, -np.inf))
    kept = np.exp(np.where(trainer >= least, trainer, -np.inf)).sum(axis=1).mean()
    first = diagnosed(pair(engine, trainer, sampled(engine, 12)))[0]

    assert first.cause == "truncation_not_mirrored"
    assert first.estimate["kept_mass"] == pytest.approx(kept, rel=0.01)


@pytest.mark.parametrize("top_p", [0.8, 0.9, 0.95])
def test_the_bound_of_top_p_is_just_above_it(top_p: float, diagnosed: Diagnose) -> None:
    """Drawn from a law cut at top_p: never below the true one, and within three percent of it."""
    trainer = log_softmax(law(15))
    engine = log_softmax(cut_at(trainer, top_p))
    first = diagnosed(pair(engine, trainer, sampled(engine, 16)))[0]

    assert first.cause == "truncation_not_mirrored"
    assert top_p <= first.estimate["top_p_at_most"] <= top_p + 0.03


def test_a_law_cut_at_ten_tokens_gets_no_bound_of_top_p(diagnosed: Diagnose) -> None:
    """Its kept mass differs from context to context: there is no top_p to bound."""
    trainer = log_softmax(law(17))
    least = np.sort(trainer, axis=1)[:, -10:-9]
    engine = log_softmax(np.where(trainer >= least, trainer, -np.inf))
    first = diagnosed(pair(engine, trainer, sampled(engine, 18)))[0]

    assert first.cause == "truncation_not_mirrored"
    assert "top_p_at_most" not in first.estimate


def test_the_bound_of_top_p_holds_on_every_recorded_truncation(
    traces: list[Case], diagnosed: Diagnose
) -> None:
    """Whole, in parts and without headers; there is none for top-k and min-p, whose top_p is 1."""
    for case in (c for c in traces if c.causes[0] == "truncation_not_mirrored"):
        truth = (case.batch.sampling or {}).get("top_p", 1.0)
        parts = [part(case, tokens=2000, seed=s) for s in range(4)]
        for one in (case, bare(case), *parts):
            estimate = diagnosed(one.batch)[0].estimate
            assert estimate.get("top_p_at_most", 1.0) >= truth, one.name


@pytest.mark.parametrize("temperature", [0.8, 0.9, 0.95, 1.05, 1.1, 1.25])
def test_divided_log_probs_are_told_from_a_lost_mass_and_measured(
    temperature: float, diagnosed: Diagnose
) -> None:
    """q = p / T of a known law: the factor to half a percent, whichever side seems to lose mass."""
    trainer = log_softmax(law(19))
    first = diagnosed(pair(trainer / temperature, trainer, sampled(trainer, 20)))[0]

    assert (first.cause, first.confidence > 0.9) == ("temperature_on_logprobs", True)
    assert first.estimate["factor"] == pytest.approx(1.0 / temperature, rel=0.005)


@pytest.mark.parametrize("name", ["healthy_bf16", "temperature_0.7_restored"])
@pytest.mark.parametrize("temperature", [0.9, 0.95, 1.05, 1.1])
def test_divided_log_probs_are_named_on_recorded_pairs(
    temperature: float, name: str, diagnosed: Diagnose
) -> None:
    """2 000 tokens, without headers."""
    fault = STRENGTHS[f"temperature_on_logprobs_{temperature:g}"]
    for seed in range(3):
        smaller = part(Case(name, (fault.cause,), recording(name), name), tokens=2000, seed=seed)
        first = diagnosed(apply(fault, bare(smaller).batch, seed=seed))[0]
        assert (first.cause, first.confidence > 0.9) == (fault.cause, True)
        assert first.estimate["factor"] == pytest.approx(1.0 / temperature, rel=0.005)


@pytest.mark.parametrize(("temperature", "top_p"), [(0.8, 0.95), (1.2, 0.9), (1.3, 0.9)])
def test_temperature_and_truncation_together_are_both_reported(
    temperature: float, top_p: float, diagnosed: Diagnose
) -> None:
    """Both in the engine, neither in the trainer; the temperature is said to be rough."""
    logits = law(13)
    tempered, trainer = log_softmax(logits / temperature), log_softmax(logits)
    ordered = np.sort(tempered, axis=1)[:, ::-1]
    below = np.exp(ordered).cumsum(axis=1) - np.exp(ordered) < top_p
    least = np.where(below, ordered, np.inf).min(axis=1, keepdims=True)
    engine = log_softmax(np.where(tempered >= least, tempered, -np.inf))
    found = {c.cause: c for c in diagnosed(pair(engine, trainer, sampled(engine, 14)))}

    assert {"temperature_not_restored", "truncation_not_mirrored"} <= found.keys()
    assert "roughly" in found["temperature_not_restored"].estimate["from"]
    assert "top_p_at_most" not in found["truncation_not_mirrored"].estimate


@pytest.mark.parametrize(("fault", "lag"), [("token_shift", 1), ("token_shift_early", -3)])
def test_lags_are_exact_and_their_removal_gives_the_healthy_level(
    fault: str, lag: int, healthy: Case, diagnosed: Diagnose
) -> None:
    """The lag itself, and a counterfactual k3 within 20 % of the unshifted recording's."""
    before = diagnosed(healthy.batch)[0].k3_after
    first = diagnosed(apply(FAULTS[fault], healthy.batch, seed=1))[0]

    assert first.estimate["lag"] == lag
    assert before is not None
    assert first.k3_after == pytest.approx(before, rel=0.2)


def test_a_lag_equal_to_the_left_padding_is_said_so(healthy: Case, diagnosed: Diagnose) -> None:
    """Every sample is late by its own padding."""
    first = diagnosed(apply(FAULTS["token_shift_padding"], healthy.batch, seed=1))[0]

    assert first.estimate["lag"] == "pad_left"


def test_recorded_temperatures_are_estimated(traces: list[Case], diagnosed: Diagnose) -> None:
    """0.7, 1.3 and the reversed 0.7 within 4 %, from real pairs alone."""
    for name, truth in (
        ("0.7_unrestored", 0.7),
        ("1.3_unrestored", 1.3),
        ("0.7_trainer_only", 0.7),
    ):
        case = next(c for c in traces if c.name == f"temperature_{name}")
        first = diagnosed(case.batch)[0]
        assert first.estimate["temperature"] == pytest.approx(truth, rel=0.04)
