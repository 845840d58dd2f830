"""The calls that read: runs, steps, evidence, diagnosis, alerts, gate.

Names of runs may contain slashes, so `run` is a path parameter, and longer addresses come first.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from twinscope.wire.header import STEP_END, check_run
from twinscope.wire.schema import CONTENT_TYPE
from twinscope_service.expose import timeline
from twinscope_service.expose.evidence import describe_evidence, describe_profiles
from twinscope_service.pipeline import Pipeline
from twinscope_service.receive.answers import Answer, read_step
from twinscope_service.receive.edge import access_of, edge_of
from twinscope_service.views import RunView

EVENTS = 1000  # latest events that a timeline carries
router = APIRouter()
Limit = Annotated[int, Query(ge=1, le=1000, description="most entries of the answer")]
LastSteps = Annotated[int, Query(ge=1, le=20_000, description="only the latest so many steps")]
UntilStep = Annotated[int | None, Query(ge=0, lt=STEP_END, description="no step after this one")]
AfterStep = Annotated[int | None, Query(ge=-1, description="only steps after this one")]
AfterRun = Annotated[str | None, Query(description="only runs after this name")]
AfterAlert = Annotated[int | None, Query(ge=0, description="only alerts older than this id")]


def _open(request: Request, run: str) -> tuple[Pipeline, str]:
    """The pipeline, and the name of a run that this request may read."""
    name = check_run(run)
    access_of(request).require(name)
    return edge_of(request).pipeline, name


@router.get("/v1/runs", summary="Runs")
def list_runs(request: Request, limit: Limit = 100, after: AfterRun = None) -> Answer:
    """By name; `next` is the `after` of the next page, null on the last one."""
    access = access_of(request)
    views = sorted(edge_of(request).pipeline.runs(), key=lambda view: view.run)
    found = [
        view
        for view in views
        if access.run in (None, view.run) and (after is None or view.run > after)
    ]
    page = found[:limit]
    return Answer(
        {
            "runs": [_run_json(view) for view in page],
            "next": page[-1].run if len(found) > limit else None,
        }
    )


def _run_json(view: RunView) -> dict[str, Any]:
    return {**view.as_json(), "last_step": None if view.last is None else view.last.step}


@router.get("/v1/runs/{run:path}/steps/{step}/evidence", summary="Worst tokens, kept samples")
def read_evidence(request: Request, run: str, step: str) -> Response:
    """JSON; with `Accept: application/x-safetensors` the kept samples as a trace file."""
    pipeline, name = _open(request, run)
    number = pipeline.step(name, read_step(step)).step
    body = pipeline.evidence(name, number)
    if body is not None and CONTENT_TYPE in request.headers.get("accept", ""):
        return Response(bytes(body), media_type=CONTENT_TYPE)
    described = describe_evidence(
        pipeline.summary(name, number), body, text=request.app.state.token_text
    )
    return Answer({"run": name, "step": number, **described})


@router.get("/v1/runs/{run:path}/steps/{step}/profiles", summary="Where in the samples it differs")
def read_profiles(request: Request, run: str, step: str) -> Answer:
    """Sums by position, length, probability, lag, version lag and group; null when not kept."""
    pipeline, name = _open(request, run)
    number = pipeline.step(name, read_step(step)).step
    summary = pipeline.summary(name, number)
    found = None if summary is None else describe_profiles(summary)
    return Answer({"run": name, "step": number, "statistics": found})


@router.get("/v1/runs/{run:path}/steps/{step}/diagnosis", summary="Ranked causes")
def read_diagnosis(request: Request, run: str, step: str) -> Answer:
    """The causes of one step, best first."""
    pipeline, name = _open(request, run)
    view = pipeline.step(name, read_step(step))
    return Answer(
        {
            "run": name,
            "step": view.step,
            "state": view.state,
            "verdict": view.verdict,
            "reasons": view.reasons,
            "diagnosis": list(view.diagnosis),
        }
    )


@router.get("/v1/runs/{run:path}/steps/{step}", summary="One step")
def read_step_view(request: Request, run: str, step: str) -> Answer:
    """The object of `twinscope analyze --json`, plus state, sides and waiting counts."""
    pipeline, name = _open(request, run)
    return Answer(pipeline.step(name, read_step(step)).as_json())


@router.get("/v1/runs/{run:path}/steps", summary="Steps of a run")
def list_steps(request: Request, run: str, limit: Limit = 100, after: AfterStep = None) -> Answer:
    """In order; `next` is the `after` of the next page, null on the last one."""
    pipeline, name = _open(request, run)
    found = pipeline.steps(name, after=after, limit=limit + 1)
    page = found[:limit]
    return Answer(
        {
            "steps": [view.as_json() for view in page],
            "next": page[-1].step if len(found) > limit else None,
        }
    )


@router.get("/v1/runs/{run:path}/timeline", summary="A whole run as columns")
def read_timeline(
    request: Request, run: str, last: LastSteps = 5000, until: UntilStep = None
) -> Answer:
    """Closed steps as columns of equal length, the band of healthy steps, alerts and events."""
    pipeline, name = _open(request, run)
    more = last + timeline.WINDOW  # these feed the band
    rows = pipeline.timeline(name, metrics=timeline.METRICS, limit=more, until=until)
    columns = timeline.describe_timeline(
        rows,
        alerts=pipeline.alerts(name),
        events=pipeline.events(name, limit=EVENTS),
        skip=max(len(rows) - last, 0),
    )
    return Answer({"run": name, "closed_steps": pipeline.run(name).closed_steps, **columns})


@router.get("/v1/runs/{run:path}/events", summary="Events of a run")
def list_events(request: Request, run: str, limit: Limit = 100) -> Answer:
    """The latest ones, oldest first."""
    pipeline, name = _open(request, run)
    found = pipeline.events(name, limit=limit)
    return Answer([{"step": step, "kind": kind, "fields": fields} for step, kind, fields in found])


@router.get("/v1/runs/{run:path}/alerts", summary="Alerts of a run")
def list_alerts(request: Request, run: str, limit: Limit = 100, after: AfterAlert = None) -> Answer:
    """Newest first."""
    pipeline, name = _open(request, run)
    found = [view for view in pipeline.alerts(name) if after is None or view.id < after]
    return Answer([view.as_json() for view in found[:limit]])


@router.get("/v1/runs/{run:path}/gate", summary="The verdict, for a trainer")
def read_gate(request: Request, run: str) -> Answer:
    """Verdict and reasons of the last closed step, and the suggested bounds of a token mask.

    Alerts that still fire from earlier steps are among the reasons; the verdict is the step's own.
    """
    pipeline, name = _open(request, run)
    return Answer(pipeline.gate(name).as_json())


@router.get("/v1/runs/{run:path}", summary="One run")
def read_run(request: Request, run: str) -> Answer:
    """State of the run, with its last closed step and when each of its processes was heard from."""
    pipeline, name = _open(request, run)
    return Answer({**_run_json(pipeline.run(name)), "processes": pipeline.processes(name)})
