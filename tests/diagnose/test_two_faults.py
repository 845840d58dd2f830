"""Two faults at once are both reported, each with the part of the samples it touches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope_service.diagnose.cause import Cause
from twinscope_service.lab.cases import Case
from twinscope_service.lab.draft import Draft
from twinscope_service.lab.faults import FAULTS, apply
from twinscope_service.replay import recording

Diagnose = Callable[[Batch], tuple[Cause, ...]]
HOT = "temperature_0.7_unrestored"


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
