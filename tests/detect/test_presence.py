"""Silence and bypass: what is missing, and what is too good to be true."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from twinscope_service.detect import presence
from twinscope_service.detect.findings import DetectOptions, Finding
from twinscope_service.detect.presence import PresenceState, StepSeen, presence_from_json

OPTIONS = DetectOptions()


def step(number: int, **changes: int | float | None) -> StepSeen:
    """A healthy step, 60 seconds after the one before, with changes."""
    usual = {"at": 60.0 * number, "rollout": 64, "train": 64, "counted": 9000, "delta_zero": 40}
    return StepSeen(step=number, **{**usual, **changes})  # type: ignore[arg-type]


def play(
    steps: list[StepSeen], options: DetectOptions = OPTIONS
) -> tuple[PresenceState, list[Finding]]:
    """All findings of a sequence of steps; the state goes through JSON after every step."""
    state, findings = PresenceState(), []
    for one in steps:
        state, found = presence.update(state, one, options=options)
        state = presence_from_json(json.loads(json.dumps(state.as_json())))
        findings += found
    return state, findings


def told(findings: list[Finding]) -> list[tuple[str, str, str, int, int | None]]:
    """What matters of each finding."""
    return [(f.kind, f.state, f.series, f.step, f.onset_step) for f in findings]


@pytest.mark.parametrize("side", ["rollout", "train"])
def test_a_side_that_stays_away_for_three_steps_is_silence_and_its_return_resolves_it(
    side: str,
) -> None:
    """One alarm however long it lasts."""
    gone = [step(n, **{side: 0, "counted": 0}) for n in range(10, 30)]
    _, findings = play([step(n) for n in range(10)] + gone + [step(30)])
    assert told([f for f in findings if f.series == side]) == [
        ("silence", "firing", side, 12, 10),
        ("silence", "resolved", side, 30, 10),
    ]
    assert f"the {side} side is missing for 3 steps, since step 10" in findings[0].message


def test_one_step_without_a_side_is_not_yet_silence() -> None:
    """A late batch happens."""
    assert not play([step(0), step(1, rollout=0, counted=0), step(2)])[1]


def test_the_metric_can_be_missing_although_both_sides_came() -> None:
    """Everything masked out, or non-finite: nothing counted."""
    findings = play([step(n, counted=0) for n in range(5)])[1]
    assert told(findings) == [("silence", "firing", "k3", 2, 0)]


def test_identical_sides_are_provisional_at_once_and_fire_at_the_second_step() -> None:
    """Then silence until the sides differ again."""
    same = [step(n, delta_zero=9000) for n in range(3, 9)]
    findings = play([step(0), step(1), step(2), *same, step(9)])[1]
    assert told(findings) == [
        ("bypass", "provisional", "delta", 3, 3),
        ("bypass", "firing", "delta", 4, 3),
        ("bypass", "resolved", "delta", 9, 3),
    ]


def test_a_handful_of_identical_tokens_proves_nothing() -> None:
    """Fewer than 100 counted tokens."""
    assert not play([step(n, counted=99, delta_zero=99) for n in range(5)])[1]


def test_a_run_that_is_meant_to_be_identical_raises_no_bypass() -> None:
    """True on-policy by batch-invariant kernels."""
    options = DetectOptions(bypass_expected=True)
    assert not play([step(n, delta_zero=9000) for n in range(5)], options)[1]


def test_a_run_that_stops_is_reported_once_and_resolved_by_its_next_step() -> None:
    """Fifteen minutes at least, and three usual step times."""
    state, _ = play([step(n) for n in range(10)])
    assert presence.overdue(state, 540.0 + 899.0, options=OPTIONS) == (state, [])
    state, findings = presence.overdue(state, 540.0 + 901.0, options=OPTIONS)
    assert told(findings) == [("silence", "firing", "step", 9, 9)]
    assert "no step for 15 min" in findings[0].message
    assert presence.overdue(state, 9999.0, options=OPTIONS)[1] == []
    _, findings = presence.update(state, step(10, at=9999.0), options=OPTIONS)
    assert told(findings) == [("silence", "resolved", "step", 10, 10)]


def test_a_slow_run_is_given_three_of_its_own_step_times() -> None:
    """Steps of an hour: fifteen minutes are no silence."""
    state, _ = play([step(n, at=3600.0 * n) for n in range(10)])
    assert not presence.overdue(state, 9 * 3600.0 + 10_000, options=OPTIONS)[1]
    assert presence.overdue(state, 9 * 3600.0 + 10_801, options=OPTIONS)[1]


def test_a_job_that_starts_again_is_told_after_three_steps_that_are_closed() -> None:
    """Three usual step times without any other; also after a run that was finished."""
    state, _ = play([step(n) for n in range(10)])
    state = replace(state, finished=True)
    now = 540.0 + 3 * 60.0
    assert not presence.overdue(state, now, late=(0, 1), options=OPTIONS)[1]
    assert not presence.overdue(state, now - 1.0, late=(0, 1, 2), options=OPTIONS)[1]
    _, findings = presence.overdue(state, now, late=(0, 1, 2), options=OPTIONS)
    assert told(findings) == [("silence", "firing", "step", 9, 9)]
    assert "(0 to 2, after step 9)" in findings[0].message


def test_a_run_without_a_rhythm_is_not_called_silent() -> None:
    """Fewer than three intervals say nothing about the next."""
    state, _ = play([step(0), step(1)])
    assert not presence.overdue(state, 1e6, options=OPTIONS)[1]
