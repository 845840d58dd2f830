"""The data path in one place: receive -> join -> measure -> detect -> diagnose -> expose, alert."""

from __future__ import annotations

from twinscope.wire.batch import Batch
from twinscope_service.clock import Clock, SystemClock
from twinscope_service.closing import By, Left, closed_step, conclude
from twinscope_service.config import Settings
from twinscope_service.intake import batch_record, find_repeat, receipt_of, summary_record
from twinscope_service.join.arriving import Arriving, prepare
from twinscope_service.join.records import Plan
from twinscope_service.join.tally import StepTally
from twinscope_service.measure.records import Summary
from twinscope_service.opening import DataDir
from twinscope_service.runstate import RunState
from twinscope_service.stages import Stages, build_stages
from twinscope_service.store.base import NewBatch
from twinscope_service.store.bodies import KeptBody
from twinscope_service.store.inbox import body_digest
from twinscope_service.store.summaries import pack
from twinscope_service.upkeep import Upkeep
from twinscope_service.views import Receipt, StepView


class Pipeline(Upkeep):
    """The service without its edges. Thread-safe: one lock, held from join to close."""

    # ---- receive

    def ingest(self, body: memoryview | bytes, batch: Batch, *, batch_id: str | None) -> Receipt:
        """Keep, join and measure one batch. `body`: its exact bytes; `batch`: views of them.

        Raises Conflict, Overloaded or StoreError, and then nothing of it is kept; WireError if its
        samples have nothing to be joined by.
        """
        digest = body_digest(body)
        name = batch_id or digest.hex()
        again = find_repeat(self._store, batch.run, name, digest=digest)
        if again is None:
            with self._keeping(body, digest) as kept:
                again = find_repeat(self._store, batch.run, name, digest=digest)  # meanwhile
                if again is None:
                    return self._accept(batch, kept, name)
        return self._tallies.note(again)

    def ingest_summary(
        self, run: str, step: int, summary: Summary, *, batch_id: str | None
    ) -> Receipt:
        """Merge a summary that a rank reduced. Raises Conflict, Overloaded or StoreError."""
        body = pack(summary)
        digest = body_digest(body)
        name = batch_id or digest.hex()
        with self._keeping(body, digest) as kept:
            again = find_repeat(self._store, run, name, digest=digest)
            if again is not None:
                return self._tallies.note(again)
            state = self._book.wake(run)
            late = step in state.join.closed
            record = summary_record(
                summary, run=run, step=step, batch_id=name, kept=kept,
                seq=self._store.next_seq(), at=self._clock.time(), late=late,
            )  # fmt: skip
            self._keep(record, kept)
            if not late:
                self._add_summary(state, step, record.seq, summary)
            return self._tallies.note(record.receipt)

    # ---- join

    def _accept(self, batch: Batch, kept: KeptBody, name: str) -> Receipt:
        """Plan, check the limits, make it durable; only then let it change anything."""
        state = self._book.wake(batch.run)
        with self._meter.time("join"):
            arriving = prepare(batch, seq=self._store.next_seq())
            plan = state.plan(arriving)
            self._book.check_room(plan)
        receipt = receipt_of(arriving, plan, batch_id=name)
        self._keep(batch_record(plan, receipt, kept=kept, at=self._clock.time()), kept, batch)
        try:
            self._admit(state, arriving, plan)
        finally:
            self._bodies.release(plan.seq)  # the request's memory is not ours to hold
        return self._tallies.note(receipt)

    def _keep(self, record: NewBatch, kept: KeptBody, batch: Batch | None = None) -> None:
        with self._meter.time("store"), kept.claimed(by_store=not record.done):
            self._store.add_batch(record)
        if not record.done:
            self._bodies.adopt(record.seq, kept, batch)

    def _admit(self, state: RunState, arriving: Arriving, plan: Plan) -> None:
        """Join what arrived, measure the pairs at once, close what is complete."""
        now = self._clock.monotonic()
        with self._meter.time("join"):
            pairs = state.join.admit(arriving, plan, now=now)
        for step in state.join.steps.keys() - state.steps.keys():
            state.open(step, now=self._clock.time())
        state.measure(pairs, self._bodies.load, stages=self._stages, meter=self._meter)
        for step in plan.steps:
            if state.join.steps[step].has_train:
                state.steps[step].touched = now
            if state.join.steps[step].complete:
                self._close(state, step, by="complete")

    # ---- detect, diagnose, alert

    def close_step(self, run: str, step: int) -> StepView:
        """No more data for a step. Idempotent. Raises UnknownRun, UnknownStep."""
        self._require(run)
        with self._lock:
            state = self._book.find(run)
            if state is not None and step in state.steps:
                self._close(state, step, by="call")
            return self.step(run, step)

    def _close(self, state: RunState, step: int, *, by: By) -> None:
        """The step is over: judge it, look for changes and causes, keep all of it at once."""
        opened, tally = state.steps[step], state.join.steps.get(step) or StepTally()
        leaving = state.join.close(step)
        state.measure(leaving.pairs, self._bodies.load, stages=self._stages, meter=self._meter)
        with self._meter.time("close"):
            left = Left(tally, leaving, self._clock.time(), by)
            view, findings = conclude(
                state, opened, left, stages=self._stages, meter=self._meter, store=self._store
            )
            closed = closed_step(view, findings, opened, leaving, meter=self._meter)
            del state.steps[step]
            state.remember(closed, opened.summary(), least=self._stages.bands.min_tokens)
            self._tallies.evicted["step_closed"] += sum(leaving.evicted.values())
            self._unsaved.append(closed)  # its alerts are written with it, and sent from there
            self._save_closed()

    def _save_closed(self) -> None:
        """Write closed steps. While the disk refuses, they stay in memory and their batches on
        disk; `tick` tries again."""
        with self._meter.survive("save", crashed=lambda _: None):
            while self._unsaved:
                self._bodies.forget(self._store.close_step(self._unsaved[0]))
                self._unsaved.pop(0)


def open_pipeline(
    settings: Settings, *, clock: Clock | None = None, stages: Stages | None = None
) -> Pipeline:
    """Open `settings.data_dir` and take in again what was accepted before; ready in a moment."""
    stages = stages or build_stages(settings)
    pipeline = Pipeline(settings, DataDir(settings), stages=stages, clock=clock or SystemClock())
    pipeline.start()
    return pipeline
