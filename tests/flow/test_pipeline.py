"""The path from bytes to verdict: receipts, steps that open and close, runs, restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from batches import batch_of, body_of, make_samples
from pipelines import Bench

from twinscope.wire.codec import decode, encode_batch
from twinscope_service.errors import Conflict, Overloaded, UnknownRun, UnknownStep
from twinscope_service.stages import build_stages
from twinscope_service.views import StepView

SAMPLES = make_samples(21, 40)
TOKENS = sum(len(s.ids) for s in SAMPLES)


def test_a_pair_of_posts_becomes_a_step(bench: Bench) -> None:
    """The receipts tell what waits and what joined; the step holds the numbers."""
    first = bench.send(body_of(SAMPLES, "rollout"))
    assert (first.samples, first.waiting, first.joined, first.steps) == (40, 40, 0, ())
    second = bench.send(body_of(SAMPLES, "train", step=5))
    assert (second.joined, second.waiting, second.steps) == (40, 0, (5,))

    view = bench.pipeline.step("r", 5)
    assert (view.state, view.verdict, view.samples, view.tokens) == ("open", "unknown", 40, TOKENS)
    delta = np.concatenate([s.p.astype(np.float64) - s.q for s in SAMPLES])
    assert view.metrics["k1_mean"] == pytest.approx(-delta.mean(), rel=1e-12)
    closed = bench.pipeline.close_step("r", 5)
    assert (closed.state, closed.verdict, closed.closed_by) == ("closed", "ok", "call")
    assert bench.inbox() == []


def test_closing_twice_is_the_same_as_once(bench: Bench) -> None:
    """And closing what never was is a 404."""
    bench.send(body_of(SAMPLES, "paired", step=0))
    assert bench.pipeline.close_step("r", 0) == bench.pipeline.close_step("r", 0)
    with pytest.raises(UnknownStep):
        bench.pipeline.close_step("r", 1)
    with pytest.raises(UnknownRun):
        bench.pipeline.close_step("nobody", 0)


def test_a_complete_step_closes_by_itself(bench: Bench) -> None:
    """When every expected sample has met its other side."""
    expect = {"rollout": 40, "train": 40}
    bench.send(body_of(SAMPLES, "train", step=0, expect=expect))
    bench.send(body_of(SAMPLES[:30], "rollout"))
    assert bench.pipeline.step("r", 0).state == "open"
    bench.send(body_of(SAMPLES[30:], "rollout"))
    assert bench.pipeline.step("r", 0).closed_by == "complete"


def test_a_silent_step_closes_after_the_grace_period(bench: Bench) -> None:
    """Counted from the trainer's last word, not from rollouts that wait for it."""
    bench.send(body_of(SAMPLES, "rollout", step=0))
    bench.clock.advance(3000)
    bench.pipeline.tick()
    bench.send(body_of(SAMPLES[:20], "train", step=0))
    bench.clock.advance(29)
    bench.send(body_of(SAMPLES[20:], "train", step=0))
    bench.clock.advance(29)
    bench.pipeline.tick()
    assert bench.pipeline.step("r", 0).state == "open"
    bench.clock.advance(1)
    bench.pipeline.tick()
    view = bench.pipeline.step("r", 0)
    assert (view.closed_by, view.joined, view.verdict) == ("grace", 40, "ok")


def test_a_step_with_one_side_missing_is_unknown(bench: Bench) -> None:
    """It says which, and what was given up."""
    bench.send(body_of(SAMPLES, "train", step=0))
    view = bench.pipeline.close_step("r", 0)
    assert (view.verdict, view.reasons) == ("unknown", ("no matching rollout side came",))
    assert view.evicted == {"step_closed": 40}
    assert view.metrics["k3_mean"] is None
    assert bench.pipeline.health().evicted["step_closed"] == 40


def test_rollouts_under_other_ids_are_said_to_wait(bench: Bench) -> None:
    """Both probes are attached; without a step the rollouts wait for the whole run."""
    bench.send(body_of([replace(s, name=f"other{s.name}") for s in SAMPLES[:30]], "rollout"))
    bench.send(body_of(SAMPLES, "train", step=0))
    (first, *_) = bench.pipeline.close_step("r", 0).diagnosis
    assert first["cause"] == "side_missing"
    assert "30 rollout samples of this run wait and none matches" in first["evidence"]
    assert first["estimate"]["waiting"] == {"rollout": 30, "train": 40}


