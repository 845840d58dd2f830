"""A step closes: the verdict, the detectors, the causes, and one transaction that keeps it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

from twinscope_service.detect.bands import Judgement
from twinscope_service.detect.lasting import (
    SURE,
    Lasting,
    lasting_from_json,
    recall,
    stands,
    update,
)
from twinscope_service.detect.versions import Sync, Weights, same_sync, standing_still
from twinscope_service.detect.watch import alert_of
from twinscope_service.diagnose.cause import Cause
from twinscope_service.diagnose.context import Event
from twinscope_service.join.records import Closing
from twinscope_service.join.tally import StepTally
from twinscope_service.measure.merge import without_rows
from twinscope_service.measure.records import Summary
from twinscope_service.runstate import COUNTED, OpenStep, RunState, events_of, newest
from twinscope_service.stages import DetectorState, Meter, Stages
from twinscope_service.stepview import join_counts, step_facts, view_step
from twinscope_service.store.base import BlobKind, ClosedStep, Store
from twinscope_service.store.summaries import pack
from twinscope_service.views import AlertView, Metrics, StepView

By = Literal["complete", "call", "grace", "ttl"]
# counted or compared, not estimated: said however few tokens there are
CERTAIN = frozenset(
    {"side_missing", "retokenized", "missing_value_sentinel", "nonfinite_values", "bypass_mode"}
)
# worth saying, but no disagreement: too small to matter, or for the coverage to judge
NOTES = frozenset({"bf16_logprob_storage", "side_missing", "bypass_mode"})
LASTING = "lasting"  # where the detectors' state keeps what the verdicts amount to
FEW = 0.001  # share of unmasked tokens below which NaN and infinity are for the coverage alone
EVENTS = 200  # latest events of the run that a diagnosis looks at


@dataclass(frozen=True)
class Left:
    """What a step is when its data stop coming. `at`: seconds since the epoch."""

    tally: StepTally
    closing: Closing
    at: float
    by: By


@dataclass(frozen=True)
class Findings:
    """What the detectors say about a step, and what they carry on."""

    state: DetectorState | None = None
    alerts: Sequence[AlertView] = ()


def conclude(
    state: RunState, opened: OpenStep, leaving: Left, *, stages: Stages, meter: Meter, store: Store
) -> tuple[StepView, Findings]:
    """detect -> diagnose: what is to be said about a step whose data are complete or given up.

    Each stage may crash: the step is then `unknown` with the stage's name as the reason.
    """
    summary, crashed = opened.summary(), opened.crashed.add
    metrics: Metrics = {}
    judgement, findings = Judgement("unknown"), Findings()
    pooled, more = state.pool(summary, least=stages.bands.min_tokens)
    events = cache(lambda: events_of(store.events(state.run, limit=EVENTS)))
    with meter.survive("judge", crashed=crashed):
        metrics = stages.derive(summary)
        facts = step_facts(opened, leaving.tally, summary, before=tuple(state.disputed))
        of_all = stages.derive(pooled) if more else metrics
        judgement = _with_pool(
            stages.judge(pooled, of_all, facts=facts, bands=stages.bands), summary, more
        )
        judgement = _with_versions(
            judgement, state, opened, events=events, summary=summary, store=store
        )
    view = replace(
        view_step(opened, leaving.tally, summary, metrics=metrics, judgement=judgement),
        state="closed",
        evicted={"step_closed": sum(leaving.closing.evicted.values())},
        closed_at=leaving.at,
        closed_by=leaving.by,
    )
    with meter.survive("detect", crashed=crashed):
        findings = Findings(*stages.detect(state.detector, view, summary))
        state.note_onset(findings.alerts)
    causes: tuple[Cause, ...] = ()
    with meter.survive("diagnose", crashed=crashed):
        context = replace(
            opened.context,
            join=join_counts(
                leaving.tally,
                evicted=view.evicted,
                waiting=Counter(leaving.closing.evicted) + state.join.without_step(),
            ),
            events=events(),
        )
        causes = stages.diagnose(pooled, context=context, history=state.history())
        if pooled.coverage[COUNTED] < stages.bands.min_tokens:
            causes = tuple(cause for cause in causes if cause.cause in CERTAIN)
    with meter.survive("detect", crashed=crashed):
        before = lasting_from_json((state.detector or {}).get(LASTING))
        sure = [cause.as_json() for cause in causes[:1] if _is_sure(cause)]
        told = _told(view, findings, causes, before)
        return _with_lasting(state, *told, before, sure=sure[0] if sure else None)
    return view, findings


def _with_pool(judgement: Judgement, summary: Summary, more: int) -> Judgement:
    """The verdict that took `more` earlier steps, with a word on it."""
    if not more:
        return judgement
    before = "the step before" if more == 1 else f"the {more} steps before"
    few = f"judged together with {before}: {summary.coverage[COUNTED]} counted tokens are too few"
    return replace(judgement, reasons=(*judgement.reasons, few))


def _with_versions(
    judgement: Judgement, state: RunState, opened: OpenStep, *,
    events: Callable[[], Sequence[Event]], summary: Summary, store: Store,
) -> Judgement:  # fmt: skip
    """The verdict with a word on weights that seem to stand still; it stays what it is."""
    now = Weights(opened.step, newest(summary, "train_version"))
    known = (*(Weights(point.step, point.train_version) for point in state.points), now)
    syncs = [Sync(e.step, e.fields) for e in events() if e.kind == "weight_sync"]
    words = standing_still(known, scalars=partial(store.scalars, state.run))
    more = [word for word in (words, same_sync(syncs, step=opened.step)) if word is not None]
    return replace(judgement, reasons=(*judgement.reasons, *more))


def _told(
    view: StepView, findings: Findings, causes: Sequence[Cause], before: Lasting
) -> tuple[StepView, Findings]:
    """The view with findings and causes, and the findings with the causes' names."""
    shift = findings.state["series"].get("k3", {}).get("shift") if findings.state else None
    still = stands(before, shift, view.metrics.get("k3_mean"))
    accused = bool(causes) and causes[0].family != "none"
    more: list[str] = []
    verdict = view.verdict
    if accused and verdict == "ok":
        more.append(f"within the level bands, yet {causes[0].cause}: {causes[0].evidence}")
        if _is_sure(causes[0]) and not _is_note(causes[0], view):
            verdict = "inconsistent"
    if still is not None and verdict == "ok":
        more.append(still)
        verdict = "inconsistent"
    diagnosis = tuple(cause.as_json() for cause in causes)
    if still is not None:
        diagnosis = recall(before, shift, diagnosis)
    if verdict == "inconsistent" and diagnosis and diagnosis[0]["family"] == "none":
        causes, word = _without_noise(causes)
        diagnosis = tuple(cause.as_json() for cause in causes)
        more.append(word)
    view = replace(view, verdict=verdict, diagnosis=diagnosis)
    view, findings = _with_alerts(view, replace(findings, alerts=()), findings.alerts)
    return replace(view, reasons=(*view.reasons, *more)), findings


