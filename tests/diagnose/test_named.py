"""Faults are named: exact ones always, the recorded ones by their label or at least by family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope_service.diagnose.cause import FAMILY_OF, Cause
from twinscope_service.lab.cases import Case, bare, mixed, part
from twinscope_service.lab.faults import FAULTS, STRENGTHS, apply
from twinscope_service.replay import recording

Diagnose = Callable[[Batch], tuple[Cause, ...]]
EXACT = sorted(name for name, fault in FAULTS.items() if fault.exact)
SET = ("stale_weights", "partial_weight_sync", "corrupt_weight_layout")


@pytest.mark.parametrize("name", EXACT)
def test_exact_faults_are_named_first(name: str, healthy: Case, diagnosed: Diagnose) -> None:
    """Whole and on about 5 000 tokens, with bare headers."""
    batch = apply(FAULTS[name], healthy.batch, seed=3)
    whole = Case(name, (FAULTS[name].cause,), batch, "healthy_bf16")
    smaller = part(healthy, tokens=5000, seed=1)
    half = bare(Case(name, whole.causes, apply(FAULTS[name], smaller.batch, seed=4), "healthy"))

    assert diagnosed(whole.batch)[0].cause == FAULTS[name].cause
    assert diagnosed(half.batch)[0].cause == FAULTS[name].cause


@pytest.mark.parametrize("name", ["padding_attended", "position_offset", "rope_mismatch",
                                  "train_mode_dropout", "stale_prefix_cache", "lora_not_applied",
                                  "mixed_weight_versions", "stale_weights", "penalty_not_mirrored",
                                  "truncation_not_mirrored", "mask_includes_non_response",
                                  "quantized_rollout", "retokenized"])  # fmt: skip
def test_simulated_faults_are_named_first(name: str, healthy: Case, diagnosed: Diagnose) -> None:
    """Faults that put noise of the right shape in the right place."""
    first = diagnosed(apply(FAULTS[name], healthy.batch, seed=5))[0]

    assert first.cause == FAULTS[name].cause, first


def test_recorded_traces_are_named(traces: list[Case], diagnosed: Diagnose) -> None:
    """The label first, or its family where the pair cannot tell the members apart."""
    for case in traces:
        for one in (case, bare(case)):
            first = diagnosed(one.batch)[0]
            wanted = case.causes[0]
            if wanted in SET:
                assert FAMILY_OF[first.cause] == "weights", one.name
                assert wanted in first.group, one.name
            else:
                assert first.cause == wanted, one.name


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_temperature_in_a_part_of_the_samples_is_found_there(
    share: float, healthy: Case, diagnosed: Diagnose
) -> None:
    """Samples of another engine without the trainer's temperature among healthy ones."""
    name = "temperature_0.7_unrestored"
    hot = Case(name, ("temperature_not_restored",), recording(name), name)
    first = diagnosed(mixed(hot, healthy, share=share, seed=2).batch)[0]

    assert first.cause == "temperature_not_restored"
    assert first.share == pytest.approx(share, abs=0.08)
    assert first.estimate["temperature"] == pytest.approx(0.7, rel=0.08)


def test_a_shift_in_a_quarter_of_the_samples_and_a_grid_are_both_reported(
    healthy: Case, diagnosed: Diagnose
) -> None:
    """Two faults at once; the second is there on the samples that are not shifted."""
    shifted = apply(FAULTS["token_shift_quarter"], healthy.batch, seed=1)
    both = apply(FAULTS["bf16_logprob_storage"], shifted, seed=1)
    causes = {c.cause: c for c in diagnosed(both)}

    assert {"token_shift", "bf16_logprob_storage"} <= causes.keys()
    assert causes["token_shift"].share == pytest.approx(0.25, abs=0.05)


def test_a_zero_at_every_end_of_sequence_is_a_boundary_not_a_sentinel(
    healthy: Case, diagnosed: Diagnose
) -> None:
    """The trainer has 0.0 at the last token of every sample: what matters is where."""
    p = healthy.batch.tensors["train_logprobs"].copy()
    p[healthy.batch.offsets[1:] - 1] = 0.0
    tensors = {**healthy.batch.tensors, "train_logprobs": p}
    first = diagnosed(replace(healthy.batch, tensors=tensors))[0]

    assert (first.cause, first.estimate["position"]) == ("boundary_token", "last")


def test_repeats_on_both_sides_are_equal_contexts_not_a_constant(
    healthy: Case, diagnosed: Diagnose
) -> None:
    """A group of GRPO repeats its first token: q and p repeat together, which no marker does."""
    tensors = {name: np.array(values) for name, values in healthy.batch.tensors.items()}
    firsts = healthy.batch.offsets[:-1]
    tensors["rollout_logprobs"][firsts], tensors["train_logprobs"][firsts] = -1.2345678, -4.3456789
    causes = {c.cause for c in diagnosed(replace(healthy.batch, tensors=tensors))}

    assert "missing_value_sentinel" not in causes


