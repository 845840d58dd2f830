"""One run: its watched series, groups, restarts, and the way through the store."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from twinscope_service.detect import level
from twinscope_service.detect import watch as watching
from twinscope_service.detect.findings import DetectOptions, Finding, Observation
from twinscope_service.detect.presence import StepSeen
from twinscope_service.detect.series import GROUP_LABELS, observe
from twinscope_service.detect.watch import RunWatch, watch, watch_from_json
from twinscope_service.measure.derive import derive
from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.records import MeasureOptions, PairBlock, Summary

OPTIONS = DetectOptions()
MEASURE = MeasureOptions()
REPLICAS = 64


def seen(step: int, **changes: int) -> StepSeen:
    """A step with both sides there."""
    usual = {"rollout": 64, "train": 64, "counted": 9000, "delta_zero": 0}
    return StepSeen(step, None, **{**usual, **changes})


def block(*, seed: int, samples: int, length: int, spread: np.ndarray) -> PairBlock:
    """Pairs whose Δ is normal with the sample's own spread, q the sampling density on average."""
    rng = np.random.default_rng(seed)
    tokens = samples * length
    q = -rng.gamma(2.0, 1.0, tokens)
    sigma = np.repeat(spread, length)
    delta = sigma * rng.standard_normal(tokens) - sigma**2 / 2
    keys = np.zeros((samples, 16), np.uint8)
    keys[:, 0], keys[:, 1] = np.arange(samples) % 256, np.arange(samples) // 256
    return PairBlock(
        offsets=np.arange(0, tokens + 1, length, dtype=np.int64),
        rollout_logprobs=q.astype(np.float32),
        train_logprobs=np.minimum(q + delta, 0.0).astype(np.float32),
        sample_keys=keys,
        groups={"replica": tuple(str(i % REPLICAS) for i in range(samples))},
    )


def measured(pairs: PairBlock) -> Summary:
    """Through the engine that the service uses."""
    return build_engine("cpu").measure(pairs, MEASURE)


def looked_at(summary: Summary, step: int) -> list[Observation]:
    """What the watch sees of it."""
    return observe(summary, derive(summary, MEASURE), step=step)


def test_watched_series_are_the_levels_the_shares_and_every_group() -> None:
    """Names, scales, standard errors and the shared budget of the groups."""
    spread = np.full(2 * REPLICAS, 0.05)
    observations = looked_at(measured(block(seed=1, samples=128, length=60, spread=spread)), 7)
    by_name = {one.series: one for one in observations}
    assert {"k3", "abs_p50", "abs_p99", "rho_excess"} <= by_name.keys()
    assert {"nonfinite_share", "delta_zero_share", "zero_rollout_share"} <= by_name.keys()
    assert by_name["k3"].step == 7
    assert by_name["k3"].tokens == 128 * 60
    k3, error = by_name["k3"].value, by_name["k3"].standard_error
    assert k3 == pytest.approx(0.05**2 / 2, rel=0.1)
    assert error == pytest.approx(k3 * math.sqrt(2 / (128 * 60)), rel=0.5)
    assert by_name["rho_excess"].scale == "linear"
    groups = [one for one in observations if one.series.startswith("k3{replica=")]
    assert len(groups) == REPLICAS
    assert {one.family for one in groups} == {64}
    assert np.median([one.value or 0 for one in groups]) == pytest.approx(1.0)


def test_the_surprise_is_watched_where_the_trainer_sends_entropy() -> None:
    """What both sides report wrongly leaves every other series where it was."""
    rng, findings, state = np.random.default_rng(1), list[Finding](), RunWatch()
    summary = measured(block(seed=1, samples=128, length=60, spread=np.full(2 * REPLICAS, 0.05)))
    plain = derive(summary, MEASURE)
    assert "surprise" not in {one.series for one in observe(summary, plain, step=0)}
    for step in range(40):
        surprise = 0.01 * rng.standard_normal() - (0.4 if step >= 30 else 0.0)
        seen_here = observe(summary, {**plain, "surprise_mean": surprise}, step=step)
        state, found = watch(state, seen_here, seen=seen(step), options=OPTIONS)
        findings += found
    shift = next(f for f in findings if f.kind == "level_shift" and f.state == "firing")
    assert (shift.series, shift.onset_step) == ("surprise", 30)
    assert shift.after == pytest.approx(-0.4, abs=0.02)


