"""Credits: room behind the lanes, counted before a beat enters them.

`take` and `gone` are registered before they count, so that neither the gate's decision nor the
sink's TREADY reaches an adder in the same clock. A take therefore shows in `credit` three clocks
later; where takes can come every clock, two of them are not known yet, and SLACK_EVERY_CLOCK
places stay in reserve. Takes that are four clocks apart need no reserve.
"""

from __future__ import annotations

from amaranth.hdl import Elaboratable, Module, Signal

SLACK_EVERY_CLOCK = 2


class Credits(Elaboratable):
    """`places` in the queue; take: one will be used; gone: one was freed; credit: take may come."""

    def __init__(self, places: int, *, slack: int) -> None:
        self.places, self.slack = places, slack
        self.take = Signal()
        self.gone = Signal()
        self.credit = Signal(init=1)
        self.left = Signal(range(places + 1), init=places)
        self.taken = Signal()  # a take that `left` does not know yet
        self.freed = Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += [
            self.taken.eq(self.take),
            self.freed.eq(self.gone),
            self.left.eq(self.left + self.freed - self.taken),
            self.credit.eq(self.left > self.slack),
        ]
        return m
