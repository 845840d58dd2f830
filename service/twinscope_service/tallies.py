"""Counts since start-up, for the service's own health."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from twinscope_service.views import Receipt


@dataclass
class Tallies:
    """Samples, unless the name says batches or tokens."""

    counts: Counter[str] = field(default_factory=Counter)
    evicted: Counter[str] = field(default_factory=Counter)  # reason -> samples

    def note(self, receipt: Receipt) -> Receipt:
        """Count a batch that is being answered; its receipt, for the answer."""
        if receipt.duplicate:
            self.counts["repeated_batches"] += 1
            return receipt
        self.counts.update(
            batches=1,
            samples=receipt.samples,
            tokens=receipt.tokens,
            joined=receipt.joined,
            duplicates=receipt.duplicates,
            retokenized=receipt.retokenized,
            late=receipt.late,
        )
        return receipt
