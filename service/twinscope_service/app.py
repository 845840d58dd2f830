"""The composition root: settings in, application out; and the server that runs it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import uvicorn
from anyio import to_thread
from fastapi import FastAPI

from twinscope.errors import ConfigError
from twinscope_service.alert.sender import Alerting, AlertPlan, plan_alerts
from twinscope_service.clock import SystemClock
from twinscope_service.config import Settings
from twinscope_service.expose import page, reads, surface
from twinscope_service.expose.metrics import build_registry
from twinscope_service.expose.text import load_token_text
from twinscope_service.memory import keep_freed_memory
from twinscope_service.pipeline import Pipeline, open_pipeline
from twinscope_service.receive import posts, silences
from twinscope_service.receive.access import Authenticate
from twinscope_service.receive.connection import BoundedConnection
from twinscope_service.receive.edge import build_edge
from twinscope_service.receive.problems import add_handlers
from twinscope_service.receive.traffic import CountTraffic, Traffic
from twinscope_service.stages import build_detect_options

TICK_S = 1.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")

logger = logging.getLogger(__name__)


def build_app(settings: Settings, *, opened: Pipeline | None = None) -> FastAPI:
    """The application. It opens the data directory when it starts, unless the pipeline is `opened`
    already, and releases it when it stops."""
    traffic = Traffic()
    plan = _check(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pipeline = await to_thread.run_sync(lambda: opened or open_pipeline(settings))
        edge = build_edge(settings, pipeline, traffic=traffic)
        app.state.edge = edge
        app.state.token_text = await to_thread.run_sync(lambda: load_token_text(settings.tokenizer))
        app.state.health = await to_thread.run_sync(pipeline.health)
        alerting = Alerting(plan, pipeline.database, clock=SystemClock())
        app.state.silences, app.state.targets = alerting.silences, plan.targets
        app.state.registry = build_registry(
            pipeline, traffic=traffic, inflight=edge.inflight, alerting=alerting
        )
        alerting.start()
        ticking = [asyncio.create_task(_tick_forever(part)) for part in (pipeline, alerting)]
        try:
            yield
        finally:
            for task in ticking:
                task.cancel()
            await asyncio.gather(*ticking, return_exceptions=True)
            await to_thread.run_sync(alerting.close)
            await to_thread.run_sync(pipeline.close)

    app = FastAPI(
        title="TwinScope",
        version=version("twinscope"),
        description="Is the policy that sampled the tokens the policy that is being trained?",
        lifespan=lifespan,
        docs_url=None,  # the page has its own: the usual one loads scripts from the internet
        redoc_url=None,
    )
    add_handlers(app)
    app.include_router(posts.router, tags=["data in"])
    app.include_router(reads.router, tags=["results"])
    app.include_router(silences.router, tags=["silences"])
    app.include_router(surface.router, tags=["operation"])
    page.add_page(app)
    app.add_middleware(Authenticate, token=settings.token, run_tokens=settings.run_tokens)
    app.add_middleware(CountTraffic, traffic=traffic)
    return app


def _check(settings: Settings) -> AlertPlan:
    """Refuse nonsense before anything is opened. Raises ConfigError."""
    build_detect_options(settings)
    return plan_alerts(settings)


async def _tick_forever(part: Pipeline | Alerting) -> None:
    """What happens without a request, once a second. A failure is logged, never the end."""
    while True:
        await asyncio.sleep(TICK_S)
        try:
            await to_thread.run_sync(part.tick)
        except Exception:
            logger.exception("tick failed")


def build_server(settings: Settings, *, opened: Pipeline | None = None) -> uvicorn.Server:
    """The server on `settings.host` and `settings.port`, not started."""
    return uvicorn.Server(
        uvicorn.Config(
            build_app(settings, opened=opened),
            host=settings.host,
            port=settings.port,
            http=BoundedConnection,
            loop="asyncio",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=10,
        )
    )


def serve(settings: Settings) -> None:
    """Serve until interrupted. Raises ConfigError or StoreError where it cannot even start."""
    keep_freed_memory()
    _require_token(settings)
    _check(settings)
    with _listening(settings.host, settings.port) as listening:
        server = build_server(settings, opened=open_pipeline(settings))
        logger.info("listening on http://%s:%d", settings.host, listening.getsockname()[1])
        server.run(sockets=[listening])


def _require_token(settings: Settings) -> None:
    """Whoever reaches the port may read and write everything: say so, or refuse.

    A process that listens on all addresses may sit behind a firewall, so it warns; where a
    container's port is published beyond loopback there is nothing to hope for.
    """
    if settings.token or settings.run_tokens or (settings.published or settings.host) in LOOPBACK:
        return
    if settings.published:
        raise ConfigError(
            f"published ({settings.published}): open to the network and without a token; "
            "set TWINSCOPE_TOKEN, or publish on 127.0.0.1"
        )
    logger.warning("listening on %s without a token: set TWINSCOPE_TOKEN", settings.host)


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything else is opened."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"host, port: cannot listen on {host}:{port} ({os.strerror(error.errno or 0)}); "
            "is another service running there? give --port or TWINSCOPE_PORT"
        ) from error
