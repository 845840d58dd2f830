"""Credits: room behind the lanes, counted before a beat enters them.

`take` and `gone` are registered before they count, so that neither the gate's decision nor the
sink's TREADY reaches an adder in the same clock. A take therefore shows in `credit` three clocks
later. Where takes can come every clock, two of them are not known yet, and SLACK_EVERY_CLOCK
places stay in reserve. Where they are four clocks apart, the last one may not be known yet when the
next header looks, one clock after it: SLACK_AT_HEADER.
"""

from __future__ import annotations

from amaranth.hdl import Elaboratable, Module, Signal

SLACK_EVERY_CLOCK = 2
SLACK_AT_HEADER = 1


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