def test_labels_that_change_by_themselves_are_not_watched() -> None:
    """A weight version lives for a step: it has no past to be compared with."""
    pairs = block(seed=1, samples=128, length=60, spread=np.full(128, 0.05))
    pairs = replace(pairs, groups={"weight_version": pairs.groups["replica"]})
    assert not [one for one in looked_at(measured(pairs), 0) if "{" in one.series]


def test_a_step_without_counted_tokens_observes_unknowns_and_is_survived() -> None:
    """Everything masked out."""
    pairs = block(seed=1, samples=64, length=10, spread=np.full(64, 0.05))
    summary = measured(replace(pairs, mask=np.zeros(640, np.uint8)))
    observations = looked_at(summary, 0)
    assert {one.value for one in observations if one.series in ("k3", "abs_p99")} == {None}
    state, findings = watch(RunWatch(), observations, seen=seen(0, counted=0), options=OPTIONS)
    assert not findings
    assert not watching.is_ready(state)


def run_with_replicas(spreads: list[np.ndarray]) -> list[Finding]:
    """All findings of a run of 64 replicas, 256 samples a step; the state goes through JSON."""
    stored, findings = None, []
    for step, spread in enumerate(spreads):
        summary = measured(block(seed=step, samples=len(spread), length=40, spread=spread))
        state, found = watch(
            watch_from_json(stored), looked_at(summary, step), seen=seen(step), options=OPTIONS
        )
        stored = json.loads(json.dumps(state.as_json())) if step % 10 == 0 else state.as_json()
        findings += found
    return findings


def test_one_bad_replica_in_64_is_found_and_named_although_the_mean_hardly_moves() -> None:
    """Its k3 doubles at step 30: the mean of all rises by 1.6 %."""
    bad = np.arange(256) % REPLICAS == 17
    spreads = [0.05 * np.where(bad & (step >= 30), math.sqrt(2.0), 1.0) for step in range(44)]
    findings = [f for f in run_with_replicas(spreads) if f.state == "firing"]
    assert {f.series for f in findings} == {"k3{replica=17}"}
    assert findings[-1].kind == "level_shift"
    assert abs((findings[-1].onset_step or 0) - 30) <= 1
    assert findings[-1].ratio == pytest.approx(2.0, rel=0.2)


def test_a_replica_that_was_bad_from_the_start_is_named_after_the_burn_in() -> None:
    """It has no healthy past; its neighbours are the comparison."""
    bad = np.arange(256) % REPLICAS == 5
    findings = run_with_replicas([0.05 * np.where(bad, 2.0, 1.0)] * 22)
    assert [(f.kind, f.state, f.series, f.onset_step) for f in findings] == [
        ("level_shift", "firing", "k3{replica=5}", 0)
    ]


def level_run(steps: list[int], levels: list[float]) -> tuple[RunWatch, list[Finding]]:
    """A run of plain k3 values under the given step numbers."""
    state, findings = RunWatch(), []
    for step, value in zip(steps, levels, strict=True):
        observations = [Observation("k3", step, value, 100_000, 512)]
        state, found = watch(state, observations, seen=seen(step), options=OPTIONS)
        findings += found
    return state, findings


def test_a_step_counter_that_jumps_back_is_a_restart_and_no_alarm() -> None:
    """The job resumes from the checkpoint of step 40; only its first step is passed over."""
    rng = np.random.default_rng(3)
    steps = [*range(60), *range(40, 90)]
    state, findings = level_run(steps, (1e-4 * np.exp(0.1 * rng.standard_normal(110))).tolist())
    assert not findings
    assert (state.restarts, state.out_of_order, state.last_step) == (1, 1, 89)


def test_a_shift_that_a_restart_brought_is_reported_with_steps_of_the_new_count() -> None:
    """Baselines survive the restart."""
    rng = np.random.default_rng(3)
    levels = 1e-4 * np.exp(0.1 * rng.standard_normal(110))
    levels[60:] *= 4
    shift = [f for f in level_run([*range(60), *range(40, 90)], levels.tolist())[1]
             if f.kind == "level_shift" and f.state == "firing"]  # fmt: skip
    assert [f.onset_step for f in shift] == [41]


def test_a_late_step_is_passed_over_and_counted() -> None:
    """Step 50 closes after step 51, step 60 never again."""
    rng = np.random.default_rng(3)
    steps = [*range(50), 51, 50, *range(52, 70)]
    state, findings = level_run(steps, (1e-4 * np.exp(0.1 * rng.standard_normal(70))).tolist())
    assert not findings
    assert (state.restarts, state.out_of_order, state.last_step) == (0, 1, 69)