def _with_alerts(
    view: StepView, findings: Findings, alerts: Sequence[AlertView]
) -> tuple[StepView, Findings]:
    """Both with more alerts, which get the names of the step's causes."""
    names = tuple(cause["cause"] for cause in view.diagnosis if cause["family"] != "none")
    named = [replace(alert, causes=names) for alert in alerts]
    view = replace(
        view,
        reasons=(*view.reasons, *(alert.message for alert in named if alert.state == "firing")),
        findings=(*view.findings, *(alert.as_json() for alert in named)),
    )
    return view, replace(findings, alerts=(*findings.alerts, *named))


def _is_sure(cause: Cause) -> bool:
    return cause.family != "none" and cause.confidence >= SURE


def _is_note(cause: Cause, view: StepView) -> bool:
    """Worth saying, but no reason to stop: what NOTES lists, and a NaN here and there."""
    unmasked = view.coverage["received"] - view.coverage["masked_out"]
    few = view.coverage["nonfinite"] < FEW * unmasked
    return cause.cause in NOTES or (cause.cause == "nonfinite_values" and few)


def _with_lasting(
    state: RunState, view: StepView, findings: Findings, before: Lasting, *,
    sure: dict[str, Any] | None,
) -> tuple[StepView, Findings]:  # fmt: skip
    """News of a verdict that lasts, and what the next step must know of the verdicts so far."""
    if findings.state is None:
        return view, findings
    after, found = update(
        before, view.verdict, step=view.step, sure=sure, firing=state.firing_kinds
    )
    news = [alert_of(finding) for finding in found]
    state.note_onset(news)
    findings = replace(findings, state={**findings.state, LASTING: after.as_json()})
    return _with_alerts(view, findings, news)


def _without_noise(causes: Sequence[Cause]) -> tuple[tuple[Cause, ...], str]:
    """The causes of an inconsistent step that looks healthy to all of them, and a word on it.

    The verdict has its reasons, so "nothing is wrong" is no answer; what is known is that nothing
    stands out enough to be named.
    """
    fitting = tuple(cause for cause in causes if cause.family != "none")
    names = ", ".join(f"{cause.cause} ({cause.confidence:.0%})" for cause in fitting)
    if fitting:
        return fitting, f"unexplained: no cause stands out; those that fit are {names}"
    return (), "unexplained: no cause that diagnosis knows fits"


def never_ok_unseen(view: StepView, opened: OpenStep) -> StepView:
    """A crashed stage leaves `unknown`, whatever the other stages said."""
    if not opened.crashed:
        return view
    untold = [s for s in sorted(opened.crashed) if not any(s in reason for reason in view.reasons)]
    reasons = (*view.reasons, *(f"{stage} failed on this step; see the log" for stage in untold))
    return replace(view, verdict="unknown", reasons=reasons)


def closed_step(
    view: StepView, findings: Findings, opened: OpenStep, closing: Closing, *, meter: Meter
) -> ClosedStep:
    """The record that the store keeps in one transaction."""
    blobs: dict[BlobKind, bytes] = {"memory": closing.memory}
    with meter.survive("pack", crashed=opened.crashed.add):
        summary = opened.summary()
        blobs["summary"] = pack(without_rows(summary))
        if len(summary.rows.keys):
            blobs["rows"] = pack(summary)
        evidence = opened.evidence_body()
        if evidence is not None:
            blobs["evidence"] = evidence
    return ClosedStep(
        view=never_ok_unseen(view, opened),
        blobs=blobs,
        settled=closing.settled,
        finished_summaries=tuple(opened.summaries),
        detector_state=findings.state,
        alerts=findings.alerts,
    )
