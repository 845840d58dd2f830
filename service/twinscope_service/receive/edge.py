"""What every call needs: the pipeline, the limits, the counters. Made once, by app.py."""

from __future__ import annotations

from dataclasses import dataclass

from anyio import CapacityLimiter
from starlette.requests import Request

from twinscope.wire.limits import Limits
from twinscope_service.config import Settings
from twinscope_service.pipeline import Pipeline
from twinscope_service.receive.access import Access
from twinscope_service.receive.body import BodyRules, InflightBytes
from twinscope_service.receive.traffic import Traffic

MESSAGE_BYTES = 1 << 20  # scalars and events


@dataclass(frozen=True)
class Edge:
    """The service as the HTTP calls see it."""

    pipeline: Pipeline
    limits: Limits
    binary: BodyRules
    json: BodyRules
    message: BodyRules
    inflight: InflightBytes
    traffic: Traffic
    ingest_threads: CapacityLimiter  # its own, so that reads never wait for uploads
    json_threads: CapacityLimiter  # one: JSON costs many times its size in memory


def build_edge(settings: Settings, pipeline: Pipeline, *, traffic: Traffic) -> Edge:
    """The edge of `pipeline` under `settings`. Call on the event loop."""
    limits = Limits(
        body_bytes=settings.max_body_bytes,
        json_bytes=settings.max_json_bytes,
        header_bytes=settings.max_header_bytes,
        samples=settings.max_samples,
        tokens=settings.max_tokens,
        prompt_tokens=settings.max_tokens,
    )
    stall_s = settings.body_timeout_s
    return Edge(
        pipeline=pipeline,
        limits=limits,
        binary=BodyRules(limits.body_bytes, stall_s),
        json=BodyRules(limits.json_bytes, stall_s),
        message=BodyRules(MESSAGE_BYTES, stall_s),
        inflight=InflightBytes(settings.max_inflight_bytes),
        traffic=traffic,
        ingest_threads=CapacityLimiter(4),
        json_threads=CapacityLimiter(1),
    )


def edge_of(request: Request) -> Edge:
    """The edge that app.py put into the application's state."""
    edge: Edge = request.app.state.edge
    return edge


def access_of(request: Request) -> Access:
    """What the request's token opens."""
    access: Access = request.state.access
    return access
