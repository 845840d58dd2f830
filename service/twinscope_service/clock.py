"""Time, passed in: the only module of the service that reads a clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a component gets the time from."""

    def time(self) -> float:
        """Seconds since the epoch: what is stored and shown."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: what periods are measured with."""
        ...


class SystemClock:
    """The machine's clocks."""

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment."""
        return time.monotonic()


class ManualClock:
    """A clock that stands still until told: for tests and simulations."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """The same seconds: nobody sets this clock back."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
