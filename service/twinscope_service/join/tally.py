"""Counts of one open step, kept while its samples arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from twinscope_service.join.records import Difference, Entry, Outcome, PairSide

EXAMPLES = 16


@dataclass
class StepTally:
    """What has come for one step, in samples."""

    expect: dict[str, int] = field(default_factory=dict)  # side -> samples, as told by batches
    received: Counter[PairSide] = field(default_factory=Counter)
    outcomes: Counter[Outcome] = field(default_factory=Counter)  # duplicates and late: of all sides
    entries: list[Entry] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)  # the first EXAMPLES

    @property
    def has_train(self) -> bool:
        """The trainer has spoken: from then on the grace period runs."""
        return self.received["train"] > 0

    @property
    def waiting_entries(self) -> list[Entry]:
        """The entries that lack a side."""
        return [entry for entry in self.entries if entry.outcome is Outcome.WAITING]

    def waiting(self) -> Counter[PairSide]:
        """Samples per side that wait for another side."""
        return Counter(side for entry in self.waiting_entries for side in entry.parts)

    @property
    def complete(self) -> bool:
        """Every expected sample has come and none waits."""
        if not self.expect or not self.has_train:
            return False
        if self.short():
            return False
        return not self.waiting_entries

    def short(self) -> dict[str, tuple[int, int]]:
        """Sides of which fewer samples came than expected: how many came, and of how many."""
        came = {str(side): count for side, count in self.received.items()}
        told = {side: (came.get(side, 0), count) for side, count in self.expect.items()}
        return {side: counts for side, counts in told.items() if counts[0] < counts[1]}

    def expects(self, more: Mapping[str, int] | None) -> None:
        """Batches may tell different numbers: the largest holds."""
        for side, count in (more or {}).items():
            self.expect[side] = max(count, self.expect.get(side, 0))

    def note_difference(self, difference: Difference | None) -> None:
        """Keep the first few as examples."""
        if difference is not None and len(self.differences) < EXAMPLES:
            self.differences.append(difference)

    def take_in(self, entry: Entry, sides: Iterable[PairSide]) -> None:
        """An entry belongs to this step from now on, with these sides."""
        self.entries.append(entry)
        self.received.update(sides)
