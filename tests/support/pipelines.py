"""Pipelines for tests: a folder, a clock that stands still, the reference engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode, encode_batch
from twinscope_service.clock import ManualClock
from twinscope_service.config import load_settings
from twinscope_service.pipeline import Pipeline, open_pipeline
from twinscope_service.views import Receipt, StepView


class Bench:
    """One data directory and the pipeline on it, which may be closed and opened again."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.data_dir = data_dir
        defaults: dict[str, Any] = {"engine": "reference", "min_tokens": 1}
        self.settings = load_settings(data_dir=data_dir, **{**defaults, **settings})
        self.clock = ManualClock()
        self.pipeline = self.open()

    def open(self, **arguments: Any) -> Pipeline:
        """Open the directory (again)."""
        self.pipeline = open_pipeline(self.settings, clock=self.clock, **arguments)
        return self.pipeline

    def restart(self) -> Pipeline:
        """Close and open."""
        self.pipeline.close()
        return self.open()

    def send(self, body: bytes, *, batch_id: str | None = None) -> Receipt:
        """Hand a body in, as the HTTP edge does."""
        return self.pipeline.ingest(body, decode(body), batch_id=batch_id)

    def close(self, batch: Batch, *, after_s: float = 0.0) -> StepView:
        """Send a step in one batch; so many seconds later it closes."""
        assert batch.step is not None
        self.send(b"".join(encode_batch(batch)))
        self.clock.advance(after_s)
        return self.pipeline.close_step(batch.run, batch.step)

    def inbox(self) -> list[str]:
        """The bodies on disk."""
        return sorted(path.name for path in (self.data_dir / "inbox").iterdir())
