"""What headers, versions, groups, turns, advantages, references and history add."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope_service.diagnose.cause import Cause
from twinscope_service.diagnose.context import Context, Event, History, JoinCounts, StepPoint
from twinscope_service.diagnose.numerics import rope_mismatch
from twinscope_service.diagnose.rank import diagnose
from twinscope_service.diagnose.view import View
from twinscope_service.lab.cases import Case, summarise
from twinscope_service.lab.draft import Draft
from twinscope_service.lab.faults import FAULTS, apply
from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.merge import empty

Diagnose = Callable[[Batch], tuple[Cause, ...]]
ENGINE = build_engine("reference")


def disturbed(batch: Batch, sigma: float, **arrays: Any) -> Batch:
    """The batch with structureless noise on p, and extra arrays."""
    draft = Draft.of(batch, 7)
    draft.disturb_train(sigma)
    draft.arrays.update(arrays)
    return draft.finish()


def diagnosed_with(
    batch: Batch, history: History | None = None, **context: Any
) -> tuple[Cause, ...]:
    """Diagnosis with extra context fields."""
    summary, base = summarise(batch, ENGINE)
    return diagnose(summary, context=replace(base, **context), history=history)


def growing(versions: Mapping[int, int], k3: Callable[[int], float]) -> History:
    """Twenty closed steps whose k3 is `k3(step)`; `versions` maps step to engine version."""
    points = tuple(
        StepPoint(step, k3(step), 10_000, "ok", versions[step], step) for step in range(20)
    )
    return History(points)


def test_a_frozen_engine_is_stale(healthy: Case) -> None:
    """k3 grows while the engine's version stands still."""
    history = growing(dict.fromkeys(range(20), 0), lambda step: 1e-3 * 1.2**step)
    first = diagnosed_with(disturbed(healthy.batch, 0.5), history)[0]

    assert first.cause == "stale_weights"
    assert first.estimate["version_stuck"] is True


def test_a_frozen_engine_that_is_restarted_is_judged_by_its_last_tooth(healthy: Case) -> None:
    """k3 falls to the floor at step 10, loaded anew, and grows again from there."""
    history = growing(dict.fromkeys(range(20), 0), lambda step: 1e-3 * 1.3 ** (step % 10))
    first = diagnosed_with(disturbed(healthy.batch, 0.5), history)[0]

    assert first.cause == "stale_weights"
    assert "over the last 9 steps" in first.evidence


@pytest.mark.parametrize("factor", [3.0, 4.5, 8.8, 50.0])
@pytest.mark.parametrize("age", range(1, 9))
def test_one_jump_is_no_growth(age: int, factor: float, healthy: Case) -> None:
    """k3 stepped up `age` steps ago and stays, between steps that scatter by a tenth."""
    scatter = np.random.default_rng(age).normal(0.0, 0.1, 20)
    history = growing(
        dict.fromkeys(range(20), 0),
        lambda step: float(1e-3 * (factor if step >= 20 - age else 1.0) * np.exp(scatter[step])),
    )
    found = diagnosed_with(disturbed(healthy.batch, 0.5), history)

    assert not any("grew" in cause.evidence for cause in found)


def test_growth_that_begins_late_is_dated(healthy: Case) -> None:
    """Flat up to step 11, then a factor per step."""
    history = growing(dict.fromkeys(range(20), 0), lambda step: 1e-3 * 1.5 ** max(step - 11, 0))
    first = diagnosed_with(disturbed(healthy.batch, 0.5), history)[0]

    assert first.cause == "stale_weights"
    assert "over the last 8 steps" in first.evidence
    assert first.k3_after_is == "the lowest of this run's steps"


def test_growth_under_advancing_versions_and_a_coarse_engine_may_be_rounding(
    healthy: Case,
) -> None:
    """The pair cannot tell it from a frozen engine: one group, both reported."""
    history = growing({s: s for s in range(20)}, lambda step: 1e-3 * 1.2**step)
    batch = apply(FAULTS["update_lost_to_rounding"], healthy.batch, seed=1)
    found = {c.cause: c for c in diagnosed_with(batch, history)}

    assert {"stale_weights", "update_lost_to_rounding"} <= found.keys()
    assert "stale_weights" in found["update_lost_to_rounding"].group


