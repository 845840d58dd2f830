"""What is known about a step besides its pairs: headers, join counts, events and the run's history.

Everything is optional: None or empty means unknown, never "fine". Diagnosis must name the
identifiable causes without any of it; what is here raises or lowers confidence, and splits causes
that the pair cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from twinscope_service.measure.records import Summary

if TYPE_CHECKING:
    from twinscope.wire.batch import Batch


@dataclass(frozen=True)
class JoinCounts:
    """What the join saw for this step, in samples. 0 means none seen."""

    rollout_samples: int = 0
    train_samples: int = 0
    ref_samples: int = 0
    joined: int = 0
    waiting_rollout: int = 0  # rollout samples whose train side has not come
    waiting_train: int = 0
    retokenized: int = 0  # equal key, different token ids
    first_difference: int | None = None  # smallest token index at which ids differ
    length_mismatch: int = 0  # of `retokenized`: equal ids up to the shorter side's end
    evicted: Mapping[str, int] = field(default_factory=dict)  # reason -> samples
    late: int = 0


@dataclass(frozen=True)
class Event:
    """Something that happened in the run: weight_sync, cache_flush, restart, config_change ..."""

    step: int | None
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """Headers, join counts and events of one step.

    `sampling`, `rollout`, `train`, `expect` are the header objects (wire/schema.py); keys whose
    values differ between batches of the step are in `conflicts` with every value that was seen.
    """

    run: str = ""
    step: int | None = None
    sampling: Mapping[str, Any] | None = None
    rollout: Mapping[str, Any] | None = None
    train: Mapping[str, Any] | None = None
    expect: Mapping[str, int] | None = None
    join: JoinCounts = field(default_factory=JoinCounts)
    events: tuple[Event, ...] = ()
    conflicts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Batch],
        *,
        join: JoinCounts | None = None,
        events: tuple[Event, ...] = (),
    ) -> Context:
        """Merge the headers of a step's batches; `join` defaults to counts by side."""
        merged = cls(events=events)
        for batch in batches:
            merged = merged.with_batch(batch)
        return merged if join is None else replace(merged, join=join)

    def with_batch(self, batch: Batch) -> Context:
        """This context plus one batch's header and sample counts; the first value wins a clash."""
        sampling, clashes = _merged("sampling", self.sampling, batch.sampling)
        rollout, more = _merged("rollout", self.rollout, batch.rollout)
        train, most = _merged("train", self.train, batch.train)
        return replace(
            self,
            run=self.run or batch.run,
            step=self.step if self.step is not None else batch.step,
            expect=self.expect or batch.expect,
            join=_counted(self.join, batch),
            sampling=sampling,
            rollout=rollout,
            train=train,
            conflicts={**self.conflicts, **clashes, **more, **most},
        )


def _merged(
    name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any] | None, dict[str, tuple[Any, ...]]]:
    """First value wins; clashes are returned as {"name.key": (old, new)}."""
    if old is None or new is None:
        return (new if old is None else old), {}
    clashes = {f"{name}.{k}": (old[k], new[k]) for k in old.keys() & new.keys() if old[k] != new[k]}
    return {**new, **old}, clashes


def _counted(join: JoinCounts, batch: Batch) -> JoinCounts:
    """Sample counts of one batch added, by side. A paired batch counts as joined on both sides."""
    tensors, samples = batch.tensors, batch.samples
    rollout = samples if "rollout_logprobs" in tensors else 0
    train = samples if "train_logprobs" in tensors else 0
    return replace(
        join,
        rollout_samples=join.rollout_samples + rollout,
        train_samples=join.train_samples + train,
        ref_samples=join.ref_samples + (samples if "ref_logprobs" in tensors else 0),
        joined=join.joined + (samples if rollout and train else 0),
    )


@dataclass(frozen=True)
class StepPoint:
    """One earlier closed step, reduced to what trends need. None: not known."""

    step: int
    k3: float | None
    tokens: int
    verdict: str = "unknown"
    rollout_version: int | None = None
    train_version: int | None = None


@dataclass(frozen=True)
class History:
    """The run before this step, oldest point first.

    `baseline` is one healthy summary from before the onset (the "before" of every statistic);
    `onset_step` is where a detector put the start of the present trouble.
    """

    points: tuple[StepPoint, ...] = ()
    baseline: Summary | None = None
    onset_step: int | None = None
