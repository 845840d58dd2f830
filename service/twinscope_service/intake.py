"""What is written about a batch when it comes in: its receipt, and its row in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from twinscope_service.errors import Conflict
from twinscope_service.join.arriving import Arriving
from twinscope_service.join.join import KEPT
from twinscope_service.join.records import Outcome, Plan
from twinscope_service.measure.records import COVERAGE, Summary
from twinscope_service.store.base import NewBatch, Store
from twinscope_service.store.bodies import KeptBody
from twinscope_service.views import Receipt


def find_repeat(store: Store, run: str, batch_id: str, *, digest: bytes) -> Receipt | None:
    """The receipt of the first time, None for a new batch. Raises Conflict if the body differs."""
    known = store.find_batch(run, batch_id)
    if known is None:
        return None
    if known.digest != digest:
        raise Conflict(
            f"batch {batch_id!r} was accepted before with another body",
            field="batch_id",
            value=batch_id,
            fix="give every batch its own id, and send it again unchanged",
        )
    return replace(known.receipt, duplicate=True)


def receipt_of(arriving: Arriving, plan: Plan, *, batch_id: str) -> Receipt:
    """The answer for a planned batch."""
    batch = arriving.batch
    return Receipt(
        batch_id=batch_id,
        run=batch.run,
        step=batch.step,
        side=batch.side,
        samples=batch.samples,
        tokens=batch.tokens,
        joined=plan.counts.get(Outcome.JOINED, 0),
        waiting=plan.counts.get(Outcome.WAITING, 0),
        duplicates=plan.counts.get(Outcome.DUPLICATE, 0),
        retokenized=plan.counts.get(Outcome.RETOKENIZED, 0),
        late=plan.counts.get(Outcome.LATE, 0),
        steps=plan.steps,
    )


def batch_record(plan: Plan, receipt: Receipt, *, kept: KeptBody, at: float) -> NewBatch:
    """What the store keeps of a planned batch. `at`: seconds since the epoch."""
    settled = {p.index: int(p.outcome) for p in plan.placements if p.outcome not in KEPT}
    done = len(settled) == receipt.samples
    return NewBatch(
        seq=plan.seq,
        run=receipt.run,
        batch_id=receipt.batch_id,
        digest=kept.digest,
        kind="batch",
        step=receipt.step,
        file="" if done else kept.file,
        bytes=kept.bytes,
        received_at=at,
        receipt=receipt,
        settled={} if done else settled,
        done=done,
        after_close=_after_close(plan),
    )


def summary_record(
    summary: Summary,
    *,
    run: str,
    step: int,
    batch_id: str,
    kept: KeptBody,
    seq: int,
    at: float,
    late: bool,
) -> NewBatch:
    """What the store keeps of a posted summary. `late`: its step is closed, it is not used."""
    receipt = Receipt(
        batch_id=batch_id,
        run=run,
        step=step,
        side="paired",
        samples=summary.samples,
        tokens=int(summary.coverage[COVERAGE.index("received")]),
        joined=0 if late else summary.samples,
        late=summary.samples if late else 0,
        steps=() if late else (step,),
    )
    return NewBatch(
        seq=seq,
        run=run,
        batch_id=batch_id,
        digest=kept.digest,
        kind="summary",
        step=step,
        file="" if late else kept.file,
        bytes=kept.bytes,
        received_at=at,
        receipt=receipt,
        settled={},
        done=late,
        after_close={step: (summary.samples, 0)} if late else {},
    )


def _after_close(plan: Plan) -> Mapping[int, tuple[int, int]]:
    """Per step: late and duplicate samples; the store adds them to those steps that are closed."""
    late: Counter[int] = Counter()
    duplicates: Counter[int] = Counter()
    for placed in plan.placements:
        if placed.step is not None and placed.outcome in (Outcome.LATE, Outcome.DUPLICATE):
            (late if placed.outcome is Outcome.LATE else duplicates)[placed.step] += 1
    return {step: (late[step], duplicates[step]) for step in {*late, *duplicates}}
