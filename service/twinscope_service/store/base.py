"""What the pipeline asks of a store. `sqlite.py` is the one that ships."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from twinscope_service.join.records import Settled
from twinscope_service.views import AlertView, Receipt, StepView, TimelineRow

RESTART = "restart"  # kind of the event that opens its step and all later ones again
BlobKind = Literal["summary", "rows", "evidence", "memory"]
BatchKind = Literal["batch", "summary"]


@dataclass(frozen=True)
class StoredBatch:
    """One accepted batch, as the store knows it."""

    seq: int
    run: str
    batch_id: str
    digest: bytes
    kind: BatchKind
    step: int | None
    file: str
    bytes: int
    receipt: Receipt
    settled: Mapping[int, int]  # sample -> join.records.Outcome
    done: bool


@dataclass(frozen=True)
class NewBatch:
    """One batch to be accepted. `settled`: what is known of its samples from the start."""

    seq: int  # from `Store.next_seq`
    run: str
    batch_id: str
    digest: bytes
    kind: BatchKind
    step: int | None
    file: str
    bytes: int
    received_at: float
    receipt: Receipt
    settled: Mapping[int, int]
    done: bool
    after_close: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    # closed step -> (late, duplicate) samples of this batch


@dataclass(frozen=True)
class ClosedStep:
    """Everything that is written when a step closes, in one transaction."""

    view: StepView
    blobs: Mapping[BlobKind, bytes]
    settled: Sequence[Settled]
    finished_summaries: Sequence[int]  # batches of kind summary that went into the step
    detector_state: Mapping[str, Any] | None = None
    alerts: Sequence[AlertView] = ()


@dataclass(frozen=True)
class Retention:
    """How long what is kept. `resend_s`: how long a finished batch's id is remembered, seconds."""

    age_s: float
    size_bytes: int
    rows_steps: int
    evidence_steps: int
    memory_steps: int
    resend_s: float


class Store(Protocol):
    """Thread-safe. Every method is one transaction: it happened, or it raised StoreError."""

    def next_seq(self) -> int:
        """The sequence number that `add_batch` will give next."""
        ...

    def add_batch(self, batch: NewBatch) -> None:
        """Accept a batch. Durable when it returns."""
        ...

    def find_batch(self, run: str, batch_id: str) -> StoredBatch | None:
        """An accepted batch."""
        ...

    def open_batches(self) -> list[StoredBatch]:
        """Batches whose bodies are still needed, in the order of acceptance."""
        ...

    def settle(self, settled: Iterable[Settled]) -> list[str]:
        """Note samples that need no body any more; returns files that nobody needs."""
        ...

    def abandon(self, seq: int) -> None:
        """A body that cannot be read back: none of its samples will come."""
        ...

    def close_step(self, closed: ClosedStep) -> list[str]:
        """Keep a closed step; returns files that nobody needs any more."""
        ...

    def runs(self) -> dict[str, tuple[float, float]]:
        """Run -> (first seen, last seen), seconds since the epoch."""
        ...

    def run(self, run: str) -> tuple[float, float] | None:
        """(first seen, last seen) of one run, None if it is not known."""
        ...

    def touch_run(self, run: str, at: float) -> None:
        """Something of a run has come."""
        ...

    def closed_steps(self, run: str) -> list[int]:
        """The closed steps, ascending, without those that a `restart` event opened again."""
        ...

    def count_steps(self, run: str) -> int:
        """How many closed steps are known."""
        ...

    def count_tokens(self, run: str) -> dict[str, int]:
        """Tokens of all closed steps by what became of them (measure.records.COVERAGE)."""
        ...

    def step(self, run: str, step: int) -> StepView | None:
        """One closed step."""
        ...

    def steps(self, run: str, *, after: int | None, limit: int) -> list[StepView]:
        """Closed steps in ascending order, at most `limit`, those beyond `after`."""
        ...

    def last_steps(self, run: str, *, limit: int) -> list[StepView]:
        """The latest `limit` closed steps, ascending."""
        ...

    def timeline(
        self, run: str, *, metrics: Sequence[str], limit: int, until: int | None = None
    ) -> list[TimelineRow]:
        """The latest `limit` closed steps up to `until`, ascending: `metrics` and scalars."""
        ...

    def blob(self, run: str, step: int, kind: BlobKind) -> bytes | None:
        """A blob of a closed step; None: it has none, or not any more."""
        ...

    def add_scalars(self, run: str, step: int, values: Mapping[str, float], *, at: float) -> None:
        """Keep scalars; the last value of a name wins."""
        ...

    def scalars(self, run: str, step: int) -> dict[str, float]:
        """The scalars of a step."""
        ...

    def add_event(
        self, run: str, *, step: int | None, kind: str, fields: Mapping[str, Any], at: float
    ) -> None:
        """Keep an event."""
        ...

    def events(self, run: str, *, limit: int) -> list[tuple[int | None, str, dict[str, Any]]]:
        """The latest events (step, kind, fields), oldest first."""
        ...

    def add_alerts(
        self, run: str, alerts: Sequence[AlertView], *, state: Mapping[str, Any], at: float
    ) -> None:
        """Alerts that no step brought, with the detector state that goes with them."""
        ...

    def alerts(self, run: str, *, limit: int) -> list[AlertView]:
        """Alerts, newest first."""
        ...

    def detector_state(self, run: str) -> dict[str, Any] | None:
        """What the detectors of a run carry from step to step."""
        ...

    def retain(self, retention: Retention, *, now: float) -> None:
        """Remove what is past its time, a bounded amount per call."""
        ...

    def bytes(self) -> int:
        """Size of what the database holds."""
        ...

    def close(self) -> None:
        """Release the files."""
        ...
