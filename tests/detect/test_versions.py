"""What weight versions say by themselves: an engine ahead, a trainer or a sync that rests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from twinscope_service import replay
from twinscope_service.detect.bands import Bands, StepFacts, judge
from twinscope_service.detect.versions import Sync, Weights, ahead, same_sync, standing_still
from twinscope_service.lab.cases import summarise
from twinscope_service.measure.derive import derive
from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.records import MeasureOptions, Summary

ENGINE = build_engine("reference")


def summary_at(rollout: int | None, train: int) -> Summary:
    """A healthy recording whose first ten samples have these versions, the others equal ones."""
    batch = replay.recording("healthy_bf16")
    versions = np.full(batch.samples, train, np.int64)
    tensors = {**batch.tensors, "train_version": versions}
    if rollout is not None:
        tensors["rollout_version"] = versions.copy()
        tensors["rollout_version"][:10] = rollout
    return summarise(replace(batch, tensors=tensors), ENGINE)[0]


def test_an_engine_ahead_of_the_trainer_is_unknown_with_both_versions() -> None:
    """The numbers agree, so nobody is accused; at which weights they agree is not known."""
    summary = summary_at(rollout=12, train=9)
    metrics = derive(summary, MeasureOptions())
    verdict = judge(summary, metrics, facts=StepFacts(), bands=Bands())

    assert verdict.verdict == "unknown"
    assert "10 of 96 samples (rollout_version 12, train_version 9)" in verdict.reasons[0]


@pytest.mark.parametrize("rollout", [9, 4, None])
def test_an_engine_at_the_trainers_version_or_behind_is_not_ahead(rollout: int | None) -> None:
    """Nor one that sends no version."""
    assert ahead(summary_at(rollout=rollout, train=9)) is None


def told(
    versions: Callable[[int], int | None], steps: int, sent: Mapping[str, float] | None = None
) -> str | None:
    """What is said at the last of `steps` closed steps; `sent`: scalars of every step."""
    known = [Weights(step, versions(step)) for step in range(steps)]
    return standing_still(known, scalars=lambda step: sent or {})


def test_a_version_that_stops_is_told_after_ten_steps() -> None:
    """It moved with every step up to step 5."""
    assert told(lambda step: min(step, 5), 15) is None
    assert "train_version is 5 since step 5" in (told(lambda step: min(step, 5), 17) or "")


def test_a_pace_of_one_version_in_eight_steps_is_no_rest() -> None:
    """Three times that without a version is."""
    assert told(lambda step: step // 8, 95) is None
    assert told(lambda step: min(step // 8, 5), 70) is not None


def test_a_version_that_never_moved_is_told_only_where_updates_are_proven() -> None:
    """Gradients that were sent prove them; silence and a rate of 0 do not."""
    assert told(lambda step: 0, 40) is None
    assert told(lambda step: 0, 40, {"reward": 0.5}) is None
    assert told(lambda step: 0, 40, {"grad_norm": 0.0}) is None
    assert "gradients" in (told(lambda step: 0, 40, {"grad_norm": 0.7, "lr": 1e-6}) or "")


def test_weights_that_rest_by_design_are_not_told() -> None:
    """A learning rate of 0 says so, and a run that sends no versions says nothing."""
    assert told(lambda step: min(step, 5), 40, {"lr": 0.0, "grad_norm": 0.7}) is None
    assert told(lambda step: None, 40, {"grad_norm": 0.7}) is None


def test_two_syncs_of_one_digest_are_told_at_the_second() -> None:
    """Unless both name the same version: then there was nothing new to bring."""
    first, second = Sync(4, {"digest": "a1"}), Sync(5, {"digest": "a1"})

    assert "steps 4 and 5" in (same_sync([first, second], step=5) or "")
    assert same_sync([first, second], step=9) is None
    assert same_sync([first, Sync(5, {"digest": "b2"})], step=5) is None
    assert same_sync([Sync(4, {}), Sync(5, {})], step=5) is None
    assert same_sync([Sync(s, {"digest": "a1", "version": 3}) for s in (4, 5)], step=5) is None