def test_identical_sides_do_not_teach_a_level_of_zero() -> None:
    """Δ ≡ 0 for 30 steps is one bypass; the level afterwards is the old one, not a shift."""
    rng = np.random.default_rng(3)
    state, findings = RunWatch(), []
    for step in range(100):
        same = 40 <= step < 70
        value = 0.0 if same else 1e-4 * math.exp(0.1 * rng.standard_normal())
        observations = [Observation("k3", step, value, 9000, 64)]
        there = seen(step, delta_zero=9000 if same else 0)
        state, found = watch(state, observations, seen=there, options=OPTIONS)
        findings += found
    assert [(f.kind, f.state) for f in findings] == [
        ("bypass", "provisional"), ("bypass", "firing"), ("bypass", "resolved")
    ]  # fmt: skip


def test_a_stored_state_of_another_layout_starts_afresh() -> None:
    """After an upgrade: a burn-in, never a crash."""
    assert watch_from_json({"layout": 0, "series": "old"}) == RunWatch()
    assert watch_from_json(None) == RunWatch()


def test_a_series_of_another_version_starts_afresh_and_its_alert_still_ends() -> None:
    """An upgrade that gave the detectors one more slot, while a shift of k3 stands."""
    rng, state, findings = np.random.default_rng(5), RunWatch(), list[Finding]()
    for step in range(90):
        k3 = 1e-4 * math.exp(0.1 * rng.standard_normal()) * (5.0 if 40 <= step < 60 else 1.0)
        observations = [Observation("k3", step, k3, 1000, 8)]
        observations.append(Observation("abs_p50", step, 1e-2, 1000, 8))
        if step == 55:
            stored = state.as_json()
            slots = level.unpack(stored["series"]["k3"]["x"])
            stored["series"]["k3"]["x"] = level.pack(slots[:-1])
            state = watch_from_json(stored)
            assert not watching.is_ready(state, "k3")
            assert watching.is_ready(state, "abs_p50")
        state, found = watch(state, observations, seen=seen(step), options=OPTIONS)
        findings += found
    shifts = [(f.state, f.onset_step) for f in findings if f.kind == "level_shift"]
    assert shifts[-2:] == [("firing", 40), ("resolved", 40)]


def test_series_that_disappear_are_forgotten() -> None:
    """Memory stays bounded when labels come and go."""
    state = RunWatch()
    for step in range(300):
        name = f"k3{{replica={step // 10}}}"
        observations = [Observation(name, step, 1.0, 1000, 8)]
        state, _ = watch(state, observations, seen=seen(step), options=OPTIONS)
    assert len(state.series) <= watching.FORGET // 10 + 2


def test_labels_that_are_new_in_every_step_do_not_pile_up() -> None:
    """An identifier of the prompt instead of the replica: 64 a step, none of them twice."""
    state = RunWatch()
    for step in range(12):
        names = [f"k3{{prompt={step}-{i}}}" for i in range(64)]
        observations = [Observation(name, step, 1.0, 1000, 8) for name in names]
        observations.append(Observation("k3", step, 1e-4, 1000, 8))
        state, _ = watch(state, observations, seen=seen(step), options=OPTIONS)
    assert len(state.series) == GROUP_LABELS + 1
    assert set(names) <= state.series.keys()


def test_the_alert_of_a_replica_that_was_taken_out_ends() -> None:
    """As its runbook advises; forty steps later, and a healthy one that rests is kept."""
    rng, state, findings = np.random.default_rng(4), RunWatch(), list[Finding]()
    for step in range(130):
        there = ["0", "1"] + (["bad", "resting"] if step < 60 else [])
        levels = {name: math.exp(0.1 * rng.standard_normal()) for name in there}
        if step >= 40 and "bad" in levels:
            levels["bad"] *= 4.0
        observations = [
            Observation(f"k3{{replica={name}}}", step, value, 1000, 8, expected=1.0, family=4)
            for name, value in levels.items()
        ]
        state, found = watch(state, observations, seen=seen(step), options=OPTIONS)
        findings += found
    last = findings[-1]
    assert (last.kind, last.state, last.series) == ("level_shift", "resolved", "k3{replica=bad}")
    assert (last.step, last.onset_step) == (100, 40)
    assert last.message == (
        "rollout_train_kl of replica=bad: the level shift of step 40 is over: it has not been seen "
        "for 41 steps (step 100)"
    )
    assert state.series.keys() == {f"k3{{replica={name}}}" for name in ("0", "1", "resting")}