def test_weights_that_change_inside_samples_are_seen_by_span(healthy: Case) -> None:
    """The second half of every sample is four versions fresher and quiet."""
    draft = Draft.of(healthy.batch, 3)
    lengths = np.diff(draft.offsets)
    old = draft.positions() < draft.per_token(lengths // 2)
    draft.disturb_train(np.where(old, 0.5, 0.0))
    draft.arrays["train_version"] = np.full(draft.samples, 9, np.int64)
    draft.arrays["rollout_version"] = np.full(draft.samples, 5, np.int64)
    draft.header = {"version_spans": tuple((s, int(n // 2), 9) for s, n in enumerate(lengths))}
    first = diagnosed_with(draft.finish())[0]

    assert first.cause == "mixed_weight_versions"
    assert set(first.estimate["k3_by_version_lag"]) == {"0", "4"}


def test_a_trainer_that_learned_alone_shows_in_the_advantages(healthy: Case) -> None:
    """p above q on samples of positive advantage, below it on the others."""
    advantage = np.random.default_rng(1).choice([-1.0, 1.0], healthy.batch.samples)
    draft = Draft.of(healthy.batch, 3)
    gain = 0.1 * draft.per_token(advantage) * -np.expm1(draft.q)
    draft.arrays["train_logprobs"] = np.minimum(draft.p + gain, 0.0).astype(np.float32)
    draft.arrays["advantage"] = advantage.astype(np.float32)
    first = diagnosed_with(draft.finish())[0]

    assert first.cause == "stale_weights"
    assert first.estimate["nats_per_advantage"] > 0


def test_a_packed_row_that_leaks_shows_by_slot(healthy: Case) -> None:
    """Samples behind others are off, those in front are not."""
    draft = Draft.of(healthy.batch, 3)
    slot = np.arange(draft.samples) % 3
    draft.disturb_train(draft.per_token(np.where(slot > 0, 0.4, 0.0)))
    draft.arrays["pack_slot"] = slot.astype(np.int32)
    del draft.arrays["pad_left"]
    first = diagnosed_with(draft.finish())[0]

    assert (first.cause, first.estimate["by"]) == ("padding_attended", "pack_slot")


def test_a_position_gap_of_any_width_shows_against_samples_without_padding(healthy: Case) -> None:
    """All gaps disturb alike, behind a clean first token: no rank correlation with their width."""
    draft = Draft.of(healthy.batch, 3)
    pad = np.random.default_rng(4).integers(0, 5, draft.samples).astype(np.int32)
    t = draft.positions()
    draft.disturb_train(draft.per_token(np.where(pad > 0, 0.5, 0.0)) * np.where(t == 0, 0.0, 1.0))
    draft.arrays["pad_left"] = pad
    first = diagnosed_with(draft.finish())[0]

    assert first.cause == "position_offset"


def test_later_turns_that_disagree_are_retokenized(healthy: Case) -> None:
    """First turns stay at the floor."""
    draft = Draft.of(healthy.batch, 3)
    turn = np.arange(draft.samples) % 2
    draft.disturb_train(draft.per_token(np.where(turn > 0, 0.6, 0.0)))
    draft.arrays["turn"] = turn.astype(np.int32)
    del draft.arrays["pad_left"]
    first = diagnosed_with(draft.finish())[0]

    assert (first.cause, first.estimate["by"]) == ("retokenized", "turn")


def test_an_adapter_that_counts_twice_has_a_negative_lambda(healthy: Case) -> None:
    """q is as far from p as the reference, on the other side."""
    draft = Draft.of(healthy.batch, 3)
    before = draft.p.copy()
    draft.disturb_train(0.35)
    draft.arrays["ref_logprobs"] = np.minimum(2 * draft.p - before, 0.0)
    first = diagnosed_with(draft.finish())[0]

    assert first.cause == "lora_not_applied"
    assert first.estimate["lambda"] == pytest.approx(-1.0, abs=0.2)


def test_an_engine_that_stopped_half_way_from_the_reference_is_stale_not_without_adapter(
    healthy: Case,
) -> None:
    """q lies half way from p to the start, and every sample's version says that it is old."""
    draft = Draft.of(healthy.batch, 3)
    before = draft.p.copy()
    draft.disturb_train(0.5)
    ref = draft.p + 2.0 * (before - draft.p)
    draft.arrays["ref_logprobs"] = np.minimum(ref, 0.0).astype(np.float32)
    unknown = diagnosed_with(draft.finish())[0]
    draft.arrays["rollout_version"] = np.full(draft.samples, 10, np.int64)
    draft.arrays["train_version"] = np.full(draft.samples, 20, np.int64)
    known = diagnosed_with(draft.finish())[0]

    assert unknown.cause == "lora_not_applied"
    assert unknown.estimate["lambda"] == pytest.approx(0.5, abs=0.1)
    assert (known.cause, known.estimate["version_lag"]) == ("stale_weights", 10.0)


def test_a_loud_first_token_does_not_hide_that_all_others_are_old(healthy: Case) -> None:
    """Five versions behind, off everywhere, and most at the first token: both are told."""
    draft = Draft.of(healthy.batch, 3)
    draft.disturb_train(np.where(draft.positions() == 0, 3.0, 0.5))
    draft.arrays["rollout_version"] = np.full(draft.samples, 10, np.int64)
    draft.arrays["train_version"] = np.full(draft.samples, 15, np.int64)
    causes = diagnosed_with(draft.finish())

    assert causes[0].cause == "stale_weights"
    assert "boundary_token" in {cause.cause for cause in causes}


def test_noise_that_two_comparisons_share_is_no_adapter(healthy: Case) -> None:
    """Before the first update: p's own noise is in q - p and in ref - p, at a healthy level."""
    draft = Draft.of(healthy.batch, 3)
    draft.arrays["train_logprobs"] = draft.q.astype(np.float32)
    draft.disturb_train(0.02)
    draft.arrays["ref_logprobs"] = draft.p.astype(np.float32)
    draft.arrays["train_logprobs"] = draft.q.astype(np.float32)
    draft.disturb_train(0.04)
    causes = diagnosed_with(draft.finish())

    assert causes[0].cause == "numerical_noise"
    assert "lora_not_applied" not in {cause.cause for cause in causes}


def test_different_ids_are_an_exact_finding_of_the_join(healthy: Case) -> None:
    """Reported first although the joined samples are healthy."""
    join = JoinCounts(rollout_samples=96, train_samples=96, joined=90, retokenized=6,
                      first_difference=12)  # fmt: skip
    first = diagnosed_with(healthy.batch, join=join)[0]

    assert first.cause == "retokenized"
    assert first.estimate["first_difference"] == 12


@pytest.mark.parametrize(("rollout", "train", "side"), [(40, 0, "train"), (0, 40, "rollout")])
def test_a_step_without_a_side_says_which(rollout: int, train: int, side: str) -> None:
    """No pair was measured at all."""
    join = JoinCounts(rollout_samples=rollout, train_samples=train)
    (first, *_) = diagnose(empty(), context=Context(join=join))

    assert (first.cause, first.estimate["side"]) == ("side_missing", side)


def test_an_empty_step_is_not_called_healthy_with_confidence() -> None:
    """Nothing came: the entry is there, its confidence says that nobody looked."""
    (only,) = diagnose(empty(), context=Context())

    assert only.confidence < 0.1


def test_what_changed_at_the_onset_is_in_the_answer(healthy: Case) -> None:
    """The onset step of the detector, and the sync that came with it."""
    baseline, _ = summarise(healthy.batch, ENGINE)
    history = History(baseline=baseline, onset_step=12)
    events = (Event(12, "weight_sync"), Event(3, "config_change"))
    first = diagnosed_with(disturbed(healthy.batch, 0.5), history, events=events)[0]

    assert first.family == "weights"
    assert first.estimate["onset_step"] == 12
    assert "weight_sync" in first.evidence
    assert "config_change" not in first.evidence


@pytest.mark.parametrize("key", ["rope_theta", "rope_scaling"])
def test_rotary_parameters_that_differ_are_named_whatever_the_shape(
    key: str, healthy: Case
) -> None:
    """Noise without growth, which alone would be wrong weights."""
    batch = disturbed(healthy.batch, 0.5)
    prints = {"rollout": {key: "10000.0"}, "train": {key: "1000000.0"}}
    first = diagnosed_with(replace(batch, **prints))[0]

    assert diagnosed_with(batch)[0].family == "weights"
    assert first.cause == "rope_mismatch"
    assert first.confidence > 0.9
    assert f"{key} is 10000.0 in the engine and 1000000.0 in the trainer" in first.evidence


def test_growth_is_measured_against_what_the_run_showed_before(healthy: Case) -> None:
    """Flat under the fault where healthy steps fell: the answers hide a rotary fault's growth."""
    unknown = {k: v for k, v in healthy.batch.tensors.items() if not k.startswith("prompt")}
    batch = replace(healthy.batch, tensors=unknown)
    baseline, _ = summarise(_fading(batch, 0.12), ENGINE)
    summary, context = summarise(_fading(batch, 0.02, nats=0.8), ENGINE)
    alone = diagnose(summary, context=context)[0]
    first = diagnose(summary, context=context, history=History(baseline=baseline))[0]

    assert alone.family == "weights"
    assert "rope_mismatch" in alone.group
    assert first.cause == "rope_mismatch"
    assert "of before" in first.evidence


@pytest.mark.parametrize(
    ("events", "named"),
    [(("weight_sync",), True), (("weight_sync", "cache_flush"), False), ((), False)],
)
def test_prompts_that_all_come_from_the_cache_after_a_sync_are_stale(
    events: tuple[str, ...], named: bool, healthy: Case
) -> None:
    """No sample to compare with: the events say that the cache is older than the weights."""
    lengths = np.diff(healthy.batch.tensors["prompt_offsets"])
    cached = ((lengths - 1) // 16 * 16).astype(np.int32)
    batch = disturbed(healthy.batch, 0.5, cached_tokens=cached)
    happened = tuple(Event(7, kind) for kind in events)
    first = diagnosed_with(batch, step=7, events=happened)[0]

    assert (first.cause == "stale_prefix_cache") is named
    assert first.family == "weights"


def test_prompts_of_which_only_the_start_is_cached_are_no_sign(healthy: Case) -> None:
    """A system prompt that all share is cached soon after any flush."""
    batch = disturbed(
        healthy.batch, 0.5, cached_tokens=np.full(healthy.batch.samples, 16, np.int32)
    )
    found = diagnosed_with(batch, step=7, events=(Event(7, "weight_sync"),))

    assert "stale_prefix_cache" not in {c.cause for c in found}


def _fading(batch: Batch, power: float, *, nats: float = 0.5) -> Batch:
    """Disagreement that falls with the position as (1 + t)^-power."""
    q = batch.tensors["rollout_logprobs"].astype(float)
    t = np.concatenate([np.arange(n) for n in np.diff(batch.offsets)])
    noise = np.random.default_rng(3).standard_normal(len(q)) * -np.expm1(q)
    p = q + nats * noise * (1.0 + t) ** -power
    tensors = {**batch.tensors, "train_logprobs": np.minimum(p, 0.0).astype(np.float32)}
    return replace(batch, tensors=tensors, rollout=None, train=None)


def test_disagreement_that_falls_less_steeply_than_before_is_no_rotary_fault(healthy: Case) -> None:
    """Angles that differ make it grow; a policy that became sure late in its answers does not."""
    baseline, _ = summarise(_fading(healthy.batch, 1.0), ENGINE)
    summary, context = summarise(_fading(healthy.batch, 0.6), ENGINE)

    view = View(summary, context, History(baseline=baseline, onset_step=3))

    assert view.position_slope.value == pytest.approx(-0.6, abs=0.1)
    assert rope_mismatch(view) is None


def test_cached_prompts_are_not_blamed_for_what_older_weights_made(healthy: Case) -> None:
    """Prompts differ in how far old weights are off, and the cached ones are other prompts."""
    batch = apply(FAULTS["stale_prefix_cache"], healthy.batch, seed=5)
    versions = {
        name: np.full(batch.samples, version, np.int64)
        for name, version in (("rollout_version", 3), ("train_version", 4))
    }
    behind = replace(batch, tensors={**batch.tensors, **versions})

    (now,) = (c for c in diagnosed_with(batch) if c.cause == "stale_prefix_cache")
    then = [c for c in diagnosed_with(behind) if c.cause == "stale_prefix_cache"]
    assert now.confidence > 0.9
    assert all(c.confidence < 0.5 for c in then)
    assert diagnosed_with(behind)[0].cause == "stale_weights"


def test_a_declared_quantisation_explains_a_raised_level(healthy: Case) -> None:
    """The same numbers without the fingerprint are a set of weights and numerics."""
    batch = apply(FAULTS["quantized_rollout"], healthy.batch, seed=5)
    silent = replace(batch, rollout=None, train=None)

    assert diagnosed_with(batch)[0].cause == "quantized_rollout"
    assert len(diagnosed_with(silent)[0].group) > 1


def test_headers_of_a_steps_batches_are_merged_and_clashes_kept(healthy: Case) -> None:
    """Two engines with different dtypes: the first value stands, both are told."""
    other = replace(healthy.batch, rollout={"dtype": "float16", "tp": 2})
    context = Context.from_batches([healthy.batch, other])

    assert context.rollout is not None
    assert (context.rollout["dtype"], context.rollout["tp"]) == ("bfloat16", 2)
    assert context.conflicts["rollout.dtype"] == ("bfloat16", "float16")
    assert context.join.joined == 2 * healthy.batch.samples


def test_raw_log_probs_under_a_temperature_are_declared_by_the_headers(healthy: Case) -> None:
    """Without entropies the pair agrees; the headers say that neither side reports the law."""
    tensors = {k: v for k, v in healthy.batch.tensors.items() if k != "entropy"}
    sampling = {"temperature": 0.7, "top_p": 1.0, "n": 4}
    raw = replace(healthy.batch, tensors=tensors, sampling=sampling)
    processed = replace(raw, rollout={"logprobs_mode": "processed_logprobs"})

    assert diagnosed_with(raw)[0].cause == "sampling_not_as_reported"
    assert diagnosed_with(raw)[0].estimate == {"temperature": 0.7}
    assert diagnosed_with(processed)[0].cause == "numerical_noise"
