"""How evidence and estimates are put: how many of all samples, what each number is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope_service.diagnose.cause import Cause, named_estimates
from twinscope_service.diagnose.context import Context
from twinscope_service.diagnose.view import View
from twinscope_service.lab.cases import Case, summarise
from twinscope_service.lab.draft import Draft
from twinscope_service.lab.faults import FAULTS, apply
from twinscope_service.measure.engine import build_engine

Diagnose = Callable[[Batch], tuple[Cause, ...]]


@pytest.mark.parametrize(
    ("fault", "array", "concerned"),
    [
        ("stale_weights", "rollout_version", lambda version: version < 40),
        ("stale_prefix_cache", "cached_tokens", lambda cached: cached > 0),
    ],
)
def test_evidence_counts_samples_out_of_all(
    fault: str,
    array: str,
    concerned: Callable[[Any], Any],
    healthy: Case,
    diagnosed: Diagnose,
) -> None:
    """A number alone does not say whether it is much; the fault's own labels give both."""
    batch = apply(FAULTS[fault], healthy.batch, seed=1)
    some = int(concerned(batch.tensors[array]).sum())
    first = diagnosed(batch)[0]

    assert first.cause == fault
    assert 0 < some < batch.samples
    assert first.evidence.startswith(f"{some} of {batch.samples} samples ")
    assert first.estimate["samples"] == some


def test_evidence_about_every_sample_says_all(healthy: Case, diagnosed: Diagnose) -> None:
    """Not "96 of 96": there are no others."""
    draft = Draft.of(healthy.batch, 1)
    draft.arrays["train_version"] = np.full(draft.samples, 40, np.int64)
    draft.arrays["rollout_version"] = np.full(draft.samples, 37, np.int64)
    draft.disturb_train(np.full(len(draft.p), 0.4))
    first = diagnosed(draft.finish())[0]

    assert first.cause == "stale_weights"
    assert first.evidence.startswith(f"all {draft.samples} samples were made by weights 3.0")


def test_a_part_of_the_samples_is_counted_out_of_the_whole_step(healthy: Case) -> None:
    """Diagnosis looks at parts by themselves; who reads it thinks of the step."""
    summary, _ = summarise(healthy.batch, build_engine("reference"))
    whole = View(summary, Context())
    half = np.arange(whole.samples) < whole.samples // 2
    part = whole.narrowed(half)
    three = np.arange(part.samples) < 3

    assert part.told(three) == f"3 of {whole.samples} samples"
    assert whole.told(np.ones(whole.samples, bool)) == f"all {whole.samples} samples"


@pytest.mark.parametrize(
    ("estimate", "told"),
    [
        (
            {"temperature": 0.7, "engine_over_trainer": 0.7, "sampled_by": "rollout"},
            {"temperature, engine's over trainer's": 0.7, "the tokens follow": "rollout"},
        ),
        (
            {"temperature": 0.7, "engine_over_trainer": 0.5},
            {"temperature": 0.7, "temperature, engine's over trainer's": 0.5},
        ),
        (
            {"version_lag": 2.5, "samples": 24, "onset_step": 30},
            {"version lag": 2.5, "samples concerned": 24, "began at step": 30},
        ),
        ({"share": 0.25, "cached": 0.25}, {"share": 0.25}),
        ({}, {}),
    ],
    ids=["a ratio of the sides", "both known", "plain", "the same number twice", "none"],
)
def test_estimates_are_called_what_they_are(
    estimate: Mapping[str, Any], told: Mapping[str, Any]
) -> None:
    """From the pair alone a temperature is a ratio; no number stands there twice."""
    assert [(one["title"], one["value"]) for one in named_estimates(estimate)] == list(told.items())


def test_the_api_gives_estimates_by_name_and_in_words(healthy: Case, diagnosed: Diagnose) -> None:
    """Programs read the one, people the other; every number of the words is in the names."""
    batch = apply(FAULTS["temperature_not_restored"], healthy.batch, seed=1)
    answer = diagnosed(batch)[0].as_json()

    assert answer["estimate"]["engine_over_trainer"] == pytest.approx(1.4, rel=0.1)
    titles = [one["title"] for one in answer["estimate_in_words"]]
    assert "temperature, engine's over trainer's" in titles
    assert not any(re.search("_", title) for title in titles)
    values = list(answer["estimate"].values())
    assert all(one["value"] in values for one in answer["estimate_in_words"])
