"""What happens without a request: replay after a restart, grace periods, evictions, retention."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from twinscope.errors import WireError
from twinscope_service.closing import By
from twinscope_service.config import Settings
from twinscope_service.detect.watch import mark_finished, mark_restarted
from twinscope_service.errors import ServiceError
from twinscope_service.join.arriving import Arriving, prepare
from twinscope_service.join.records import Outcome, Plan
from twinscope_service.measure.engine import warm_up
from twinscope_service.measure.records import Summary
from twinscope_service.processes import BEAT, KINDS
from twinscope_service.reads import Reads
from twinscope_service.runstate import RunState
from twinscope_service.store.base import RESTART, Retention, StoredBatch
from twinscope_service.store.bodies import KeptBody
from twinscope_service.store.summaries import unpack

RETENTION_EVERY_S = 60.0
CATCH_UP_S = 120.0  # after a start; a probe tries again every 30 s at most
FINISHED = "finished"  # the event after which quiet is no silence

log = logging.getLogger(__name__)


class Upkeep(Reads):
    """The pipeline's housekeeping. Thread-safe."""

    _retained_at = 0.0
    _started_at = 0.0  # seconds since the epoch

    def tick(self) -> None:
        """Close steps whose grace period is over, give up what waited too long, remove the old."""
        with self._lock, self._meter.time("tick"):
            now = self._clock.monotonic()
            for state in self._book:
                self._close_idle(state, now)
                self._evict(state, before=now - self._settings.pending_ttl_s)
            self._watch_silence()
            self._book.let_go()
            self._save_closed()
            if now - self._retained_at >= RETENTION_EVERY_S:
                self._retained_at = now
                self._store.retain(retention_of(self._settings), now=self._clock.time())

    def _close_idle(self, state: RunState, now: float) -> None:
        """Steps whose trainer has been silent for the grace period."""
        since = now - self._settings.step_grace_s
        for opened in list(state.steps.values()):
            if opened.touched is not None and opened.touched <= since:
                self._close(state, opened.step, by="grace")

    def _watch_silence(self) -> None:
        """Runs that have closed no step for too long.

        What the service was away for is no silence of theirs: their probes hold it, and get a
        while to send it.
        """
        now = self._clock.time()
        for state in self._book:
            heard = (state.last and state.last.closed_at) or 0.0
            if heard < self._started_at and now < self._started_at + CATCH_UP_S:
                continue
            with self._meter.survive("detect", crashed=lambda _: None):
                detector, alerts = self._stages.overdue(state.detector, now, late=state.late)
                if alerts and detector is not None:
                    self._store.add_alerts(state.run, alerts, state=detector, at=now)
                    state.detector = detector

    def scalars(self, run: str, step: int, values: Mapping[str, float]) -> None:
        """Keep scalars of a step; the last value of a name wins. They may come after its close."""
        with self._lock:
            self._book.wake(run)
            self._store.add_scalars(run, step, values, at=self._clock.time())

    def event(self, run: str, *, step: int | None, kind: str, fields: Mapping[str, Any]) -> None:
        """Keep an event: evidence for later diagnoses. `restart` opens its step and later ones
        again: the trainer went back to a checkpoint. `finished`: no more steps are expected. A
        probe's sign of life is not kept: it only says when its process was heard from."""
        with self._lock:
            if kind in KINDS:
                self._processes.hear(run, kind, fields, at=self._clock.time())
            if kind == BEAT:
                return
            state = self._book.wake(run)
            self._store.add_event(run, step=step, kind=kind, fields=fields, at=self._clock.time())
            if kind == RESTART and step is not None:
                state.join.reopen(step)
                state.late = []
            if state.detector is None:
                return
            if kind == RESTART and step is not None:
                state.detector = mark_restarted(state.detector, step)
            elif kind == FINISHED:
                state.detector = mark_finished(state.detector)
                at = self._clock.time()
                self._store.add_alerts(run, (), state=state.detector, at=at)

    def start(self) -> None:
        """Take in again what was accepted before; get ready meanwhile."""
        self._started_at = self._clock.time()
        self.replay()
        threading.Thread(target=self.warm_up, name="twinscope-warm-up", daemon=True).start()

    @contextmanager
    def _keeping(self, body: memoryview | bytes, digest: bytes) -> Iterator[KeptBody]:
        """The body on disk and the lock held; without room for it, readiness ends."""
        kept = self._bodies.keep(body, digest=digest)
        with self._room.keeping(len(body)), kept as file, self._lock:
            yield file

    def replay(self) -> None:
        """Take in again what was accepted before a restart and belongs to no closed step."""
        with self._lock, self._meter.time("replay"):
            for stored in self._store.open_batches():
                try:
                    self._replay_one(stored)
                except (ServiceError, WireError, OSError) as error:
                    log.error(
                        "accepted body put aside: %s", error,
                        extra={"run": stored.run, "batch_id": stored.batch_id, "file": stored.file},
                    )  # fmt: skip
                    self._bodies.put_aside(stored.seq)
                    self._store.abandon(stored.seq)
            self._wake_recent()
            self._make_room()

    def warm_up(self) -> None:
        """Be ready when the engine is: a batch that comes earlier waits for it."""
        log.info("getting ready; the first start of an installation compiles for half a minute")
        with self._meter.survive("warm_up", crashed=lambda _: None):
            warm_up(self._stages.engine)
            self._ready = True
            log.info("ready")

    def close(self) -> None:
        """Release the data directory. What waits is taken in again at the next start."""
        with self._lock:
            self._ready = False
            self._data.release()

    def _replay_one(self, stored: StoredBatch) -> None:
        kept = KeptBody(stored.digest, stored.file, stored.bytes)
        self._bodies.adopt(stored.seq, kept, None)
        state = self._book.wake(stored.run)
        if stored.kind == "summary":
            assert stored.step is not None  # written with every summary
            summary = unpack(self._bodies.raw(stored.seq))
            self._add_summary(state, stored.step, stored.seq, summary)
            return
        arriving = prepare(self._bodies.load(stored.seq), seq=stored.seq)
        skip = {index: Outcome(outcome) for index, outcome in stored.settled.items()}
        plan = state.join.plan(arriving, skip=skip)
        state.join.recount(arriving.batch.step, skip.values())
        self._admit(state, arriving, plan)

    def _wake_recent(self) -> None:
        """Runs that were active when the service stopped are shown again at once."""
        since = self._clock.time() - self._settings.run_retention_s
        for run, (_, last_seen) in self._store.runs().items():
            if last_seen >= since and len(self._book) < self._settings.max_runs:
                self._book.wake(run)

    def _make_room(self) -> None:
        """The limit may be lower than before the restart: the oldest samples go."""
        _, waiting = self._book.waiting()
        for state in self._book:
            over = waiting - self._settings.max_pending_tokens
            if over > 0:
                before = state.join.waiting_tokens
                self._evict(state, over_tokens=over)
                waiting -= before - state.join.waiting_tokens

    def _evict(self, state: RunState, *, before: float = 0.0, over_tokens: int = 0) -> None:
        settled, stale, samples = state.join.evict(before=before, over_tokens=over_tokens)
        if samples:
            self._tallies.evicted["capacity" if over_tokens else "ttl"] += samples
            with self._meter.survive("save", crashed=lambda _: None):
                self._bodies.forget(self._store.settle(settled))
        for step in stale:
            self._close(state, step, by="ttl")

    @abstractmethod
    def _admit(self, state: RunState, arriving: Arriving, plan: Plan) -> None: ...

    def _add_summary(self, state: RunState, step: int, seq: int, summary: Summary) -> None:
        opened = state.open(step, now=self._clock.time())
        opened.add(summary)
        opened.summaries.append(seq)
        opened.touched = self._clock.monotonic()

    @abstractmethod
    def _close(self, state: RunState, step: int, *, by: By) -> None: ...

    @abstractmethod
    def _save_closed(self) -> None: ...


def retention_of(settings: Settings) -> Retention:
    """How long what is kept."""
    return Retention(
        age_s=settings.retention_age_s,
        size_bytes=settings.retention_bytes,
        rows_steps=settings.rows_retention_steps,
        evidence_steps=settings.evidence_retention_steps,
        memory_steps=settings.remember_steps,
        resend_s=settings.resend_memory_s,
    )
