"""A verdict that lasts: wrong from the first step, and within the bands while a shift stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pipelines import Bench

from twinscope_service import replay
from twinscope_service.detect.lasting import (
    FIRES,
    RESOLVES,
    SURE,
    Lasting,
    lasting_from_json,
    recall,
)
from twinscope_service.views import AlertView, StepView

HEALTHY, FAULTY = "healthy_bf16", "temperature_0.7_unrestored"


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """A pipeline with the service's own limits."""
    return make_bench(min_tokens=1000)


def _close(bench: Bench, step: int, *, name: str = HEALTHY, times: float = 1.0) -> StepView:
    """One step of 24 samples of a recording, its Δ enlarged `times`."""
    (batch,) = replay.steps([replay.recording(name)], run="r", samples_per_step=24, seed=step)
    q, p = batch.tensors["rollout_logprobs"], batch.tensors["train_logprobs"]
    further = np.minimum(q + times * (p - q), 0).astype(np.float32)
    tensors = {**batch.tensors, "train_logprobs": further}
    return bench.close(replace(batch, step=step, tensors=tensors))


def _told(bench: Bench, kind: str) -> list[AlertView]:
    found = [alert for alert in bench.pipeline.alerts("r") if alert.kind == kind]
    return sorted(found, key=lambda alert: alert.id)


def test_a_run_that_is_wrong_from_its_first_step_is_told_once(bench: Bench) -> None:
    """Nothing shifts, so the verdict itself is the news; a restart between changes nothing."""
    views = []
    for step in range(10):
        if step in (1, 5):
            bench.restart()
        views.append(_close(bench, step, name=FAULTY))
    news = _told(bench, "inconsistent")
    assert {view.verdict for view in views} == {"inconsistent"}
    assert [(alert.state, alert.step, alert.onset_step) for alert in news] == [("firing", 2, 0)]
    assert news[0].causes[0] == "temperature_not_restored"
    assert not _told(bench, "level_shift")

    for step in range(10, 10 + RESOLVES):
        _close(bench, step)
    over = _told(bench, "inconsistent")[-1]
    assert (over.state, over.step) == ("resolved", 9 + RESOLVES)


def test_a_fault_that_a_shift_tells_is_not_told_twice(bench: Bench) -> None:
    """22 healthy steps, then ten times the level: one trouble, dated by its shift."""
    for step in range(22):
        _close(bench, step, times=0.5)
    faulty = [_close(bench, step, name=FAULTY) for step in range(22, 30)]

    assert {view.verdict for view in faulty} == {"inconsistent"}
    assert not _told(bench, "inconsistent")
    assert {alert.onset_step for alert in _told(bench, "level_shift")} == {22}


def test_a_step_within_the_bands_is_not_ok_while_its_shift_stands(
    make_bench: Callable[..., Bench], bench: Bench
) -> None:
    """Alone it would be `ok`; ten times above the run's own level, after a fault, it is not."""
    fresh = make_bench(min_tokens=1000)
    assert {_close(fresh, step, times=1.6).verdict for step in range(3)} == {"ok"}

    sizes = [0.5] * 22 + [3.2] * 3 + [1.6] * 4 + [0.5] * 3
    views = [_close(bench, step, times=times) for step, times in enumerate(sizes)]
    assert {view.verdict for view in views[:22]} == {"ok"}
    assert {view.verdict for view in views[22:29]} == {"inconsistent"}
    assert "times the level before step 22, as at step 24" in views[25].reasons[-1]
    assert {view.verdict for view in views[29:]} == {"ok"}


def test_a_cause_that_was_sure_is_not_forgotten_at_a_step_that_is_not() -> None:
    """It comes first, with the step that showed it; what is sure now comes before it."""
    sure = {"cause": "temperature_not_restored", "confidence": 0.95, "evidence": "T = 0.93"}
    guess = {"cause": "stale_weights", "confidence": 0.46, "evidence": "k3 is high"}
    noise = {"cause": "numerical_noise", "confidence": 0.5, "evidence": "small"}
    state = Lasting(newest=23, cause=sure, cause_step=23)
    shift = {"onset_step": 22}

    told = recall(state, shift, [guess, noise])
    assert [one["cause"] for one in told] == ["temperature_not_restored", "stale_weights"]
    assert told[0]["evidence"] == "as at step 23: T = 0.93"
    other = {**guess, "confidence": SURE}
    assert recall(state, shift, [other]) == (other,)
    assert recall(state, {"onset_step": 24}, [guess]) == (guess,)  # another trouble


def test_what_another_version_stored_of_the_verdicts_counts_for_nothing() -> None:
    """A state is read back as it was; one with other fields starts afresh, without a crash."""
    state = Lasting(count=2, since=3, newest=4)
    assert lasting_from_json(state.as_json()) == state
    assert lasting_from_json({**state.as_json(), "more": 1}) == Lasting()
    assert lasting_from_json({"count": 2}) == lasting_from_json(None) == Lasting()


def _with_nans(bench: Bench, step: int, count: int) -> StepView:
    (batch,) = replay.steps([replay.recording(HEALTHY)], run="r", samples_per_step=24, seed=step)
    q = batch.tensors["rollout_logprobs"].copy()
    q[:count] = np.nan
    tensors = {**batch.tensors, "rollout_logprobs": q}
    return bench.close(replace(batch, step=step, tensors=tensors))


def test_a_nan_here_and_there_stops_nobody(bench: Bench) -> None:
    """Counted and named in any case; one token in a thousand makes the step inconsistent."""
    few, many = _with_nans(bench, 0, 1), _with_nans(bench, 1, 30)

    assert few.coverage["nonfinite"] == 1 < 0.001 * few.coverage["received"]
    assert few.verdict == "ok"
    assert any("nonfinite_values" in reason for reason in few.reasons)
    assert (many.verdict, many.diagnosis[0]["cause"]) == ("inconsistent", "nonfinite_values")


def test_what_was_expected_and_did_not_come_is_not_ok(bench: Bench) -> None:
    """Half the ranks are dead: 24 of 48 came, and those agree."""
    (batch,) = replay.steps([replay.recording(HEALTHY)], run="r", samples_per_step=24, seed=0)
    half = bench.close(replace(batch, step=0, expect={"train": 48}))
    whole = bench.close(replace(batch, step=1, expect={"train": 24}))

    assert half.verdict == "unknown"
    assert half.reasons == ("only 24 of the 48 train samples came that `expect` named",)
    assert whole.verdict == "ok"


def test_three_inconsistent_steps_are_news_and_two_are_not(bench: Bench) -> None:
    """And as many `ok` ones between them begin the count anew."""
    for step, name in enumerate([FAULTY] * (FIRES - 1) + [HEALTHY] * FIRES + [FAULTY]):
        _close(bench, step, name=name)
    assert not _told(bench, "inconsistent")
