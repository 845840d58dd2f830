"""Token output: one 128-bit word per token and lane, on a stream of its own, where a chunk asks.

Word: k3 (or e^q) Q30.58 in bits 0..87, float32 Δ before the clamp in 88..119, formats.TOKEN_FLAGS
in 120..127. Both numbers are zero for a token that does not count.
The queue is small (LUT memory), so token mode runs at DEPTH tokens per pipeline length, about a
third of full rate: the host link could not carry more than half of it anyway.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Elaboratable, Module, Signal, Value
from amaranth.lib.fifo import SyncFIFO

from rtl.compute_core import FLAG_NAMES
from rtl.credits import SLACK_EVERY_CLOCK, Credits
from twinscope_fpga.formats import TOKEN_BYTES, TOKEN_FLAGS, VALUE_BITS

TOKEN_BITS = 8 * TOKEN_BYTES


class TokenOutput(Elaboratable):
    """push: the lanes' results belong to a token chunk; last: the chunk ends with this beat."""

    def __init__(self, *, lanes: int, depth: int = 16, lost_credit: int = 0) -> None:
        self.lanes, self.depth = lanes, depth
        self.value = [Signal(VALUE_BITS, name=f"value{i}") for i in range(lanes)]
        self.size = [Signal(31, name=f"size{i}") for i in range(lanes)]
        self.flags = [Signal(len(FLAG_NAMES), name=f"flags{i}") for i in range(lanes)]
        self.mode = Signal()
        self.push = Signal()
        self.last = Signal()
        self.take = Signal()
        self.credit = Signal()
        self.tdata = Signal(TOKEN_BITS * lanes)
        self.tlast = Signal()
        self.tvalid = Signal()
        self.tready = Signal()
        self.overflow = Signal()
        self.pushing = Signal()
        self.fifo = SyncFIFO(width=TOKEN_BITS * lanes + 1, depth=depth)
        self.left = Credits(depth + lost_credit, slack=SLACK_EVERY_CLOCK)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        fifo, left = self.fifo, self.left
        m.submodules.fifo, m.submodules.credits = fifo, left
        word, push = Signal(TOKEN_BITS * self.lanes + 1, reset_less=True), self.pushing
        m.d.sync += [
            word.eq(Cat(*(self._word(i) for i in range(self.lanes)), self.last)),
            push.eq(self.push),
            self.overflow.eq(push & ~fifo.w_rdy),
        ]
        m.d.comb += [
            fifo.w_data.eq(word),
            fifo.w_en.eq(push),
            Cat(self.tdata, self.tlast).eq(fifo.r_data),
            self.tvalid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.tready),
        ]
        m.d.comb += [
            left.take.eq(self.take),
            left.gone.eq(self.tvalid & self.tready),
            self.credit.eq(left.credit),
        ]
        return m

    def _word(self, lane: int) -> Value:
        flags = dict(zip(FLAG_NAMES, self.flags[lane], strict=True)) | {"mode": self.mode}
        return Cat(
            self.value[lane],
            self.size[lane] & flags["counted"].replicate(31),
            flags["negative"],
            *(flags[name] for name in TOKEN_FLAGS),
        )
