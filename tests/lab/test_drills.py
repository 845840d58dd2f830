"""Every drill's run ends with its own fault named, or in the group that its data leave open."""

from __future__ import annotations

import pytest

from twinscope.wire.batch import Batch
from twinscope_service.cli.drill import named, plan
from twinscope_service.diagnose.cause import Cause
from twinscope_service.diagnose.context import History, StepPoint
from twinscope_service.diagnose.rank import diagnose
from twinscope_service.diagnose.view import View
from twinscope_service.lab.cases import summarise
from twinscope_service.lab.faults import FAULTS
from twinscope_service.measure.engine import build_engine
from twinscope_service.replay import steps

ENGINE = build_engine("cpu")
GROWING = sorted(name for name, fault in FAULTS.items() if fault.grows)


def end_of(fault: str, *, healthy: int, faulty: int) -> tuple[Cause, ...]:
    """The diagnosis of the last step of a drill, with the steps before it as history."""
    batches = plan(fault, healthy=healthy, faulty=faulty)
    sent = list(steps(batches, run="drill", samples_per_step=48, seed=0))
    measured = [summarise(step, ENGINE) for step in sent]
    points = tuple(
        StepPoint(i, View(*found).k3, 5000, "ok", version_of(step))
        for i, (step, found) in enumerate(zip(sent, measured, strict=True))
    )
    summary, context = measured[-1]
    history = History(points, measured[0][0], onset_step=healthy)
    return diagnose(summary, context=context, history=history)


def version_of(batch: Batch) -> int | None:
    """The engine's, where it is sent."""
    versions = batch.tensors.get("rollout_version")
    return None if versions is None else int(versions[0])


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - set(GROWING)))
def test_a_drill_names_its_fault(fault: str) -> None:
    """First, after two healthy steps."""
    assert end_of(fault, healthy=2, faulty=2)[0].cause == FAULTS[fault].cause


@pytest.mark.parametrize("fault", GROWING)
def test_a_fault_that_builds_up_is_named_by_its_growth(fault: str) -> None:
    """While the weight versions advance on both sides."""
    first = end_of(fault, healthy=12, faulty=8)[0]

    assert first.cause == FAULTS[fault].cause
    assert "although the engine's weight version advanced" in first.evidence


def test_healthy_steps_carry_what_the_faulty_ones_do() -> None:
    """A run that goes wrong does not begin to send another field in the same step."""
    for fault in set(FAULTS) - {"side_missing"}:
        first, last = plan(fault, healthy=1, faulty=1)
        assert first.tensors.keys() == last.tensors.keys(), fault
        assert first.groups.keys() == last.groups.keys(), fault


def test_a_drill_says_what_its_data_cannot_tell_apart() -> None:
    """First, in the group of the first, and missed."""
    answer = [{"cause": "a", "confidence": 0.5, "group": ["a", "b"], "separator": "a checksum"}]

    assert named("a", answer) == (True, "a, confidence 0.50")
    assert named("b", answer) == (None, "b or a: what tells them apart is a checksum")
    assert named("c", answer) == (False, "a instead of c")
    assert named("c", []) == (False, "none instead of c")
