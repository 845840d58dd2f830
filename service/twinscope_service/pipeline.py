"""The data path in one place: receive -> join -> measure -> detect -> diagnose -> expose / alert."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinscope.wire.batch import Batch

from twinscope_service.clock import Clock
from twinscope_service.config import Settings
from twinscope_service.measure.records import Summary
from twinscope_service.views import AlertView, GateView, Health, Receipt, RunView, StepView


class Pipeline:
    """Surface only, published first; see the next commits. Thread-safe."""

    def ingest(self, body: memoryview | bytes, batch: Batch, *, batch_id: str | None) -> Receipt:
        """Keep, join and measure one batch. Raises Conflict, Overloaded, StoreError."""
        ...

    def ingest_summary(
        self, run: str, step: int, summary: Summary, *, batch_id: str | None
    ) -> Receipt:
        """Merge a reduced summary. Raises Conflict, Overloaded, StoreError."""
        ...

    def scalars(self, run: str, step: int, values: Mapping[str, float]) -> None:
        """Keep scalars of a step; the last value of a name wins."""

    def event(self, run: str, *, step: int | None, kind: str, fields: Mapping[str, Any]) -> None:
        """Keep an event."""

    def close_step(self, run: str, step: int) -> StepView:
        """No more data for that step. Idempotent. Raises UnknownRun, UnknownStep."""
        ...

    def tick(self) -> None:
        """Grace periods, evictions, retention; called every second."""

    def runs(self) -> list[RunView]: ...
    def run(self, run: str) -> RunView: ...
    def steps(self, run: str, *, after: int | None = None, limit: int = 100) -> list[StepView]: ...
    def step(self, run: str, step: int) -> StepView: ...
    def evidence(self, run: str, step: int) -> bytes | None:
        """A trace body (safetensors, side `paired`) of the worst and some random samples."""
        ...

    def summary(self, run: str, step: int) -> Summary | None: ...
    def alerts(self, run: str) -> list[AlertView]: ...
    def gate(self, run: str) -> GateView: ...
    def health(self) -> Health: ...
    def close(self) -> None:
        """Release the data directory."""


def open_pipeline(settings: Settings, *, clock: Clock | None = None) -> Pipeline:
    """Open the data directory `settings.data_dir`, replay what waits, be ready."""
    Path(settings.data_dir).mkdir(parents=True, exist_ok=True)
    return Pipeline()
