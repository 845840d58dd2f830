"""The books: what was captured is shipped, dropped for a reason, pending or spooled. Always.

    captured = shipped + pending + spooled + sum(dropped.values())

in batches, in tokens and in messages, at every instant. It holds by construction: a Ledger knows
three operations, `capture` (something new, into `pending` or straight to a loss), `move` (from
one column to another) and `restate` (what is pending turned out to be that much). The buffer's
lock guards it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

# Reasons for which something is dropped; a closed list, because they become metric labels.
DROP_REASONS: dict[str, str] = {
    "buffer_full": "the oldest had to go: the service is away or slower than the run",
    "too_large": "larger than the whole buffer",
    "invalid": "the call's arguments could not be used; the log names the field and the fix",
    "rejected": "the service refused it (4xx); the log has its reason",
    "gave_up": "errors (5xx), or answers that are not TwinScope's, for longer than retry_s",
    "spool_full": "the oldest spool files had to go",
    "spool_lost": "a spool file vanished or became unreadable",
    "closed": "captured after close()",
    "shutdown": "still pending when the time for closing was over",
    "internal_error": "an error in the probe itself; the log has the traceback",
}

# What was turned down at the call, of any kind; beside the books, which count what a call captures.
REFUSE_REASONS: dict[str, str] = {
    "invalid": "calls whose arguments could not be used; the log names the field and the fix",
    "not_finite": "scalars that were NaN or infinite; an event names them",
}


@dataclass(frozen=True)
class Count:
    """How much: batches as posted, their tokens (masked ones too), and messages.

    Messages are scalars, events and closed steps. A batch that is split into several posts counts
    as that many batches. Until it is unpacked, which takes milliseconds, a call counts as one
    batch with as many tokens as its log-probs have elements, padding included.
    """

    batches: int = 0
    tokens: int = 0
    messages: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.batches + other.batches,
            self.tokens + other.tokens,
            self.messages + other.messages,
        )

    def __sub__(self, other: Count) -> Count:
        return Count(
            self.batches - other.batches,
            self.tokens - other.tokens,
            self.messages - other.messages,
        )


ZERO = Count()


@dataclass(frozen=True)
class ProbeStats:
    """A snapshot of a probe. `run` and `url` are None for a probe that is off."""

    enabled: bool
    url: str | None
    run: str | None
    captured: Count = ZERO
    shipped: Count = ZERO
    pending: Count = ZERO  # in memory, waiting or on the way
    spooled: Count = ZERO  # on disk, waiting
    dropped: dict[str, Count] = field(default_factory=dict)  # by DROP_REASONS
    recovered: Count = ZERO  # of `captured`: taken over from the spool of a process that ended
    buffer_bytes: int = 0
    buffer_capacity_bytes: int = 0
    spool_bytes: int = 0
    calls: int = 0
    host_seconds: float = 0.0  # spent inside the host's calls, all threads together
    retries: int = 0  # posts that were tried again
    refused: dict[str, int] = field(default_factory=dict)  # by REFUSE_REASONS
    errors: dict[str, int] = field(default_factory=dict)  # by kind (`train: token_ids`): guard.py
    last_error: str | None = None  # None: nothing has gone wrong
    config_problems: tuple[str, ...] = ()  # environment variables that could not be used

    @property
    def lost(self) -> Count:
        """Everything dropped, whatever the reason."""
        return sum(self.dropped.values(), ZERO)

    @property
    def balanced(self) -> bool:
        """Whether the books add up. They always do; tests ask."""
        return self.captured == self.shipped + self.pending + self.spooled + self.lost

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for logs and JSON."""
        return asdict(self)


class Ledger:
    """The columns. Not thread-safe by itself: the buffer's lock guards it."""

    def __init__(self) -> None:
        self.captured = ZERO
        self.recovered = ZERO
        self.columns: dict[str, Count] = {"shipped": ZERO, "pending": ZERO, "spooled": ZERO}
        self.dropped: dict[str, Count] = {}

    def capture(self, count: Count, *, into: str) -> None:
        """Something new; `into` is a column or a drop reason."""
        self.captured += count
        self._add(into, count)

    def recover(self, count: Count) -> None:
        """Something that another process captured and left in its spool."""
        self.recovered += count
        self.capture(count, into="spooled")

    def restate(self, before: Count, after: Count) -> None:
        """What waits as `before` is known better now: in posts, and without its padding."""
        self.captured += after - before
        self.columns["pending"] += after - before

    def move(self, count: Count, source: str, target: str) -> None:
        """From column `source` to a column or a drop reason."""
        self.columns[source] -= count
        self._add(target, count)

    def _add(self, target: str, count: Count) -> None:
        if target in self.columns:
            self.columns[target] += count
        else:
            self.dropped[target] = self.dropped.get(target, ZERO) + count
