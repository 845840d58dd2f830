"""The verdict of a step: level bands, and a confident cause where the bands are silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from batches import body_of, make_samples
from pipelines import Bench

from twinscope_service import replay
from twinscope_service.closing import CERTAIN
from twinscope_service.config import load_settings
from twinscope_service.detect.lasting import SURE
from twinscope_service.offline import analyze
from twinscope_service.views import StepView

HEALTHY, FAULTY = "healthy_bf16", "temperature_0.7_unrestored"
TRACES = Path(__file__).resolve().parents[1] / "vectors/traces"


def _analyzed(name: str) -> StepView:
    settings = load_settings(engine="reference")
    (report,) = analyze([TRACES / f"{name}.safetensors"], settings)
    return report.step


@pytest.mark.parametrize("name", ["healthy_bf16", "moe_bf16", "temperature_0.7_restored"])
def test_a_healthy_pair_is_ok_and_accused_of_nothing(name: str) -> None:
    """Numerical noise is the first and only word."""
    step = _analyzed(name)

    assert step.verdict == "ok"
    assert step.diagnosis[0]["cause"] == "numerical_noise"


def test_a_cause_beyond_doubt_outweighs_silent_bands() -> None:
    """Both sides left the temperature out: they agree on every token and are wrong all the same."""
    step = _analyzed("temperature_0.7_both_raw")

    assert step.diagnosis[0]["cause"] == "sampling_not_as_reported"
    assert step.diagnosis[0]["confidence"] >= SURE
    assert step.verdict == "inconsistent"
    assert any("sampling_not_as_reported" in reason for reason in step.reasons)


def test_a_coarse_grid_is_a_note_and_not_an_accusation() -> None:
    """bf16 storage costs about 1e-5 of k3: said, with the verdict left at ok."""
    step = _analyzed("store_bf16")

    assert step.diagnosis[0]["cause"] == "bf16_logprob_storage"
    assert step.verdict == "ok"
    assert any("bf16_logprob_storage" in reason for reason in step.reasons)


def test_a_handful_of_tokens_accuses_nobody(tmp_path: Path) -> None:
    """Four tokens say nothing about structure: unknown, and no cause that had to be estimated."""
    bench = Bench(tmp_path, min_tokens=1000)
    few = make_samples(3, 2)
    bench.send(body_of(few, "rollout"))
    bench.send(body_of(few, "train", step=0))
    step = bench.pipeline.close_step("r", 0)
    bench.pipeline.close()

    assert step.verdict == "unknown"
    assert {cause["cause"] for cause in step.diagnosis} <= CERTAIN


def _close(bench: Bench, name: str, *, step: int, samples: int) -> StepView:
    """Send some samples of a recording as one step, and close it. 2 samples: some 200 tokens."""
    (batch,) = replay.steps([replay.recording(name)], run="r", samples_per_step=samples, seed=step)
    return bench.close(replace(batch, step=step))


def test_small_steps_are_judged_together(tmp_path: Path) -> None:
    """Before and after a restart, and when a fault comes; the numbers stay each step's own."""
    bench, views = Bench(tmp_path, min_tokens=1000), []
    for step in range(20):
        if step in (7, 12):
            bench.restart()
        views.append(_close(bench, HEALTHY if step < 10 else FAULTY, step=step, samples=2))
    bench.pipeline.close()

    tokens = [view.coverage["counted"] for view in views]
    first = next(i for i in range(20) if sum(tokens[: i + 1]) >= 1000)
    assert 2 < first < 9
    assert [view.verdict for view in views[:10]] == ["unknown"] * first + ["ok"] * (10 - first)
    assert "judged together with the" in views[9].reasons[-1]
    assert [view.verdict for view in views[11:]] == ["inconsistent"] * 9
    assert views[-1].diagnosis[0]["cause"] == "temperature_not_restored"
    assert views[-1].metrics["k3_mean"] != views[-2].metrics["k3_mean"]


def test_a_large_step_is_judged_alone_and_ends_the_small_ones_before_it(tmp_path: Path) -> None:
    """What was wrong before does not colour it, nor the small step that comes after it."""
    bench = Bench(tmp_path, min_tokens=1000)
    small = [_close(bench, FAULTY, step=step, samples=2) for step in range(4)]
    large = _close(bench, HEALTHY, step=4, samples=24)
    after = _close(bench, HEALTHY, step=5, samples=2)
    bench.pipeline.close()

    assert max(view.coverage["counted"] for view in small) < 400
    assert (large.verdict, after.verdict) == ("ok", "unknown")
