"""Stream input: the AXI4-Stream port. Registers every beat that is handed over, never holds one.

TREADY is a register: it is high while the queue behind has room for everything under way. Payload
registers load every clock, only `valid` is qualified, so that no enable fans out over the beat.
"""

from __future__ import annotations

from amaranth.hdl import Elaboratable, Module, Signal

from rtl.beat import PAIR_BITS


class StreamInput(Elaboratable):
    """s_axis_* on one side, a registered beat on the other. `room`, `enable` from outside."""

    def __init__(self, *, lanes: int) -> None:
        self.lanes = lanes
        self.tdata = Signal(PAIR_BITS * lanes)
        self.tkeep = Signal(8 * lanes)
        self.tuser = Signal(lanes)
        self.tlast = Signal()
        self.tvalid = Signal()
        self.tready = Signal()
        self.enable = Signal()
        self.room = Signal()
        self.valid = Signal()
        self.data = [Signal(PAIR_BITS, name=f"data{i}", reset_less=True) for i in range(lanes)]
        self.keep = Signal(lanes, reset_less=True)
        self.user = Signal(lanes, reset_less=True)
        self.last = Signal(reset_less=True)
        self.stalled = Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += [
            self.tready.eq(self.enable & self.room),
            self.valid.eq(self.tvalid & self.tready),
            self.user.eq(self.tuser),
            self.last.eq(self.tlast),
            self.stalled.eq(self.tvalid & ~self.tready),
        ]
        for i in range(self.lanes):
            m.d.sync += [
                self.data[i].eq(self.tdata.word_select(i, PAIR_BITS)),
                self.keep[i].eq(self.tkeep[8 * i]),
            ]
        return m
