"""Record output: a snapshot becomes four beats of 256 bits with a checksum, queued in block RAM.

Credits: depth / 4 records fit; the gate takes one credit per record to come, the last
beat leaving on the result stream gives it back. Chunk ends are four clocks apart, so a record is
out of the snapshot before the next one arrives.
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Array, Cat, Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib.fifo import SyncFIFOBuffered

from rtl.credits import SLACK_AT_HEADER, Credits
from twinscope_fpga.formats import (
    COUNTS,
    CRC_POLYNOMIAL,
    RECORD_BEAT_BITS,
    RECORD_BEATS,
    RECORD_MAGIC,
    SUMS,
    record_fields,
)

WORDS_PER_BEAT = RECORD_BEAT_BITS // 32


def multiply_x(word: Sequence[Value], times: int) -> list[list[Value]]:
    """Each output bit of word·x^times modulo the polynomial, as the input bits to xor."""
    bits = [[bit] for bit in word]
    for _ in range(times):
        top = bits[-1]
        bits = [[], *bits[:-1]]
        bits = [row + top if CRC_POLYNOMIAL >> i & 1 else row for i, row in enumerate(bits)]
    return bits


def xor_rows(rows: Sequence[list[list[Value]]]) -> Value:
    """32 bits, each the xor of everything listed for it (a term listed twice cancels)."""
    out = []
    for i in range(32):
        terms: list[Value] = []
        for row in rows:
            for term in row[i]:
                if any(term is other for other in terms):
                    terms = [other for other in terms if other is not term]
                else:
                    terms.append(term)
        out.append(Cat(*terms).xor() if terms else Const(0, 1))
    return Cat(*out)


def fold_beat(words: Sequence[Value]) -> Value:
    """Σ w_j · x^(7-j) of the eight words of one beat."""
    return xor_rows(
        [multiply_x([w[i] for i in range(32)], WORDS_PER_BEAT - 1 - j) for j, w in enumerate(words)]
    )


class RecordOutput(Elaboratable):
    """snapshot, sums, counts, largest, tag, status in; m_axis_* out; `credit` to the gate."""

    def __init__(self, *, depth: int = 512, lost_credit: int = 0) -> None:
        self.depth = depth
        self.credits = depth // RECORD_BEATS + lost_credit  # lost_credit: mutation tests only
        self.snapshot = Signal()
        self.sums = [
            Signal(48, name=f"sum_{entry.name}{i}") for entry in SUMS for i in range(entry.segments)
        ]
        self.counts = [Signal(24, name=f"count_{name}") for name in COUNTS]
        self.largest = Signal(31)
        self.tag = Signal(24)
        self.status = Signal(4)
        self.take = Signal()  # a record will come
        self.credit = Signal()
        self.tdata = Signal(RECORD_BEAT_BITS)
        self.tlast = Signal()
        self.tvalid = Signal()
        self.tready = Signal()
        self.overflow = Signal()
        self.records = Signal(32)
        # on the way from the snapshot to the queue, and out of it: what the proofs count
        self.phase = Signal(range(RECORD_BEATS))
        self.valid = [Signal(name=f"beat_valid{i}") for i in range(3)]
        self.popped = Signal(range(RECORD_BEATS))
        self.fifo = SyncFIFOBuffered(width=RECORD_BEAT_BITS, depth=depth)
        self.left = Credits(self.credits, slack=SLACK_AT_HEADER)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat, index = self._serialise(m)
        beat, push = self._checksum(m, beat, index)
        fifo, left = self.fifo, self.left
        m.submodules.fifo, m.submodules.credits = fifo, left
        pop = Signal()
        m.d.comb += [
            fifo.w_data.eq(beat),
            fifo.w_en.eq(push),
            self.tdata.eq(fifo.r_data),
            self.tvalid.eq(fifo.r_rdy),
            self.tlast.eq(self.popped == RECORD_BEATS - 1),
            fifo.r_en.eq(self.tready),
            pop.eq(self.tvalid & self.tready),
            left.take.eq(self.take),
            left.gone.eq(pop & self.tlast),
            self.credit.eq(left.credit),
        ]
        m.d.sync += [
            self.popped.eq(self.popped + pop),
            self.overflow.eq(push & ~fifo.w_rdy),
        ]
        return m

    def _serialise(self, m: Module) -> tuple[Signal, Signal]:
        """Beats 0..3 in the four clocks from the snapshot on, and their index."""
        words = self._record_words()
        phase, valid = self.phase, self.valid[0]
        busy = Signal()
        m.d.comb += busy.eq(self.snapshot | (phase != 0))
        with m.If(busy):
            m.d.sync += phase.eq(phase + 1)
        beat = Signal(RECORD_BEAT_BITS, reset_less=True)
        index = Signal(range(RECORD_BEATS), reset_less=True)
        for j in range(WORDS_PER_BEAT):  # a counter per word, equal to `phase`, close to its choice
            turn = Signal(range(RECORD_BEATS), name=f"phase{j}", attrs={"keep": 1})
            with m.If(self.snapshot | (turn != 0)):
                m.d.sync += turn.eq(turn + 1)
            choices = Array(words[k * WORDS_PER_BEAT + j] for k in range(RECORD_BEATS))
            m.d.sync += beat[32 * j : 32 * j + 32].eq(choices[turn])
        m.d.sync += [valid.eq(busy), index.eq(phase)]
        with m.If(busy & (phase == RECORD_BEATS - 1)):
            m.d.sync += self.records.eq(self.records + 1)
        return beat, index

    def _record_words(self) -> list[Value]:
        """32 words of 32 bits; the checksum's place is zero."""
        names = [f"{entry.name}{i}" for entry in SUMS for i in range(entry.segments)]
        known: dict[str, Value] = dict(zip(names, self.sums, strict=True))
        known |= dict(zip(COUNTS, self.counts, strict=True))
        known |= {
            "magic": Const(RECORD_MAGIC, 16), "status": self.status, "tag": self.tag,
            "max_abs": self.largest, "serial": self.records,
        }  # fmt: skip
        parts = []
        for name, _, size in record_fields():
            value = known.get(name, Const(0, 1))
            parts.append(Cat(value, Const(0, 8 * size - len(value))))
        record = Cat(*parts)
        return [record[32 * i : 32 * i + 32] for i in range(32)]

    def _checksum(self, m: Module, beat: Signal, index: Signal) -> tuple[Signal, Signal]:
        """(beat with the checksum in the last word, push), two clocks later."""
        words = [beat[32 * j : 32 * j + 32] for j in range(WORDS_PER_BEAT)]
        fold, beat_1 = Signal(32, reset_less=True), Signal(RECORD_BEAT_BITS, reset_less=True)
        valid, valid_1, push = self.valid
        index_1 = Signal(range(RECORD_BEATS), reset_less=True)
        m.d.sync += [fold.eq(fold_beat(words)), beat_1.eq(beat), index_1.eq(index)]
        state, total = Signal(32, reset_less=True), Signal(32)
        moved = xor_rows([multiply_x([state[i] for i in range(32)], WORDS_PER_BEAT)])
        m.d.comb += total.eq(fold ^ moved)
        beat_2 = Signal(RECORD_BEAT_BITS, reset_less=True)
        m.d.sync += [valid_1.eq(valid), push.eq(valid_1), beat_2.eq(beat_1)]
        last = index_1 == RECORD_BEATS - 1
        m.d.sync += state.eq(Mux(valid_1 & ~last, total, 0))  # beats of a record come in a row
        with m.If(last):
            m.d.sync += beat_2[-32:].eq(total)
        return beat_2, push