def test_rollouts_whose_trainer_never_speaks_close_their_step_as_unknown(bench: Bench) -> None:
    """After the time to live; those without a step are given up and counted."""
    bench.send(body_of(SAMPLES[:20], "rollout", step=3))
    bench.send(body_of(SAMPLES[20:], "rollout"))
    bench.clock.advance(3601)
    bench.pipeline.tick()
    view = bench.pipeline.step("r", 3)
    assert (view.closed_by, view.reasons) == ("ttl", ("the train side never came",))
    health = bench.pipeline.health()
    assert health.evicted == {"ttl": 20, "step_closed": 20}
    assert (health.waiting_samples, health.waiting_tokens, health.inbox_bytes) == (0, 0, 0)
    assert bench.inbox() == []


def test_partial_coverage_is_said_and_below_half_never_ok(bench: Bench) -> None:
    """30 of 40 is ok with a reason; 10 of 40 is unknown."""
    for step, share in ((0, 30), (1, 10)):
        renamed = [replace(s, name=f"{step}/{s.name}") for s in SAMPLES]
        bench.send(body_of(renamed[:share], "rollout"))
        bench.send(body_of(renamed, "train", step=step))
        bench.pipeline.close_step("r", step)
    good, poor = bench.pipeline.step("r", 0), bench.pipeline.step("r", 1)
    assert (good.verdict, poor.verdict) == ("ok", "unknown")
    assert "30 of 40 train samples" in good.reasons[0]
    assert "10 of 40 train samples" in poor.reasons[0]


def test_the_same_batch_again_gets_the_same_receipt(bench: Bench) -> None:
    """By its id or by its bytes; while the step is open, closed, and after a restart."""
    body = body_of(SAMPLES, "paired", step=0)
    named, anonymous = bench.send(body, batch_id="a"), bench.send(body_of(SAMPLES[:3], "rollout"))
    again = bench.send(body, batch_id="a")
    assert again == replace(named, duplicate=True)
    bench.pipeline.close_step("r", 0)
    bench.restart()
    assert bench.send(body, batch_id="a") == again
    assert bench.send(body_of(SAMPLES[:3], "rollout")) == replace(anonymous, duplicate=True)
    assert bench.pipeline.step("r", 0).samples == 40


def test_a_batch_id_with_other_bytes_is_a_conflict(bench: Bench) -> None:
    """Nothing of the second is kept."""
    bench.send(body_of(SAMPLES[:2], "rollout"), batch_id="a")
    files = bench.inbox()
    with pytest.raises(Conflict, match="'a'"):
        bench.send(body_of(SAMPLES[2:], "rollout"), batch_id="a")
    assert bench.inbox() == files
    assert bench.pipeline.health().waiting_samples == 2


def test_too_much_waiting_is_refused_but_what_completes_is_welcome(
    make_bench: Callable[..., Bench],
) -> None:
    """429 with a time to come back; the other side still gets in, and makes room."""
    bench = make_bench(max_pending_tokens=TOKENS)
    bench.send(body_of(SAMPLES, "rollout"))
    more = [replace(s, name=f"more{s.name}") for s in SAMPLES]
    with pytest.raises(Overloaded, match="max_pending_tokens") as refused:
        bench.send(body_of(more, "rollout"))
    assert refused.value.retry_after_s == 5.0
    assert len(bench.inbox()) == 1

    bench.send(body_of(SAMPLES, "train", step=0))
    assert bench.send(body_of(more, "rollout")).waiting == 40


def test_what_is_late_for_a_closed_step_is_counted_with_it(bench: Bench) -> None:
    """Also after a restart; it is not measured, and leaves no file."""
    bench.send(body_of(SAMPLES[:30], "paired", step=0))
    before = bench.pipeline.close_step("r", 0)
    late = bench.send(body_of(SAMPLES[20:], "paired", step=0))
    assert (late.duplicates, late.late) == (10, 10)
    bench.restart()
    view = bench.pipeline.step("r", 0)
    assert (view.late, view.duplicates, view.metrics) == (10, 10, before.metrics)
    assert bench.inbox() == []


