"""Two faults at once are both reported, each with the part of the samples it touches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope_service.diagnose.cause import Cause
from twinscope_service.lab.cases import Case
from twinscope_service.lab.draft import Draft
from twinscope_service.lab.faults import FAULTS, MARKERS, apply
from twinscope_service.replay import recording

Diagnose = Callable[[Batch], tuple[Cause, ...]]
HOT = "temperature_0.7_unrestored"
UNDER_MARKERS = ("q_heads_permuted", "top_p_0.9", "min_p_0.05", "top_k_20", HOT)


@pytest.mark.parametrize(
    "second", ["token_shift_quarter", "bf16_logprob_storage", "nonfinite_values"]
)
def test_a_second_fault_beside_a_temperature_is_found(second: str, diagnosed: Diagnose) -> None:
    """Both causes are in the answer, and the temperature is still estimated."""
    batch = apply(FAULTS[second], recording(HOT), seed=1)
    found = {c.cause: c for c in diagnosed(batch)}

    assert {"temperature_not_restored", FAULTS[second].cause} <= found.keys()
    assert found["temperature_not_restored"].estimate["temperature"] == pytest.approx(0.7, rel=0.05)


def test_one_bad_replica_of_four_is_named_beside_a_temperature(diagnosed: Diagnose) -> None:
    """The temperature everywhere, the replica with its label and share."""
    draft = Draft.of(recording(HOT), 1)
    replica = np.arange(draft.samples) % 4
    draft.header = {"groups": {"replica": tuple(f"r{i}" for i in replica)}}
    draft.disturb_train(draft.per_token(np.where(replica == 2, 0.9, 0.0)))
    found = {c.cause: c for c in diagnosed(draft.finish())}

    assert found["temperature_not_restored"].share == 1.0
    assert found["mixed_weight_versions"].estimate["labels"] == ["r2"]
    assert found["mixed_weight_versions"].share == pytest.approx(0.25, abs=0.05)


def test_a_shift_in_a_quarter_hides_no_grid_and_invents_no_retokenisation(
    healthy: Case, diagnosed: Diagnose
) -> None:
    """What is left of shifted samples is not taken for another fault."""
    shifted = apply(FAULTS["token_shift_quarter"], healthy.batch, seed=1)
    causes = [c.cause for c in diagnosed(apply(FAULTS["bf16_logprob_storage"], shifted, seed=1))]

    assert set(causes) == {"token_shift", "bf16_logprob_storage"}


def test_a_bad_replica_without_a_label_is_two_populations(
    healthy: Case, diagnosed: Diagnose
) -> None:
    """A quarter of the samples loud, nothing says whose: said so, with what would tell."""
    draft = Draft.of(healthy.batch, 1)
    bad = np.arange(draft.samples) % 4 == 2
    draft.disturb_train(draft.per_token(np.where(bad, 0.6, 0.0)))
    del draft.arrays["pad_left"]
    first = diagnosed(draft.finish())[0]

    assert first.cause == "mixed_weight_versions"
    assert first.share == pytest.approx(0.25, abs=0.05)
    assert "replica" in first.separator


@pytest.mark.parametrize("marker", sorted(MARKERS))
def test_markers_hide_no_temperature(marker: str, diagnosed: Diagnose) -> None:
    """Left out of the sums, or counted in the sums of some samples only: the rest is judged."""
    found = {c.cause: c for c in diagnosed(apply(MARKERS[marker], recording(HOT), seed=2))}

    assert found["missing_value_sentinel"].confidence > 0.9
    assert found["temperature_not_restored"].confidence > 0.85
    assert found["temperature_not_restored"].estimate["temperature"] == pytest.approx(0.7, rel=0.06)


@pytest.mark.parametrize("marker", sorted(MARKERS))
@pytest.mark.parametrize("name", UNDER_MARKERS)
def test_markers_hide_no_fault_of_recorded_traces(
    name: str, marker: str, traces: list[Case], diagnosed: Diagnose
) -> None:
    """Wrong weights, truncations, a temperature: both are in the answer, or in its group."""
    case = next(c for c in traces if c.name == name)
    causes = diagnosed(apply(MARKERS[marker], case.batch, seed=1))
    said = {cause for c in causes for cause in (c.cause, *c.group)}

    assert {case.causes[0], "missing_value_sentinel"} <= said


@pytest.mark.parametrize("marker", sorted(MARKERS))
def test_markers_over_a_healthy_pair_bring_no_second_fault(
    marker: str, healthy: Case, diagnosed: Diagnose
) -> None:
    """What is judged without them is healthy."""
    causes = diagnosed(apply(MARKERS[marker], healthy.batch, seed=3))

    assert {c.cause for c in causes} <= {"missing_value_sentinel", "numerical_noise"}


def test_a_marker_in_every_sample_says_that_nothing_else_can_be_judged(
    diagnosed: Diagnose,
) -> None:
    """Three log-probs of -1 in each: no sample is free of them, and nothing is guessed."""
    draft = Draft.of(recording(HOT), 1)
    for tokens in draft.slices():
        draft.q[tokens][::40] = -1.0
    (only,) = diagnosed(draft.finish())

    assert only.cause == "missing_value_sentinel"
    assert "nothing else can be judged" in only.evidence


def test_a_shift_beside_excluded_markers_keeps_both(healthy: Case, diagnosed: Diagnose) -> None:
    """A claim about some samples sets them aside; the markers are of all samples."""
    shifted = apply(FAULTS["token_shift_quarter"], healthy.batch, seed=1)
    causes = {c.cause for c in diagnosed(apply(MARKERS["missing_value_-9999"], shifted, seed=1))}

    assert causes == {"token_shift", "missing_value_sentinel"}
