"""What the pipeline answers: open steps from memory, closed ones from the store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from twinscope_service.book import Book
from twinscope_service.clock import Clock
from twinscope_service.config import Settings
from twinscope_service.errors import ServiceError, UnknownRun, UnknownStep
from twinscope_service.join.tally import StepTally
from twinscope_service.measure.engine import device_state
from twinscope_service.measure.records import Summary
from twinscope_service.opening import DataDir
from twinscope_service.processes import Processes
from twinscope_service.runstate import RunState
from twinscope_service.stages import Meter, Stages
from twinscope_service.stepview import view_step, with_scalars
from twinscope_service.store.base import ClosedStep, Store
from twinscope_service.store.room import Room
from twinscope_service.store.sqlite import SqliteStore
from twinscope_service.store.summaries import unpack
from twinscope_service.tallies import Tallies
from twinscope_service.views import AlertView, GateView, Health, RunView, StepView, TimelineRow

ALERTS = 1000
NOT_YET = ServiceError(
    "the service starts or stops",
    fix="wait: the first start of an installation compiles for half a minute",
)
GATE_ALERTS = 3  # that the gate names
MASK_LOW, MASK_HIGH = 0.5, 5.0  # the two-sided token mask that frameworks use by default


class Reads:
    """The reading half of the pipeline. Thread-safe.

    Only open steps are read under the pipeline's lock, which a measurement may hold for long.
    Everything else comes from the store, or from values that are replaced, never changed in place,
    so that scrapes and pages do not wait.
    """

    def __init__(self, settings: Settings, data: DataDir, *, stages: Stages, clock: Clock) -> None:
        self._settings, self._data = settings, data
        self._store: Store = data.store
        self._bodies = data.bodies
        self._room = Room(data.bodies.fits)
        self._stages, self._clock = stages, clock
        self._lock = threading.RLock()
        self._book = Book(settings, store=data.store, load=data.bodies.load, clock=clock)
        self._meter, self._tallies = Meter(clock), Tallies()
        self._unsaved: list[ClosedStep] = []  # closed, but the disk was full
        self._ready = False
        self._processes = Processes()

    @property
    def database(self) -> SqliteStore:
        """For the senders of alerts, who have their own tables."""
        return self._data.store

    def now(self) -> float:
        """Seconds since the epoch, by the clock that everything here goes by."""
        return self._clock.time()

    def runs(self) -> list[RunView]:
        """All runs that are known, by name."""
        return [self._run_view(run, *seen) for run, seen in self._store.runs().items()]

    def run(self, run: str) -> RunView:
        """One run. Raises UnknownRun."""
        seen = self._store.run(run)
        if seen is None:
            raise UnknownRun(run)
        return self._run_view(run, *seen)

    def processes(self, run: str) -> list[dict[str, Any]]:
        """The processes of a run that were heard from, by rank, plain JSON. Raises UnknownRun."""
        self._require(run)
        with self._lock:
            found = self._processes.of(run)
        return [heard.as_json(self._clock.time()) for heard in found]

    def steps(self, run: str, *, after: int | None = None, limit: int = 100) -> list[StepView]:
        """Closed and open steps in ascending order, at most `limit`, those beyond `after`."""
        self._require(run)
        with self._lock:
            found = {view.step: view for view in self._store.steps(run, after=after, limit=limit)}
            for view in self._open_views(run):
                if after is None or view.step > after:
                    found[view.step] = view
        return [with_scalars(found[step], found[step].scalars) for step in sorted(found)[:limit]]

    def step(self, run: str, step: int) -> StepView:
        """One step. Raises UnknownRun, UnknownStep."""
        self._require(run)
        state = self._book.find(run)
        if self._unsaved or (state is not None and step in state.steps):
            with self._lock:  # it may have closed meanwhile
                view = self._open_view(run, step) or self._store.step(run, step)
        else:
            view = self._store.step(run, step)
        if view is None:
            raise UnknownStep(run, step)
        return with_scalars(view, view.scalars)

    def timeline(
        self, run: str, *, metrics: Sequence[str], limit: int, until: int | None = None
    ) -> list[TimelineRow]:
        """The latest closed steps, ascending, reduced to what a plot of the run needs.

        `until`: none beyond this step.
        """
        self._require(run)
        return self._store.timeline(run, metrics=metrics, limit=limit, until=until)

    def events(self, run: str, *, limit: int) -> list[tuple[int | None, str, dict[str, Any]]]:
        """The latest events (step, kind, fields), oldest first."""
        self._require(run)
        return self._store.events(run, limit=limit)

    def evidence(self, run: str, step: int) -> bytes | None:
        """A trace body (safetensors, side `paired`) of the worst and some random samples."""
        self._require(run)
        return self._store.blob(run, step, "evidence")

    def summary(self, run: str, step: int) -> Summary | None:
        """What was measured in a step; without per-sample rows once these are removed."""
        self._require(run)
        with self._lock:
            state = self._book.find(run)
            if state is not None and step in state.steps:
                return state.steps[step].summary()
        data = self._store.blob(run, step, "rows") or self._store.blob(run, step, "summary")
        return None if data is None else unpack(data)

    def alerts(self, run: str) -> list[AlertView]:
        """Alerts, newest first."""
        self._require(run)
        return self._store.alerts(run, limit=ALERTS)

    def gate(self, run: str) -> GateView:
        """The verdict of the last closed step, and the alerts that fire meanwhile."""
        last = self.run(run).last
        if last is None:
            reasons: tuple[str, ...] = ("no step is closed yet",)
            return GateView(run, None, "unknown", reasons, MASK_LOW, MASK_HIGH)
        reasons = (*last.reasons, *self._firing(run, said=last.reasons))
        return GateView(run, last.step, last.verdict, reasons, MASK_LOW, MASK_HIGH)

    def _firing(self, run: str, *, said: Sequence[str]) -> list[str]:
        """What alerts of earlier steps still say, the mismatch first. Not that a level fell."""
        firing = [
            alert
            for alert in self._store.alerts(run, limit=ALERTS)
            if alert.standing == "firing" and alert.message not in said
        ]
        firing.sort(key=lambda alert: alert.series != "k3")
        return [f"alert {alert.kind} fires: {alert.message}" for alert in firing[:GATE_ALERTS]]

    def health(self) -> Health:
        """The service's own state."""
        samples, tokens = self._book.waiting()
        device = device_state(self._stages.engine)
        refused = self._room.refused() if self._ready else NOT_YET
        return Health(
            ready=refused is None,
            reason=refused.detail if refused else "",
            fix=(refused.fix or "") if refused else "",
            waiting_samples=samples,
            max_pending_samples=self._settings.max_pending_samples,
            waiting_tokens=tokens,
            max_pending_tokens=self._settings.max_pending_tokens,
            inbox_bytes=self._bodies.bytes,
            database_bytes=self._store.bytes(),
            runs=len(self._book),
            max_runs=self._settings.max_runs,
            open_steps=sum(len(state.steps) for state in self._book),
            evicted=dict(self._tallies.evicted),
            counts=dict(self._tallies.counts),
            stage_seconds=dict(self._meter.seconds),
            quarantined=self._bodies.quarantined(),
            errors=dict(self._meter.crashes),
            engine=self._stages.engine.name,
            device=device.kind if device else "",
            engine_fallbacks=dict(device.fallbacks) if device else {},
        )

    def _require(self, run: str) -> None:
        if self._store.run(run) is None:
            raise UnknownRun(run)

    def _run_view(self, run: str, first_seen: float, last_seen: float) -> RunView:
        state = self._book.find(run)
        last = self._last(run) if state is None else state.last
        return RunView(
            run=run,
            first_seen=first_seen,
            last_seen=last_seen,
            active=state is not None,
            open_steps=() if state is None else tuple(sorted(state.steps)),
            closed_steps=self._store.count_steps(run),
            waiting_samples=0 if state is None else state.join.waiting_samples,
            waiting_tokens=0 if state is None else state.join.waiting_tokens,
            tokens=self._store.count_tokens(run) if state is None else dict(state.tokens),
            last=None if last is None else with_scalars(last, self._store.scalars(run, last.step)),
        )

    def _last(self, run: str) -> StepView | None:
        found = self._store.last_steps(run, limit=1)
        return found[0] if found else None

    def _open_views(self, run: str) -> list[StepView]:
        state = self._book.find(run)
        if state is None:
            return []
        views = [self._open_view(run, step) for step in sorted(state.steps)]
        return [view for view in views if view is not None]

    def _open_view(self, run: str, step: int) -> StepView | None:
        """The view of a step in memory; also of one that is closed but could not be saved yet."""
        for unsaved in self._unsaved:
            if (unsaved.view.run, unsaved.view.step) == (run, step):
                return unsaved.view
        state = self._book.find(run)
        if state is None or step not in state.steps:
            return None
        return self._view_of(state, step)

    def _view_of(self, state: RunState, step: int) -> StepView:
        opened, tally = state.steps[step], state.join.steps.get(step) or StepTally()
        summary = opened.summary()
        metrics = self._stages.derive(summary)
        view = view_step(opened, tally, summary, metrics=metrics)
        return with_scalars(view, self._store.scalars(state.run, step))
