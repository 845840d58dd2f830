"""Answers to one prompt share the context of their first token: its constants cancel there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from twinscope.wire.batch import Batch
from twinscope_service.diagnose.cause import Cause
from twinscope_service.diagnose.context import Context, History
from twinscope_service.diagnose.rank import diagnose
from twinscope_service.lab.cases import Case, summarise
from twinscope_service.measure.engine import build_engine
from twinscope_service.replay import recording

Diagnose = Callable[[Batch], tuple[Cause, ...]]
F64 = NDArray[np.float64]
SAMPLES, LENGTH, VOCABULARY, ANSWERS = 400, 25, 300, 4
NOISE = 0.05  # nats on a logit


def log_softmax(x: F64) -> F64:
    """Rows normalised, float64."""
    top = x.max(axis=1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(axis=1, keepdims=True))


def answers(temperature: float, min_p: float, seed: int) -> tuple[Batch, float]:
    """Four answers per prompt, drawn at `temperature` over the tokens that min-p keeps.

    p is at temperature 1 over all tokens, of logits with noise. Returned beside the batch: the k3
    of the same tokens if the trainer divided and truncated as the engine does.
    """
    random = np.random.default_rng(seed)
    z = random.gumbel(size=(SAMPLES * LENGTH, VOCABULARY))
    z += random.exponential(1.5, (len(z), 1)) * random.standard_normal(z.shape)
    firsts = np.arange(SAMPLES) * LENGTH
    z[firsts] = z[firsts[::ANSWERS].repeat(ANSWERS)]
    engine = log_softmax(z / temperature)
    kept = engine >= engine.max(axis=1, keepdims=True) + np.log(max(min_p, 1e-300))
    engine = log_softmax(np.where(kept, engine, -np.inf))
    uniform = random.random((len(z), 1))
    tokens = np.minimum((np.exp(engine).cumsum(axis=1) < uniform).sum(axis=1), VOCABULARY - 1)

    noise = NOISE * random.standard_normal(z.shape)
    noise[firsts] = noise[firsts[::ANSWERS].repeat(ANSWERS)]
    rows = np.arange(len(z))
    q, p = engine[rows, tokens], log_softmax(z + noise)[rows, tokens]
    after = log_softmax(np.where(kept, (z + noise) / temperature, -np.inf))[rows, tokens] - q
    prompt = np.arange(SAMPLES) // ANSWERS
    arrays = {
        "offsets": np.arange(SAMPLES + 1) * LENGTH,
        "rollout_logprobs": q.astype(np.float32),
        "train_logprobs": p.astype(np.float32),
        "token_ids": tokens.astype(np.int32),
        "prompt_ids": prompt.astype(np.int32),
        "prompt_offsets": np.arange(SAMPLES + 1),
    }
    return Batch("r", "paired", 0, arrays), float((np.expm1(after) - after).mean())


@pytest.mark.parametrize("temperature", [0.7, 0.9, 1.2])
def test_the_k3_left_by_a_temperature_is_estimated_from_pairs(
    temperature: float, diagnosed: Diagnose
) -> None:
    """Within a fifth of the k3 of the same tokens scored at the engine's temperature."""
    batch, truth = answers(temperature, 0.0, seed=3)
    first = diagnosed(batch)[0]

    assert first.cause == "temperature_not_restored"
    assert first.k3_after == pytest.approx(truth, rel=0.2)
    assert first.k3_after_is.startswith("estimated from the first tokens")


@pytest.mark.parametrize("temperature", [0.8, 0.9, 1.1, 1.3])
@pytest.mark.parametrize("min_p", [0.05, 0.1])
def test_a_temperature_is_exact_beside_a_truncation(
    temperature: float, min_p: float, diagnosed: Diagnose
) -> None:
    """Both are reported, the temperature to 2 %; what is left without it alone is not claimed."""
    found = {c.cause: c for c in diagnosed(answers(temperature, min_p, seed=3)[0])}

    assert {"temperature_not_restored", "truncation_not_mirrored"} <= found.keys()
    named = found["temperature_not_restored"]
    assert named.estimate["temperature"] == pytest.approx(temperature, rel=0.02)
    assert named.k3_after is None


def test_a_truncation_alone_is_no_temperature(diagnosed: Diagnose) -> None:
    """Shared contexts say that the factor is 1."""
    causes = {c.cause for c in diagnosed(answers(1.0, 0.1, seed=3)[0])}

    assert "truncation_not_mirrored" in causes
    assert "temperature_not_restored" not in causes


def test_a_fault_of_first_tokens_alone_is_no_temperature(
    healthy: Case, diagnosed: Diagnose
) -> None:
    """The prompt ends in another token on one side: every first token has another law."""
    p = healthy.batch.tensors["train_logprobs"].copy()
    firsts = healthy.batch.offsets[:-1]
    p[firsts] = 1.6 * p[firsts] - 0.5
    causes = [c.cause for c in diagnosed(replace(healthy.batch, tensors={
        **healthy.batch.tensors, "train_logprobs": p}))]  # fmt: skip

    assert causes[0] == "boundary_token"
    assert "temperature_not_restored" not in causes


def test_without_prompts_the_k3_left_is_said_to_be_typical(diagnosed: Diagnose) -> None:
    """No prompt ids: nobody knows which answers share a context."""
    batch, _ = answers(0.7, 0.0, seed=3)
    silent = {k: v for k, v in batch.tensors.items() if not k.startswith("prompt")}
    first = diagnosed(replace(batch, tensors=silent))[0]

    assert first.cause == "temperature_not_restored"
    assert first.k3_after_is == "typical of healthy pairs, not computed"


def test_a_recorded_temperature_leaves_what_its_healthy_twin_has(diagnosed: Diagnose) -> None:
    """Real pairs: 0.7 not restored, against the recording in which it is."""
    restored = diagnosed(recording("temperature_0.7_restored"))[0].k3_after
    first = diagnosed(recording("temperature_0.7_unrestored"))[0]

    assert restored is not None
    assert first.k3_after == pytest.approx(restored, rel=0.2)


def test_a_runs_own_healthy_level_comes_before_any_estimate(healthy: Case) -> None:
    """With a baseline, what is left is the run's own level."""
    engine = build_engine("reference")
    baseline, _ = summarise(healthy.batch, engine)
    summary, _ = summarise(answers(0.7, 0.0, seed=3)[0], engine)
    first = diagnose(summary, context=Context(), history=History(baseline=baseline))[0]

    assert first.cause == "temperature_not_restored"
    assert first.k3_after_is == "this run's healthy level"
