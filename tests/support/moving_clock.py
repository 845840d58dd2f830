"""A clock that a test moves."""

from __future__ import annotations


class MovingClock:
    """Both of a probe's clocks: they stand still until `now` is set."""

    def __init__(self) -> None:
        self.now = 1e6

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def wall(self) -> float:
        """The same."""
        return self.now