def test_different_tokens_are_counted_and_left_out(bench: Bench) -> None:
    """With an example in the step."""
    long = [s for s in SAMPLES if len(s.ids) > 3]
    changed = replace(
        long[0], ids=np.where(np.arange(len(long[0].ids)) == 2, 1, long[0].ids).astype(np.int32)
    )
    bench.send(body_of(long, "rollout"))
    receipt = bench.send(body_of([changed, *long[1:]], "train", step=0))
    assert (receipt.retokenized, receipt.joined) == (1, len(long) - 1)
    view = bench.pipeline.close_step("r", 0)
    assert view.retokenized_examples[0].first_difference == 2
    assert view.samples == len(long) - 1


def test_a_restart_goes_on_where_it_stopped(bench: Bench) -> None:
    """Half-joined steps, waiting rollouts, history: nothing counted twice."""
    bench.send(body_of(SAMPLES, "rollout"))
    bench.send(body_of(SAMPLES[:10], "train", step=0))
    bench.send(body_of(SAMPLES[10:25], "train", step=1))
    bench.pipeline.close_step("r", 0)
    open_before, closed_before = bench.pipeline.step("r", 1), bench.pipeline.step("r", 0)

    pipeline = bench.restart()

    assert pipeline.step("r", 0) == closed_before
    assert pipeline.step("r", 1).metrics == open_before.metrics
    assert pipeline.health().waiting_samples == 15
    assert bench.send(body_of(SAMPLES[25:], "train", step=2)).joined == 15
    assert [view.step for view in pipeline.steps("r")] == [0, 1, 2]


def test_a_step_that_was_complete_closes_at_the_restart(bench: Bench) -> None:
    """The process died between the last batch and the close."""
    bench.pipeline._close = lambda *_, **__: None  # type: ignore[method-assign]
    bench.send(body_of(SAMPLES, "paired", step=0, expect={"train": 40}))
    assert bench.pipeline.step("r", 0).state == "open"
    assert bench.restart().step("r", 0).closed_by == "complete"


def test_a_crashed_stage_makes_the_step_unknown_and_nothing_else(bench: Bench) -> None:
    """The service goes on; the batch stays accepted."""
    stages = build_stages(bench.settings)

    def explode(*_: object, **__: object) -> object:
        raise RuntimeError("boom")

    for stage, name in (("detect", "detect"), ("diagnose", "diagnose"), ("judge", "judge")):
        bench.pipeline.close()
        pipeline = bench.open(stages=replace(stages, **{stage: explode}))
        run = f"run-{stage}"
        bench.send(body_of(SAMPLES, "paired", step=0, run=run))
        view = pipeline.close_step(run, 0)
        assert view.verdict == "unknown"
        assert any(name in reason for reason in view.reasons)
        assert pipeline.health().errors == {name: 1}


def test_an_engine_that_crashes_makes_the_step_unknown(bench: Bench) -> None:
    """Even if another batch of the step was measured well."""
    bench.send(body_of(SAMPLES[:20], "paired", step=0))
    measure = bench.pipeline._stages.engine.measure
    bench.pipeline._stages.engine.measure = None  # type: ignore[assignment, method-assign]
    receipt = bench.send(body_of(SAMPLES[20:], "paired", step=0))
    bench.pipeline._stages.engine.measure = measure  # type: ignore[method-assign]

    view = bench.pipeline.close_step("r", 0)

    assert receipt.joined == 20
    assert (view.verdict, view.samples) == ("unknown", 20)
    assert "measure failed" in view.reasons[0]


def test_equal_sides_everywhere_are_a_bypass(bench: Bench) -> None:
    """Δ ≡ 0 is not ok: nobody recomputed anything."""
    bench.send(body_of([replace(s, p=s.q) for s in SAMPLES], "paired", step=0))
    view = bench.pipeline.close_step("r", 0)
    assert view.verdict == "unknown"
    assert view.reasons[0].startswith("bypass")


def test_scalars_may_come_before_and_after_the_close(bench: Bench) -> None:
    """The last value of a name wins; the price of the reward follows from them."""
    with_ref = replace(batch_of(SAMPLES, "paired", step=0))
    ref = np.concatenate([s.ref for s in SAMPLES])
    tensors = {**with_ref.tensors, "ref_logprobs": ref}
    bench.send(b"".join(bytes(x) for x in encode_batch(replace(with_ref, tensors=tensors))))
    bench.pipeline.scalars("r", 0, {"reward": 1.0, "lr": 1e-6})
    bench.pipeline.close_step("r", 0)
    bench.pipeline.scalars("r", 0, {"reward": 3.0, "baseline_reward": 1.0})
    view = bench.pipeline.step("r", 0)
    assert view.scalars == {"reward": 3.0, "baseline_reward": 1.0, "lr": 1e-6}
    price = view.metrics["policy_ref_kl"]
    assert price is not None
    assert view.metrics["kl_reward_ratio"] == pytest.approx(price / 2, rel=1e-12)


