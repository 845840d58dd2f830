"""The join of one run: arriving samples meet their other sides.

A sample is known by its key: of its id, or of its content where samples have no ids (then equal
keys may be different samples: a group can sample the same response twice). The step comes from the
train side; rollout and ref samples may tell one as a hint, and then meet only that step.

`plan` decides and changes nothing; `admit` does what was planned. Between the two the caller checks
the limits and makes the batch durable. Plans must be admitted in order, one at a time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping

import numpy as np

from twinscope_service.errors import Conflict
from twinscope_service.join.arriving import Arriving, difference, same_values
from twinscope_service.join.memory import ABSENT, StepMemory, key_prefix, known_mark
from twinscope_service.join.records import (
    Closing,
    Difference,
    Entry,
    Load,
    Outcome,
    Pair,
    PairSide,
    Placement,
    Plan,
    Settled,
)
from twinscope_service.join.tally import StepTally

SLACK = 1000
KEPT = (Outcome.WAITING, Outcome.JOINED, Outcome.RETOKENIZED)


class Join:
    """All samples of one run whose steps are open. Not thread-safe; no clock, no I/O of its own."""

    def __init__(self, *, remember_steps: int, load: Load) -> None:
        self._remember_steps, self._load = remember_steps, load
        self._entries: dict[bytes, list[Entry]] = {}
        self._arrivals: deque[Entry] = deque()  # oldest first; entries that wait no more stay in it
        self._kept: dict[int, set[int]] = {}  # batch -> samples whose arrays are still needed
        self._memories: OrderedDict[int, StepMemory] = OrderedDict()
        self.steps: dict[int, StepTally] = {}  # open steps
        self.closed: set[int] = set()
        self.waiting_tokens = self.waiting_samples = 0

    # ---- deciding

    def plan(self, arriving: Arriving, *, skip: Mapping[int, Outcome] | None = None) -> Plan:
        """Where every sample of a batch belongs. `skip`: what was settled before a restart.

        Raises Conflict if a sample id came before with other values: nothing of the batch is kept.
        """
        claimed: set[int] = set()
        recalled = self._recalled(arriving)
        placements = []
        for index in range(len(arriving.keys)):
            if skip and index in skip:
                continue
            placement = self._place(arriving, index, claimed, recalled.get(index, []))
            if placement.entry is not None:
                claimed.add(id(placement.entry))
            placements.append(placement)
        return self._summed(arriving, placements)

    def _summed(self, arriving: Arriving, placements: list[Placement]) -> Plan:
        tokens = samples = 0
        for placed in placements:
            before = {} if placed.entry is None else placed.entry.parts
            if placed.outcome is Outcome.WAITING:
                new_sides = sum(side not in before for side in arriving.sides)
                tokens += arriving.lengths[placed.index] * new_sides
                samples += placed.entry is None
            elif placed.outcome in KEPT and placed.entry is not None:
                tokens -= sum(part.tokens for part in before.values())
                samples -= 1
        counts = Counter(placed.outcome for placed in placements)
        steps = {p.step for p in placements if p.step is not None and p.outcome in KEPT}
        return Plan(arriving.seq, tuple(placements), counts, tokens, samples, tuple(sorted(steps)))

    def _recalled(self, arriving: Arriving) -> dict[int, list[int]]:
        """Sample -> the closed steps that may have used it, for samples that tell no step.

        Content keys are left out: an equal response may well be sampled again.
        """
        if arriving.batch.step is not None or arriving.by_content:
            return {}
        prefixes = np.array([key_prefix(key) for key in arriving.keys], np.uint64)
        found: dict[int, list[int]] = {}
        for step, memory in self._memories.items():
            for index in memory.holds(prefixes):
                found.setdefault(index, []).append(step)
        return found

    def _place(
        self, arriving: Arriving, index: int, claimed: set[int], recalled: list[int]
    ) -> Placement:
        step = arriving.batch.step
        if step is not None and step in self.closed:
            if self._remembers(arriving, index, step):
                return Placement(index, Outcome.DUPLICATE, step=step)
            if not arriving.by_content and self._contradicts(arriving, index, step):
                raise _conflict(arriving.sample_id(index), step)
            return Placement(index, Outcome.LATE, step=step)
        live = [
            entry
            for entry in self._entries.get(arriving.keys[index], ())
            if id(entry) not in claimed and (step is None or entry.step in (None, step))
        ]
        live.sort(key=lambda entry: entry.step != step)  # an equal step first, then first come
        if not arriving.by_content:
            again = self._repeated(arriving, index, live, recalled)
            if again is not None:
                return again
        return self._attach(arriving, index, live, recalled)

    def _repeated(
        self, arriving: Arriving, index: int, live: list[Entry], recalled: list[int]
    ) -> Placement | None:
        """The placement of a sample id whose side is known already; None: this side is new."""
        sides = set(arriving.sides)
        having = [entry for entry in live if sides & entry.parts.keys()]
        for entry in having:
            if sides <= entry.parts.keys() and self._equal(arriving, index, entry):
                return Placement(index, Outcome.DUPLICATE, step=entry.step)
        used = [closed for closed in recalled if self._remembers(arriving, index, closed)]
        if used:
            return Placement(index, Outcome.DUPLICATE, step=used[-1])
        lacking = [e for e in live if sides - e.parts.keys() and self._equal(arriving, index, e)]
        if having and not lacking:
            raise _conflict(arriving.sample_id(index), having[0].step)
        return None

    def _attach(
        self, arriving: Arriving, index: int, live: list[Entry], recalled: list[int]
    ) -> Placement:
        """Meet a waiting entry, or become one."""
        sides, step = set(arriving.sides), arriving.batch.step
        waiting = [
            entry
            for entry in live
            if entry.outcome is Outcome.WAITING
            and not (arriving.by_content and sides & entry.parts.keys())
            and self._equal(arriving, index, entry)
        ]
        if waiting:
            meetings = (self._met(arriving, index, entry) for entry in waiting)
            first = next(meetings)  # of several, one with equal tokens is preferred
            return next((m for m in meetings if first.difference and not m.difference), first)
        if sides == {"ref"} and live:
            return Placement(index, Outcome.LATE, step=live[0].step)
        missed = [closed for closed in recalled if self._missed(arriving, index, closed)]
        if missed:
            return Placement(index, Outcome.LATE, step=missed[-1])
        if {"rollout", "train"} <= sides:
            return self._met(arriving, index, None)
        return Placement(index, Outcome.WAITING, step=step)

    def _met(self, arriving: Arriving, index: int, entry: Entry | None) -> Placement:
        """A sample together with the sides that came before it."""
        parts = {} if entry is None else entry.parts
        sides = {*arriving.sides, *parts}
        step = arriving.batch.step if entry is None or entry.step is None else entry.step
        if not {"rollout", "train"} <= sides or (
            "ref" not in sides and self._needs_ref(arriving, step)
        ):
            return Placement(index, Outcome.WAITING, entry, step=step)
        differs = self._difference(arriving, index, entry)
        outcome = Outcome.JOINED if differs is None else Outcome.RETOKENIZED
        return Placement(index, outcome, entry, differs, step)

    def _needs_ref(self, arriving: Arriving, step: int | None) -> bool:
        """A pair waits for its reference side only where the step's `expect` names that side."""
        told = [arriving.batch.expect or {}]
        if step in self.steps:
            told.append(self.steps[step].expect)
        return any(expect.get("ref", 0) > 0 for expect in told)

    # ---- comparing

    def _equal(self, arriving: Arriving, index: int, entry: Entry) -> bool:
        """The sides that both have hold the same values."""
        for side in arriving.sides:
            part = entry.parts.get(side)
            if part is None:
                continue
            if part.mark != arriving.marks[side][index]:
                return False
            other = self._load(part.batch)
            if not same_values(arriving.batch, index, other, part.index, side=side):
                return False
        return True

    def _difference(self, arriving: Arriving, index: int, entry: Entry | None) -> Difference | None:
        """How the tokens of both sides differ, None if they do not."""
        if entry is None or arriving.by_content:
            return None
        where = {side: (self._load(p.batch), p.index) for side, p in entry.parts.items()}
        for side in arriving.sides:
            where.setdefault(side, (arriving.batch, index))
        (rollout, i), (train, j) = where["rollout"], where["train"]
        return difference(rollout, i, train, j, sample_id=entry.sample_id)

    def _remembers(self, arriving: Arriving, index: int, step: int) -> bool:
        """A closed step used this very sample."""
        memory = self._memories.get(step)
        if memory is None or arriving.sides == ("ref",):
            return False
        mine = {side: known_mark(arriving.marks[side][index]) for side in arriving.sides}
        return any(
            mine.get("rollout", rollout) == rollout and mine.get("train", train) == train
            for rollout, train in memory.find(arriving.keys[index])
        )

    def _contradicts(self, arriving: Arriving, index: int, step: int) -> bool:
        """A closed step used a sample of this id whose value on one of these sides was another."""
        memory = self._memories.get(step)
        if memory is None:
            return False
        found = memory.find(arriving.keys[index])
        sides = [side for side in ("rollout", "train") if side in arriving.sides]
        column = {"rollout": 0, "train": 1}
        return any(
            marks[column[side]] not in (ABSENT, known_mark(arriving.marks[side][index]))
            for marks in found
            for side in sides
        )

    def _missed(self, arriving: Arriving, index: int, step: int) -> bool:
        """A step closed while the sample's train side waited for just this one."""
        if arriving.sides != ("rollout",):
            return False
        found = self._memories[step].find(arriving.keys[index])
        return any(rollout == ABSENT and train != ABSENT for rollout, train in found)

    # ---- doing

    def admit(self, arriving: Arriving, plan: Plan, *, now: float) -> list[Pair]:
        """Take the batch in as planned; the pairs that it completed, in order of arrival."""
        self.waiting_tokens += plan.waiting_tokens
        self.waiting_samples += plan.waiting_samples
        step = arriving.batch.step
        if step is not None and step not in self.closed and arriving.keys:
            self.steps.setdefault(step, StepTally()).expects(arriving.batch.expect)
        pairs = [self._admit_one(arriving, placed, now) for placed in plan.placements]
        kept = {placed.index for placed in plan.placements if placed.outcome in KEPT}
        if kept:
            self._kept[arriving.seq] = kept
        self._drop_arrived()
        return [pair for pair in pairs if pair is not None]

    def _drop_arrived(self) -> None:
        """Keep the list of arrivals in proportion to what waits."""
        if len(self._arrivals) > 2 * self.waiting_samples + SLACK:
            self._arrivals = deque(e for e in self._arrivals if e.outcome is Outcome.WAITING)

    def _admit_one(self, arriving: Arriving, placed: Placement, now: float) -> Pair | None:
        tally = None if placed.step is None else self.steps.get(placed.step)
        if placed.step is not None and tally is None and placed.outcome in KEPT:
            tally = self.steps.setdefault(placed.step, StepTally())
        if tally is not None and placed.outcome is not Outcome.WAITING:
            tally.outcomes[placed.outcome] += 1
            tally.note_difference(placed.difference)
        if placed.outcome not in KEPT:
            return None
        entry = placed.entry or self._new_entry(arriving, placed, now)
        self._extend(entry, arriving, placed, tally)
        return _pair(entry) if placed.outcome is Outcome.JOINED else None

    def _new_entry(self, arriving: Arriving, placed: Placement, now: float) -> Entry:
        key = arriving.keys[placed.index]
        entry = Entry(key, arriving.sample_id(placed.index), now)
        self._entries.setdefault(key, []).append(entry)
        if placed.outcome is Outcome.WAITING:
            self._arrivals.append(entry)
        return entry

    def _extend(
        self, entry: Entry, arriving: Arriving, placed: Placement, tally: StepTally | None
    ) -> None:
        """Add the new sides to an entry, and the entry to its step once that is known."""
        new: list[PairSide] = [side for side in arriving.sides if side not in entry.parts]
        for side in new:
            entry.parts[side] = arriving.part(side, placed.index)
        if tally is not None:
            if entry.step is None:
                entry.step = placed.step
                tally.take_in(entry, list(entry.parts))
            else:
                tally.received.update(new)
        entry.outcome = placed.outcome

    # ---- leaving

    def without_step(self) -> Counter[PairSide]:
        """Samples per side that wait and that no side has given a step yet."""
        waiting = (e for e in self._arrivals if e.outcome is Outcome.WAITING and e.step is None)
        return Counter(side for entry in waiting for side in entry.parts)

    def close(self, step: int) -> Closing:
        """No more data for a step: its samples leave, and are remembered in 24 bytes each."""
        tally = self.steps.pop(step, None) or StepTally()
        pairs, evicted = [], Counter[PairSide]()
        for entry in tally.waiting_entries:
            self._stop_waiting(entry)
            if {"rollout", "train"} <= entry.parts.keys():  # it waited for the reference side only
                entry.outcome = Outcome.JOINED
                tally.outcomes[Outcome.JOINED] += 1
                pairs.append(_pair(entry))
            else:
                entry.outcome = Outcome.EVICTED
                evicted.update(list(entry.parts))
        memory = StepMemory.of(tally.entries)
        self.recall(step, memory)
        return Closing(self._settle(tally.entries), tuple(pairs), memory.encode(), evicted)

    def recall(self, step: int, memory: StepMemory | None) -> None:
        """Know a step as closed, and its samples if they are remembered."""
        self.closed.add(step)
        if memory is not None:
            self._memories[step] = memory
        while len(self._memories) > self._remember_steps:
            self._memories.popitem(last=False)

    def reopen(self, step: int) -> None:
        """The trainer went back: this step and all later ones may come again, with new data."""
        for number in [number for number in self.closed if number >= step]:
            self.closed.discard(number)
            self._memories.pop(number, None)

    def recount(self, step: int | None, settled: Iterable[Outcome]) -> None:
        """Count again, after a restart, what was repeated or late in a step that is still open."""
        if step in self.steps:
            repeated = (o for o in settled if o in (Outcome.DUPLICATE, Outcome.LATE))
            self.steps[step].outcomes.update(repeated)

    def evict(self, *, before: float, over_tokens: int = 0) -> tuple[list[Settled], set[int], int]:
        """Give up samples that came before a time, or the oldest until `over_tokens` are freed.

        Returns what is settled, the steps that only waiting rollout or ref samples ever named (the
        caller closes them), and how many samples were given up.
        """
        gone: list[Entry] = []
        stale: set[int] = set()
        freed = 0
        while self._arrivals and (self._arrivals[0].at < before or freed < over_tokens):
            entry = self._arrivals.popleft()
            if entry.outcome is not Outcome.WAITING:
                continue
            if entry.step is not None:  # leaves with its step
                if entry.step in self.steps and not self.steps[entry.step].has_train:
                    stale.add(entry.step)
                continue
            self._stop_waiting(entry)
            entry.outcome = Outcome.EVICTED
            freed += sum(part.tokens for part in entry.parts.values())
            gone.append(entry)
        return list(self._settle(gone)), stale, len(gone)

    def _stop_waiting(self, entry: Entry) -> None:
        self.waiting_samples -= 1
        self.waiting_tokens -= sum(part.tokens for part in entry.parts.values())

    def _settle(self, entries: Iterable[Entry]) -> tuple[Settled, ...]:
        """Forget entries; what that means for the batches that hold their arrays."""
        by_batch: dict[int, dict[int, Outcome]] = {}
        for entry in entries:
            same_key = self._entries[entry.key]
            same_key.remove(entry)
            if not same_key:
                del self._entries[entry.key]
            for part in entry.parts.values():
                by_batch.setdefault(part.batch, {})[part.index] = entry.outcome
        return tuple(self._settle_batch(seq, samples) for seq, samples in by_batch.items())

    def _settle_batch(self, seq: int, samples: dict[int, Outcome]) -> Settled:
        kept = self._kept[seq]
        kept.difference_update(samples)
        if not kept:
            del self._kept[seq]
        return Settled(seq, tuple(sorted(samples.items())), finished=not kept)


def _pair(entry: Entry) -> Pair:
    parts, step = entry.parts, entry.step
    assert step is not None  # the train side tells it
    return Pair(
        entry.key, entry.sample_id, step, parts["rollout"], parts["train"], parts.get("ref")
    )


def _conflict(sample_id: str, step: int | None) -> Conflict:
    where = "" if step is None else f" of step {step}"
    return Conflict(
        f"sample {sample_id!r}{where} came before with other values",
        field="sample_ids",
        value=sample_id,
        fix="send each side of a sample once, or give the new sample its own id; a trainer that "
        "goes back to a checkpoint sends an event `restart` with the step first",
    )
