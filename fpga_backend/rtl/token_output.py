"""Token output: one 128-bit word per token and lane, on a stream of its own, where a chunk asks.

Word: k3 (or e^q) Q30.58 in bits 0..87, float32 Δ before the clamp in 88..119, formats.TOKEN_FLAGS
in 120..127. Both numbers are zero for a token that does not count.
The queue is small (LUT memory), so token mode runs at DEPTH tokens per pipeline length, about a
third of full rate: the host link could not carry more than half of it anyway.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Elaboratable, Module, Signal, Value, unsigned
from amaranth.lib.memory import Memory

from rtl.compute_core import FLAG_NAMES
from rtl.credits import SLACK_EVERY_CLOCK, Credits
from twinscope_fpga.formats import TOKEN_BYTES, TOKEN_FLAGS, VALUE_BITS

TOKEN_BITS = 8 * TOKEN_BYTES


class TokenQueue(Elaboratable):
    """`depth` beats of one word per lane in LUT memory, the oldest one shown. Nothing is asked
    before a write, because the credits keep it from overflowing; every lane has a write strobe and
    pointers of its own, equal to the others', that stay close to their memory.

    w_soon: w_data and w_last come in the next clock, which is when `w_en` says so.
    """

    def __init__(self, *, lanes: int, depth: int) -> None:
        self.lanes, self.depth = lanes, depth
        self.w_data = [Signal(TOKEN_BITS, name=f"w_data{i}") for i in range(lanes)]
        self.w_last = Signal()
        self.w_soon = Signal()
        self.w_en = Signal()
        self.w_rdy = Signal()
        self.r_data = [Signal(TOKEN_BITS, name=f"r_data{i}") for i in range(lanes)]
        self.r_last = Signal()
        self.r_rdy = Signal()
        self.r_en = Signal()
        self.level = Signal(range(depth + 1))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        pop, level = Signal(), self.level
        m.d.comb += [pop.eq(self.r_rdy & self.r_en), self.w_rdy.eq(level != self.depth)]
        m.d.sync += [
            self.w_en.eq(self.w_soon),
            level.eq(level + self.w_en - pop),
            self.r_rdy.eq((level > 1) | self.w_en | (level[0] & ~pop)),
        ]
        for i in range(self.lanes):
            self._memory(m, f"lane{i}", self.w_data[i], self.r_data[i], pop)
        self._memory(m, "last", self.w_last, self.r_last, pop)
        return m

    def _memory(self, m: Module, name: str, data: Signal, shown: Signal, pop: Signal) -> None:
        memory = Memory(shape=unsigned(len(data)), depth=self.depth, init=[])
        m.submodules[name] = memory
        write, read = memory.write_port(), memory.read_port(domain="comb")
        places = range(self.depth)
        strobe, to, at = (
            Signal(shape, name=f"{what}_{name}", attrs={"keep": 1})
            for what, shape in (("strobe", 1), ("to", places), ("at", places))
        )
        m.d.sync += [strobe.eq(self.w_soon), to.eq(to + strobe), at.eq(at + pop)]
        m.d.comb += [
            write.addr.eq(to), write.data.eq(data), write.en.eq(strobe),
            read.addr.eq(at), shown.eq(read.data),
        ]  # fmt: skip


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
        self.fifo = TokenQueue(lanes=lanes, depth=depth)
        self.left = Credits(depth + lost_credit, slack=SLACK_EVERY_CLOCK)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        fifo, left = self.fifo, self.left
        m.submodules.fifo, m.submodules.credits = fifo, left
        m.d.comb += self.pushing.eq(fifo.w_en)
        for i in range(self.lanes):
            word = Signal(TOKEN_BITS, name=f"word{i}", reset_less=True)
            m.d.sync += word.eq(self._word(i))
            m.d.comb += fifo.w_data[i].eq(word)
        last = Signal(reset_less=True)
        m.d.sync += [
            last.eq(self.last),
            self.overflow.eq(self.pushing & ~fifo.w_rdy),
        ]
        m.d.comb += [
            fifo.w_last.eq(last),
            fifo.w_soon.eq(self.push),
            self.tdata.eq(Cat(*fifo.r_data)),
            self.tlast.eq(fifo.r_last),
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
