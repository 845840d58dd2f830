"""/readyz and /healthz answer while the pipeline is busy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from twinscope_service.pipeline import Pipeline


def test_readiness_is_told_while_a_batch_is_measured(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline's lock is held: the last known state is told, and afterwards the new one."""
    service = start()
    busy, health = threading.Event(), Pipeline.health
    assert service.get("/readyz").json()["ready"] is True

    def wait_and_tell(pipeline: Pipeline) -> Any:
        assert busy.wait(60)
        return health(pipeline)

    monkeypatch.setattr(Pipeline, "health", wait_and_tell)
    try:
        assert service.get("/readyz").status_code == 200
        assert service.get("/healthz").status_code == 200
    finally:
        busy.set()
    assert service.get("/readyz").json()["ready"] is True
