"""Time, passed in: the probe's waiting and measuring read a Clock, so that tests own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the probe asks of time."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; should not run backwards, but may (see `Pause`)."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, for file names and for Retry-After dates only."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()


class Pause:
    """'Not before', as a length and a start: a clock that jumps back can never prolong it.

    With a plain deadline, a clock set back by an hour would silence the probe for an hour.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = 0.0
        self._length = 0.0

    def begin(self, length_s: float) -> None:
        """Pause for `length_s` seconds from now."""
        self._start, self._length = self._clock.monotonic(), length_s

    def end(self) -> None:
        """Be over now."""
        self._length = 0.0

    def left(self) -> float:
        """Seconds left, from 0 to the length that was asked for."""
        passed = self._clock.monotonic() - self._start
        if passed < 0:  # the clock went back: begin again from here
            self._start, passed = self._clock.monotonic(), 0.0
        return max(0.0, self._length - passed)
