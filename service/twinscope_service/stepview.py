"""StepViews: of a step that is open, of one that closes, with the scalars that came meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from twinscope_service.detect.bands import Judgement, StepFacts
from twinscope_service.detect.disputed import Disputed, count_disputed
from twinscope_service.diagnose.context import JoinCounts
from twinscope_service.join.records import PAIR_SIDES, Outcome, PairSide
from twinscope_service.join.tally import StepTally
from twinscope_service.measure.derive import coverage_block, kl_reward_ratio
from twinscope_service.measure.records import Summary
from twinscope_service.runstate import OpenStep
from twinscope_service.views import Metrics, Retokenized, SideCount, StepView

STILL_OPEN = Judgement("unknown", ("the step is open: the verdict comes when it closes",))


def view_step(
    opened: OpenStep,
    tally: StepTally,
    summary: Summary,
    *,
    metrics: Metrics,
    judgement: Judgement = STILL_OPEN,
) -> StepView:
    """The view of a step, still open, from what was counted and measured."""
    waiting = tally.waiting()
    sides: dict[str, SideCount] = {
        side: SideCount(tally.received[side], waiting[side], tally.expect.get(side))
        for side in PAIR_SIDES
        if side != "ref" or tally.received["ref"] or "ref" in tally.expect
    }
    coverage = coverage_block(summary)
    return StepView(
        run=opened.run,
        step=opened.step,
        state="open",
        sides=sides,
        tokens=coverage["received"],
        samples=summary.samples,
        coverage=coverage,
        metrics={name: _finite(value) for name, value in metrics.items()},
        verdict=judgement.verdict,
        reasons=judgement.reasons,
        diagnosis=(),
        joined=tally.outcomes[Outcome.JOINED],
        retokenized=tally.outcomes[Outcome.RETOKENIZED],
        retokenized_examples=tuple(
            Retokenized(d.sample_id, d.first, d.rollout_tokens, d.train_tokens)
            for d in tally.differences
        ),
        duplicates=tally.outcomes[Outcome.DUPLICATE],
        late=tally.outcomes[Outcome.LATE],
        opened_at=opened.opened_at,
    )


def step_facts(
    opened: OpenStep, tally: StepTally, summary: Summary, *, before: Sequence[Disputed] = ()
) -> StepFacts:
    """What the verdict needs beside the measurement. Posted summaries count as joined samples.

    `before`: the run's closed steps, oldest first.
    """
    joined = tally.outcomes[Outcome.JOINED]
    posted = max(summary.samples - joined, 0)
    return StepFacts(
        train_samples=tally.received["train"] + posted,
        rollout_samples=tally.received["rollout"] + posted,
        joined=joined + posted,
        retokenized=tally.outcomes[Outcome.RETOKENIZED],
        short=tally.short(),
        crashed=tuple(sorted(opened.crashed)),
        rollout=opened.context.rollout,
        train=opened.context.train,
        disputed=count_disputed(summary),
        disputed_before=before,
    )


def join_counts(
    tally: StepTally, *, evicted: Mapping[str, int], waiting: Mapping[PairSide, int]
) -> JoinCounts:
    """The join's counts as diagnosis takes them. `waiting`: side -> samples that met no other."""
    known = [d for d in tally.differences if d.first is not None]
    return JoinCounts(
        rollout_samples=tally.received["rollout"],
        train_samples=tally.received["train"],
        ref_samples=tally.received["ref"],
        joined=tally.outcomes[Outcome.JOINED],
        waiting_rollout=waiting.get("rollout", 0),
        waiting_train=waiting.get("train", 0),
        retokenized=tally.outcomes[Outcome.RETOKENIZED],
        first_difference=min((d.first for d in known if d.first is not None), default=None),
        length_mismatch=sum(d.first == min(d.rollout_tokens, d.train_tokens) for d in known),
        evicted=evicted,
        late=tally.outcomes[Outcome.LATE],
    )


def with_scalars(view: StepView, scalars: Mapping[str, float]) -> StepView:
    """The view with its scalars and what follows from them; they may come after the close."""
    reward = scalars.get("reward", view.metrics.get("reward_mean"))
    ratio = kl_reward_ratio(
        view.metrics.get("policy_ref_kl"), reward, baseline_reward=scalars.get("baseline_reward")
    )
    metrics = {**view.metrics, "kl_reward_ratio": ratio}
    return replace(view, scalars=dict(scalars), metrics=metrics)


def _finite(value: float | None) -> float | None:
    """What is beyond float64 cannot be written as JSON: unknown."""
    return value if value is not None and math.isfinite(value) else None
