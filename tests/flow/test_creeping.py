"""Faults that creep, step, or touch a few tokens only, through the whole path of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pipelines import Bench

from twinscope.wire.batch import Batch
from twinscope_service import replay
from twinscope_service.baseline import LEARNT, Baseline, renewed
from twinscope_service.views import StepView

SAMPLES = 40  # of 96 per step, some 4 300 tokens


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A pipeline with the service's own limits."""
    bench = Bench(tmp_path, min_tokens=1000)
    yield bench
    bench.pipeline.close()


def louder(batch: Batch, nats: float, *, seed: int) -> Batch:
    """Honest noise on the logits of the trainer, alike in equal contexts, beside what is there."""
    q, p = (batch.tensors[f"{side}_logprobs"].astype(np.float64) for side in ("rollout", "train"))
    z = np.random.default_rng(seed).standard_normal(len(q))
    first = batch.offsets[:-1]
    _, same = np.unique(q[first].round(6), return_inverse=True)
    z[first] = z[first][np.unique(same, return_index=True)[1]][same]
    size = nats * -np.expm1(q)
    return with_train(batch, p + size * z - size * size / 2)


def with_train(batch: Batch, p: NDArray[np.float64]) -> Batch:
    """The batch with other log-probs of the trainer."""
    tensors = {**batch.tensors, "train_logprobs": np.minimum(p, 0.0).astype(np.float32)}
    return replace(batch, tensors=tensors)


def run_of(bench: Bench, steps: int, change: Callable[[int, Batch], Batch]) -> list[StepView]:
    """A healthy recording in random parts, each changed, closed step by step."""
    whole = [replay.recording("healthy_bf16")] * steps
    steps_of = replay.steps(whole, run="r", samples_per_step=SAMPLES, seed=5)
    return [bench.close(change(step, batch)) for step, batch in enumerate(steps_of)]


def first_causes(views: list[StepView]) -> list[str]:
    """The first cause of each step; "" where none fits."""
    return [view.diagnosis[0]["cause"] if view.diagnosis else "" for view in views]


@pytest.mark.parametrize("start", [0, 12])
def test_weights_that_fall_behind_slowly_are_never_called_noise(bench: Bench, start: int) -> None:
    """0.02 nats more with every step: the level before it stays what it is held against."""
    views = run_of(bench, start + 18, lambda s, b: louder(b, 0.02 * max(s - start, 0), seed=s))
    causes = first_causes(views)

    wrong = [i for i, view in enumerate(views) if view.verdict == "inconsistent"]
    assert views[start + 12].verdict == "inconsistent"
    assert "numerical_noise" not in {causes[i] for i in wrong}
    assert set(causes[start + 11 :]) == {"stale_weights"}


def test_the_baseline_is_the_same_after_a_restart(bench: Bench) -> None:
    """Steps that creep are not the baseline of the service that is started again amid them."""
    run_of(bench, 9, lambda s, b: louder(b, 0.02 * s, seed=s))
    before = bench.pipeline._book.wake("r").baseline
    bench.restart()
    after = bench.pipeline._book.wake("r").baseline

    assert before is not None
    assert before.step <= 3
    assert after == before


def test_a_step_up_is_neither_growth_nor_three_verdicts_in_turn(bench: Bench) -> None:
    """k3 triples at step 22 and stays: one verdict, no growth, and the gate names the alert."""
    views = run_of(bench, 32, lambda s, b: louder(b, 0.135 if s >= 22 else 0.0, seed=s))

    told = [reason for view in views for reason in view.reasons]
    assert not any("grew" in reason for reason in told)
    assert len({view.verdict for view in views[22:]}) == 1
    gate = bench.pipeline.gate("r")
    assert any("alert level_shift fires: rollout_train_kl" in reason for reason in gate.reasons)
    assert not any("alert level_shift fires" in reason for reason in views[-1].reasons)


def test_tokens_of_which_only_the_engine_is_sure_are_told_and_no_cause_is_made_up(
    bench: Bench,
) -> None:
    """Three in every step from step 24: inconsistent from the second on, with their places."""

    def doubted(step: int, batch: Batch) -> Batch:
        if step < 24:
            return batch
        q, p = (batch.tensors[f"{s}_logprobs"].astype(np.float64) for s in ("rollout", "train"))
        chosen = np.random.default_rng(step).choice(np.flatnonzero(q > np.log(0.74)), 3)
        p[chosen] = q[chosen] - 9.0
        return with_train(batch, p)

    views = run_of(bench, 31, doubted)

    assert {view.verdict for view in views[:24]} == {"ok"}
    assert {view.verdict for view in views[25:]} == {"inconsistent"}
    assert {view.diagnosis for view in views[25:]} == {()}
    assert all(view.reasons[-1].startswith("unexplained") for view in views[25:])
    assert all(any("engine is sure of" in reason for reason in v.reasons) for v in views[24:])


def test_the_second_tooth_of_a_sawtooth_is_known_by_the_first(bench: Bench) -> None:
    """Eight steps up, then the weights come: the second rise is named after four steps."""
    views = run_of(bench, 16, lambda s, b: louder(b, 0.04 * (s % 8), seed=s))

    assert set(first_causes(views[12:])) == {"stale_weights"}
    assert "as it did until it fell at step 8" in views[12].diagnosis[0]["evidence"]


def closed(step: int, cause: str = "numerical_noise", confidence: float = 0.98) -> StepView:
    """A closed healthy step with one cause."""
    family = "none" if cause == "numerical_noise" else "weights"
    diagnosis = ({"cause": cause, "family": family, "confidence": confidence},)
    return StepView("r", step, "closed", {}, 0, 0, {}, {}, "ok", (), diagnosis)


def test_a_level_that_lasts_is_learnt_and_a_lower_one_at_once() -> None:
    """Half as much again for LEARNT steps is the run's own level by then."""
    known: Baseline | None = None
    for step, k3 in enumerate([1.0, 1.2, *[1.5] * LEARNT]):
        known = renewed(known, closed(step), k3=k3)
        assert known is not None
        assert known.step == min(step, 1) or step == LEARNT + 1
    assert known == Baseline(LEARNT + 1, 1.5)
    assert renewed(known, closed(99), k3=0.7) == Baseline(99, 0.7)


def test_a_step_in_doubt_is_no_baseline() -> None:
    """Another cause, less than sure noise, or no counted token."""
    known = Baseline(3, 1.0)

    assert renewed(known, closed(4, "stale_weights"), k3=0.9) == known
    assert renewed(known, closed(4, confidence=0.7), k3=0.9) == known
    assert renewed(known, closed(4), k3=None) == known
