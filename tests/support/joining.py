"""A join with its batches in a dictionary, as the pipeline holds them on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from twinscope.wire.batch import Batch
from twinscope_service.join.arriving import prepare
from twinscope_service.join.gather import gather
from twinscope_service.join.join import Join
from twinscope_service.join.records import Outcome, Pair, Plan
from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.merge import merge_all
from twinscope_service.measure.records import MeasureOptions, Summary


class Desk:
    """Sends batches to a join, one by one, and keeps the pairs that come out."""

    def __init__(self, *, remember_steps: int = 8) -> None:
        self.batches: dict[int, Batch] = {}
        self.join = Join(remember_steps=remember_steps, load=self.batches.__getitem__)
        self.pairs: list[Pair] = []
        self.now = 0.0

    def send(self, batch: Batch, *, skip: Mapping[int, Outcome] | None = None) -> Plan:
        """Plan and admit one batch."""
        seq = len(self.batches) + 1
        self.batches[seq] = batch
        arriving = prepare(batch, seq=seq)
        plan = self.join.plan(arriving, skip=skip)
        self.pairs += self.join.admit(arriving, plan, now=self.now)
        return plan

    def names(self) -> set[str]:
        """The ids of all pairs so far."""
        return {pair.sample_id for pair in self.pairs}

    def measured(self, *, block_tokens: int = 100_000) -> Summary:
        """Everything that was paired, measured by the reference engine."""
        return measure(gather(self.pairs, self.batches.__getitem__, block_tokens=block_tokens))


def measure(blocks: Iterable[object]) -> Summary:
    """The merged Summary of blocks, by the float64 reference."""
    engine = build_engine("reference")
    return merge_all([engine.measure(block, MeasureOptions()) for block in blocks])  # type: ignore[arg-type]


def outcomes(plan: Plan) -> list[Outcome]:
    """What became of each sample, in order."""
    return [placed.outcome for placed in plan.placements]


def without_step(batch: Batch) -> Batch:
    """The batch of an engine that does not know its step."""
    return replace(batch, step=None)