def test_a_response_that_runs_in_a_circle_repeats_a_value_and_is_healthy(
    healthy: Case, diagnosed: Diagnose
) -> None:
    """Greedy, one context again and again: q to the last bit the same, p beside it by noise."""
    tensors = {name: np.array(values) for name, values in healthy.batch.tensors.items()}
    q = tensors["rollout_logprobs"]
    q[:] = np.float32(-0.0012345)
    noise = np.random.default_rng(3).normal(0.0, 0.003, q.size).astype(np.float32)
    tensors["train_logprobs"] = np.minimum(q + noise, np.float32(0.0))
    first = diagnosed(replace(healthy.batch, tensors=tensors))[0]

    assert first.cause == "numerical_noise"


def test_a_constant_is_named_with_its_value_and_side(healthy: Case, diagnosed: Diagnose) -> None:
    """Two tokens in a hundred of q are ln 1e-6."""
    batch = apply(FAULTS["missing_value_constant"], healthy.batch, seed=8)
    first = diagnosed(batch)[0]

    assert first.estimate["value"] == pytest.approx(np.log(1e-6), rel=1e-6)
    assert first.estimate["side"] == "rollout"


@pytest.mark.parametrize("name", ["missing_value_constant", "missing_value_constant_train"])
def test_a_constant_is_named_in_a_small_step_too(
    name: str, healthy: Case, diagnosed: Diagnose
) -> None:
    """500 tokens, ten to fifteen of them the constant: it leads the list of the worst."""
    for seed in range(4):
        smaller = part(healthy, tokens=500, seed=seed).batch
        first = diagnosed(apply(FAULTS[name], smaller, seed=seed))[0]
        assert (first.cause, first.confidence > 0.9) == ("missing_value_sentinel", True)


def test_one_exchanged_sample_of_twenty_is_not_blamed_on_the_weights(
    healthy: Case, diagnosed: Diagnose
) -> None:
    """Its p belongs to a sample that is not in the batch; all others agree."""
    batch = part(healthy, tokens=2000, seed=2).batch
    p = np.array(batch.tensors["train_logprobs"])
    size = int(batch.offsets[1])
    p[:size] = np.roll(healthy.batch.tensors["train_logprobs"], 5000)[:size]
    first = diagnosed(replace(batch, tensors={**batch.tensors, "train_logprobs": p}))[0]

    assert first.cause == "sample_permutation"
    assert first.estimate["samples"] == 1


def test_the_usual_difference_of_precision_does_not_explain_wrong_weights(
    healthy: Case, diagnosed: Diagnose
) -> None:
    """bfloat16 engine, float32 trainer, both declared; k3 is twenty times the healthy one."""
    noisy = apply(FAULTS["partial_weight_sync"], healthy.batch, seed=2)
    prints = {"rollout": {"dtype": "bfloat16"}, "train": {"dtype": "float32"}}
    first = diagnosed(replace(noisy, **prints))[0]

    assert first.family == "weights"


@pytest.mark.parametrize(
    "name", ["missing_value_few_zeros", "missing_value_few_zeros_train", "token_shift_tenth"]
)
def test_few_wrong_tokens_in_a_small_step_are_named_or_left_open(
    name: str, healthy: Case, diagnosed: Diagnose
) -> None:
    """2 000 tokens, one in a hundred a zero, or two samples shifted: nothing else for sure."""
    answers = []
    for seed in range(8):
        smaller = part(healthy, tokens=2000, seed=seed).batch
        answers.append(diagnosed(apply(STRENGTHS[name], smaller, seed=seed))[0])
    right = [a.cause == STRENGTHS[name].cause for a in answers]

    assert sum(right) >= 7
    assert all(ok or a.confidence < 0.9 for ok, a in zip(right, answers, strict=True))


def test_a_truncation_to_one_token_is_no_zero_fill(healthy: Case, diagnosed: Diagnose) -> None:
    """Half of the mass lost everywhere: certain tokens have q = 0, and are as far off as others."""
    q = healthy.batch.tensors["rollout_logprobs"]
    kept = np.maximum(np.exp(q), 0.5)
    tensors = {**healthy.batch.tensors, "rollout_logprobs": np.minimum(q - np.log(kept), 0.0)}
    causes = {c.cause for c in diagnosed(replace(healthy.batch, tensors=tensors))}

    assert "missing_value_sentinel" not in causes