def test_a_quiet_run_leaves_memory_and_keeps_its_history(bench: Bench) -> None:
    """It wakes up with its next batch."""
    bench.send(body_of(SAMPLES, "paired", step=0))
    bench.pipeline.close_step("r", 0)
    assert bench.pipeline.run("r").active
    bench.clock.advance(6 * 3600 + 1)
    bench.pipeline.tick()
    quiet = bench.pipeline.run("r")
    assert not quiet.active
    assert quiet.last is not None
    assert quiet.last.verdict == "ok"
    late = bench.send(body_of(SAMPLES, "paired", step=0), batch_id="other")
    assert late.duplicates == 40


def test_steps_are_listed_in_pages(bench: Bench) -> None:
    """Closed and open ones together, ascending."""
    for step in (3, 1, 2, 9):
        bench.send(body_of(SAMPLES[:2], "paired", step=step))
    for step in (1, 2, 3):
        bench.pipeline.close_step("r", step)
    list_steps = bench.pipeline.steps
    assert [v.step for v in list_steps("r")] == [1, 2, 3, 9]
    assert [v.step for v in list_steps("r", after=1, limit=2)] == [2, 3]
    assert [v.state for v in list_steps("r", after=2)] == ["closed", "open"]


def test_every_answer_is_plain_json(bench: Bench) -> None:
    """No NaN, no infinity, and a closed step survives the round trip."""
    bench.send(body_of(SAMPLES, "train", step=1))
    bench.send(body_of(SAMPLES, "rollout"))
    view = bench.pipeline.close_step("r", 1)
    for answer in (
        view,
        bench.pipeline.run("r"),
        bench.pipeline.gate("r"),
        bench.pipeline.health(),
    ):
        json.dumps(answer.as_json(), allow_nan=False)
    assert StepView.from_json(json.loads(json.dumps(view.as_json()))) == view


def test_the_gate_speaks_of_the_last_closed_step(bench: Bench) -> None:
    """Unknown before there is one."""
    bench.send(body_of(SAMPLES, "paired", step=0))
    assert (bench.pipeline.gate("r").step, bench.pipeline.gate("r").verdict) == (None, "unknown")
    bench.pipeline.close_step("r", 0)
    assert (bench.pipeline.gate("r").step, bench.pipeline.gate("r").verdict) == (0, "ok")


def test_the_worst_samples_are_kept_as_a_trace(bench: Bench) -> None:
    """What `analyze` reads; it outlives the bodies."""
    bench.send(body_of(SAMPLES, "rollout"))
    bench.send(body_of(SAMPLES, "train", step=2))
    bench.pipeline.close_step("r", 2)
    kept = bench.restart().evidence("r", 2)
    assert kept is not None
    trace = decode(kept)
    assert (trace.side, trace.run, trace.step) == ("paired", "r", 2)
    by_name = {s.name: s for s in SAMPLES}
    names = trace.sample_ids or ()
    for i, name in enumerate(names):
        low, high = int(trace.offsets[i]), int(trace.offsets[i + 1])
        np.testing.assert_array_equal(trace.tensors["train_logprobs"][low:high], by_name[name].p)
    assert bench.pipeline.evidence("r", 99) is None


def test_a_summary_from_a_rank_adds_to_the_step(bench: Bench) -> None:
    """Durable like a batch, once; late for a closed step."""
    bench.send(body_of(SAMPLES, "paired", run="whole", step=0))
    whole = bench.pipeline.step("whole", 0)
    bench.send(body_of(SAMPLES[:15], "paired", run="half", step=0))
    half = bench.pipeline.summary("half", 0)
    assert half is not None

    post = bench.pipeline.ingest_summary
    bench.send(body_of(SAMPLES[15:], "paired", step=0))
    assert post("r", 0, half, batch_id="rank0").joined == 15
    assert post("r", 0, half, batch_id="rank0").duplicate
    view = bench.restart().step("r", 0)
    assert (view.samples, view.coverage) == (40, whole.coverage)
    assert view.metrics["k3_mean"] == pytest.approx(whole.metrics["k3_mean"], rel=1e-12)
    assert bench.pipeline.close_step("r", 0).verdict == "ok"
    assert bench.pipeline.ingest_summary("r", 0, half, batch_id="rank1").late == 15
    assert bench.pipeline.step("r", 0).late == 15
    bench.pipeline.close_step("half", 0)
    bench.pipeline.close_step("whole", 0)
    assert bench.inbox() == []


