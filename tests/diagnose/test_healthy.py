"""No accusation on a healthy pair, at any size from 2 000 tokens up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope_service.diagnose.cause import Cause
from twinscope_service.lab.cases import Case, bare, part
from twinscope_service.replay import recording

Diagnose = Callable[[Batch], tuple[Cause, ...]]
HEALTHY = ("healthy_bf16", "temperature_0.7_restored")


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("tokens", [2000, 3000, 5000, 20000])
def test_parts_of_healthy_recordings_are_noise(name: str, tokens: int, diagnosed: Diagnose) -> None:
    """Random samples of healthy recordings, with and without headers: noise first, and sure."""
    case = Case(name, ("numerical_noise",), recording(name), name)

    for seed in range(4):
        smaller = part(case, tokens=tokens, seed=seed)
        for one in (smaller, bare(smaller)):
            first = diagnosed(one.batch)[0]
            assert (first.cause, first.confidence > 0.6) == ("numerical_noise", True), one.name


def test_healthy_recorded_traces_are_noise(traces: list[Case], diagnosed: Diagnose) -> None:
    """The full set's healthy traces and 3 000-token parts of them."""
    for case in (c for c in traces if c.causes == ("numerical_noise",)):
        for one in (case, bare(case), *(part(case, tokens=3000, seed=s) for s in range(3))):
            assert diagnosed(one.batch)[0].cause == "numerical_noise", one.name


def test_a_healthy_pair_names_no_second_cause(healthy: Case, diagnosed: Diagnose) -> None:
    """The answer is one entry, with the level as evidence."""
    (only,) = diagnosed(healthy.batch)

    assert only.family == "none"
    assert "k3" in only.evidence


def test_rounding_above_zero_is_no_marker(healthy: Case, diagnosed: Diagnose) -> None:
    """float32 puts a certain token a little above 0: neither counted apart nor accused."""
    p = np.array(healthy.batch.tensors["train_logprobs"])
    p[p > -1e-3] = 3e-7
    tensors = {**healthy.batch.tensors, "train_logprobs": p}
    first = diagnosed(replace(healthy.batch, tensors=tensors))[0]

    assert (p > 0).mean() > 0.01
    assert first.cause == "numerical_noise"
