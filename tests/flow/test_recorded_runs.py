"""Recorded runs of the GRPO example, step by step through the pipeline: found, dated, named.

tests/engines runs the example itself; these are two of its runs (tests/vectors/runs).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pipelines import Bench

from twinscope.wire.codec import encode_batch, read_trace
from twinscope_service.replay import take
from twinscope_service.views import StepView

RUNS = Path(__file__).resolve().parents[1] / "vectors/runs"
FAULT_STEP = 10


def _bodies(name: str) -> Iterator[tuple[int, bytes]]:
    """(step, paired body) of each step of the recorded run."""
    whole = read_trace(RUNS / f"{name}.safetensors")
    versions = whole.tensors["train_version"]
    for step in np.unique(versions).tolist():
        samples = np.flatnonzero(versions == step).tolist()
        ids = tuple(f"{step}-{index}" for index in range(len(samples)))
        batch = replace(take(whole, samples), run="r", step=step, sample_ids=ids)
        yield step, b"".join(encode_batch(batch))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A pipeline with the service's own limits."""
    bench = Bench(tmp_path, min_tokens=1000)
    yield bench
    bench.pipeline.close()


def _replay(bench: Bench, name: str) -> list[StepView]:
    views = []
    for step, body in _bodies(name):
        bench.send(body)
        bench.clock.advance(10.0)
        views.append(bench.pipeline.close_step("r", step))
    return views


def test_weights_that_stop_coming_are_dated_and_named(bench: Bench) -> None:
    """Level shift with onset 10; from step 12 on stale weights: what creeps is no new normal."""
    views = _replay(bench, "grpo_no_sync")

    (shift,) = (
        alert
        for alert in bench.pipeline.alerts("r")
        if alert.kind == "level_shift" and alert.series == "k3"
    )
    assert shift.onset_step == FAULT_STEP
    assert {view.verdict for view in views[:FAULT_STEP]} == {"ok"}
    assert {view.verdict for view in views[FAULT_STEP + 3 :]} == {"inconsistent"}
    assert {view.diagnosis[0]["cause"] for view in views[FAULT_STEP + 2 :]} == {"stale_weights"}


def test_a_cache_that_survived_a_sync_is_named(bench: Bench) -> None:
    """Cached prompts are off, the bare questions beside them are not; versions are all equal."""
    views = _replay(bench, "grpo_kept_cache")

    assert {view.verdict for view in views[:FAULT_STEP]} == {"ok"}
    causes = {view.diagnosis[0]["cause"] for view in views[FAULT_STEP + 2 :]}
    assert causes == {"stale_prefix_cache"}