def test_what_the_detectors_find_is_kept_with_the_step(bench: Bench) -> None:
    """Two steps of Δ ≡ 0 fire `bypass`; the state behind it survives a restart between them."""
    for step in (0, 1):
        body = body_of([replace(s, p=s.q) for s in SAMPLES], "paired", step=step)
        bench.send(body)
        bench.pipeline.close_step("r", step)
        bench.restart()
    (alert,) = bench.pipeline.alerts("r")
    assert (alert.kind, alert.state, alert.step) == ("bypass", "firing", 1)
    view = bench.pipeline.step("r", 1)
    assert view.findings[0]["kind"] == "bypass"
    assert alert.message in view.reasons
    assert [view.diagnosis[0]["cause"], *alert.causes[:1]] == ["bypass_mode"] * 2


def test_an_empty_batch_opens_nothing(bench: Bench) -> None:
    """A rank without samples is answered; no step waits for it for ever."""
    receipt = bench.send(body_of([], "train", step=0))
    assert (receipt.samples, receipt.steps) == (0, ())
    assert bench.pipeline.health().open_steps == 0
    assert bench.inbox() == []


def test_beyond_the_most_runs_the_quietest_goes_and_busy_ones_stay(
    make_bench: Callable[..., Bench],
) -> None:
    """A quiet run gives way; if all are busy the newcomer is told to come back."""
    bench = make_bench(max_runs=2)
    bench.send(body_of(SAMPLES[:1], "paired", run="done", step=0))
    bench.pipeline.close_step("done", 0)
    bench.send(body_of(SAMPLES, "rollout", run="a"))
    bench.send(body_of(SAMPLES, "rollout", run="b"))
    assert [view.run for view in bench.pipeline.runs() if view.active] == ["a", "b"]
    with pytest.raises(Overloaded, match="2 runs"):
        bench.send(body_of(SAMPLES, "rollout", run="c"))


def test_a_trainer_that_goes_back_trains_its_steps_again(bench: Bench) -> None:
    """The event opens closed steps, also over a restart of the service; history stays till then."""
    for step in (3, 4, 5):
        bench.send(body_of(SAMPLES, "paired", step=step))
        bench.pipeline.close_step("r", step)
    again = [replace(s, p=s.p * np.float32(1.01)) for s in SAMPLES[:30]]
    with pytest.raises(Conflict, match="restart"):
        bench.send(body_of(again, "paired", step=4), batch_id="early")
    bench.clock.advance(1)
    bench.pipeline.event("r", step=4, kind="restart", fields={})
    bench.restart()
    assert bench.pipeline.step("r", 4).samples == 40

    assert bench.send(body_of(again, "paired", step=4)).joined == 30
    assert bench.pipeline.step("r", 4).state == "open"
    assert bench.pipeline.close_step("r", 4).samples == 30
    with pytest.raises(Conflict, match="restart"):
        bench.send(body_of(again, "paired", step=3))
    assert bench.restart().step("r", 4).samples == 30
    assert [view.samples for view in bench.pipeline.steps("r")] == [40, 30, 40]


def test_repeats_in_an_open_step_are_counted_over_a_restart(bench: Bench) -> None:
    """As far as the batch tells its step, and any of it was kept."""
    bench.send(body_of(SAMPLES, "train", step=0))
    more = [*SAMPLES[:5], *make_samples(77, 60)[40:]]
    bench.send(body_of(more, "train", step=0))
    assert bench.restart().step("r", 0).duplicates == 5


def test_what_became_of_the_tokens_survives_a_restart(bench: Bench) -> None:
    """Totals of a run are those of its kept steps, in memory or not."""
    bench.send(body_of(SAMPLES, "rollout"))
    bench.send(body_of(SAMPLES, "train", step=0))
    bench.pipeline.close_step("r", 0)
    before = dict(bench.pipeline.run("r").tokens)

    bench.restart()
    assert {k: v for k, v in before.items() if v} == dict(bench.pipeline.run("r").tokens)
    bench.pipeline.event("r", step=None, kind="weight_sync", fields={})
    assert bench.pipeline.run("r").tokens["counted"] == before["counted"]
