"""Recorded runs of the GRPO example, step by step through the pipeline: found, dated, named.

tests/engines runs the example itself; these are two of its runs (tests/vectors/runs).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from pipelines import Bench

from twinscope.wire.batch import Batch
from twinscope.wire.codec import read_trace
from twinscope_service.cli import demo
from twinscope_service.replay import by_step, recorded_run
from twinscope_service.views import AlertView, StepView

RUNS = Path(__file__).resolve().parents[1] / "vectors/runs"
FAULT_STEP = 10


def _steps(name: str) -> list[Batch]:
    return list(by_step(read_trace(RUNS / f"{name}.safetensors")))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A pipeline with the service's own limits."""
    bench = Bench(tmp_path, min_tokens=1000)
    yield bench
    bench.pipeline.close()


def _replay(bench: Bench, steps: list[Batch]) -> list[StepView]:
    return [bench.close(replace(batch, run="r"), after_s=10.0) for batch in steps]


def _shift(bench: Bench) -> AlertView:
    """The run's level shift of k3, its only one."""
    (shift,) = (
        alert
        for alert in bench.pipeline.alerts("r")
        if alert.kind == "level_shift" and alert.series == "k3"
    )
    return shift


def test_weights_that_stop_coming_are_dated_and_named(bench: Bench) -> None:
    """Level shift with onset 10; from step 12 on stale weights: what creeps is no new normal."""
    views = _replay(bench, _steps("grpo_no_sync"))

    assert _shift(bench).onset_step == FAULT_STEP
    assert {view.verdict for view in views[:FAULT_STEP]} == {"ok"}
    assert {view.verdict for view in views[FAULT_STEP + 3 :]} == {"inconsistent"}
    assert {view.diagnosis[0]["cause"] for view in views[FAULT_STEP + 2 :]} == {"stale_weights"}


def test_the_run_of_the_demonstration_is_healthy_dated_and_named(bench: Bench) -> None:
    """Thirty steps in which versions advanced do not make the engine's version advance later."""
    start = demo.FAULT_STEP

    views = _replay(bench, recorded_run(demo.RECORDED))

    assert {view.verdict for view in views[: start + 1]} == {"ok"}
    assert {view.verdict for view in views[start + 3 :]} == {"inconsistent"}
    first = [view.diagnosis[0] for view in views]
    assert {answer["cause"] for answer in first[:start]} == {"numerical_noise"}
    assert {answer["cause"] for answer in first[start + 2 :]} == {"stale_weights"}
    last = first[-1]
    assert last["estimate"]["version_lag"] == len(views) - start
    assert last["evidence"].startswith(f"all {views[-1].samples} samples were made by")
    healthy = median(view.metrics["k3_mean"] or 0.0 for view in views[:start])
    assert last["k3_after"] == pytest.approx(healthy, rel=0.2)
    shift = _shift(bench)
    assert shift.onset_step == start
    assert shift.ratio is not None
    assert shift.ratio > 5


def test_a_cache_that_survived_a_sync_is_named(bench: Bench) -> None:
    """Cached prompts are off, the bare questions beside them are not; versions are all equal."""
    views = _replay(bench, _steps("grpo_kept_cache"))

    assert {view.verdict for view in views[:FAULT_STEP]} == {"ok"}
    causes = {view.diagnosis[0]["cause"] for view in views[FAULT_STEP + 2 :]}
    assert causes == {"stale_prefix_cache"}
