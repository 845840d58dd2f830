"""/metrics, /healthz, /readyz, and who is told."""

from __future__ import annotations

from anyio import move_on_after, to_thread
from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from twinscope_service.alert.target import Target
from twinscope_service.receive.answers import Answer
from twinscope_service.receive.edge import access_of, edge_of
from twinscope_service.views import Health

TOLD = ("name", "type", "runs", "kinds", "provisional")  # of a target: no address, no secret
BUSY_S = 0.5  # an orchestrator waits a second for readiness
router = APIRouter()


@router.get("/metrics", summary="Prometheus metrics")
def read_metrics(request: Request) -> Response:
    """Text or OpenMetrics format, as the scraper asks."""
    access_of(request).require(None)
    registry: CollectorRegistry = request.app.state.registry
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"Content-Type": kind})


@router.get("/healthz", summary="Liveness")
async def read_liveness() -> Answer:
    """The event loop answers."""
    return Answer({"status": "alive"})


@router.get("/readyz", summary="Readiness")
async def read_readiness(request: Request) -> Answer:
    """200 when batches are taken, else 503 with `reason` and `fix`: the service starts, or its disk
    is full. More details only for those who may see everything.

    While a large batch is measured, the last known state is told: busy is not unready.
    """
    state = request.app.state
    with move_on_after(BUSY_S):
        pipeline = edge_of(request).pipeline
        state.health = await to_thread.run_sync(pipeline.health, abandon_on_cancel=True)
    health: Health = state.health
    said = health.as_json()
    if access_of(request).run is not None:
        why = {} if health.ready else {"reason": health.reason, "fix": health.fix}
        said = {"ready": health.ready, **why}
    return Answer(said, 200 if health.ready else 503)


@router.get("/v1/targets", summary="Who is told of alerts")
def list_targets(request: Request) -> Answer:
    """Name, type and filter (`runs`, `kinds`, `provisional`) of every target; not its address."""
    access_of(request).require(None)
    targets: tuple[Target, ...] = request.app.state.targets
    return Answer([{name: getattr(target, name) for name in TOLD} for target in targets])
