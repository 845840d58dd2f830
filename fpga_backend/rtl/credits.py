"""Credits: room behind the lanes, counted before a beat enters them.

`take` and `gone` are registered before they count, so that neither the gate's decision nor the
sink's TREADY reaches an adder in the same clock. A take is therefore seen three clocks late:
`credit` stays low until more than SLACK places are left, and at most SLACK takes can still come.
"""

from __future__ import annotations

from amaranth.hdl import Elaboratable, Module, Signal

SLACK = 3


class Credits(Elaboratable):
    """`places` in the queue; take: one will be used; gone: one was freed; credit: take may come."""

    def __init__(self, places: int) -> None:
        self.places = places
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
            self.credit.eq(self.left > SLACK),
        ]
        return m
