"""Accumulate: exact sums and counts of a chunk, handed over as one snapshot when it ends.

Stage numbers go on from the lanes (41). A chunk end and the next chunk's first token are at least
one clock apart (its header beat is between), and that clock takes the snapshot and clears.
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value

from rtl.compute_core import FLAG_NAMES, LATENCY
from rtl.pipeline import Pipe, Staged
from rtl.reduce import count_flags, max_tree, record_counts, sum_words
from twinscope_fpga.formats import (
    ACCUMULATOR_BITS,
    COUNTS,
    FIXED_BITS,
    HEADROOM_BITS,
    SQUARE_BITS,
    SUMS,
    VALUE_BITS,
)

SUM_WORDS = sum(entry.segments for entry in SUMS)
SPLIT = LATENCY + 1  # stage of the gated segments


def tree_levels(lanes: int) -> int:
    """Levels of a binary tree over the lanes."""
    return (lanes - 1).bit_length()


def add_stage(lanes: int) -> int:
    """Stage at which a beat is added to the accumulators."""
    return SPLIT + 2 * tree_levels(lanes)


class Accumulate(Elaboratable):
    """Takes the lanes' results at stage 41 and an `end` event in step; gives snapshots.

    end: this beat ends a chunk that asks for a record. snapshot: the sums below are complete, for
    this clock and until the next snapshot. drop: forget all sums; held while the lanes run empty,
    it does for a reset here, so that no reset has to reach the accumulators.
    """

    def __init__(self, *, lanes: int) -> None:
        self.lanes = lanes
        self.value = [Signal(VALUE_BITS, name=f"value{i}") for i in range(lanes)]
        self.square = [Signal(SQUARE_BITS, name=f"square{i}") for i in range(lanes)]
        self.fixed = [Signal(FIXED_BITS, name=f"fixed{i}") for i in range(lanes)]
        self.size = [Signal(31, name=f"size{i}") for i in range(lanes)]
        self.flags = [Signal(len(FLAG_NAMES), name=f"flags{i}") for i in range(lanes)]
        self.end = Signal()
        self.drop = Signal()
        self.snapshot = Signal(reset_less=True)
        self.sums = [
            Signal(ACCUMULATOR_BITS, name=f"sum{i}", reset_less=True) for i in range(SUM_WORDS)
        ]
        self.counts = [
            Signal(HEADROOM_BITS, name=f"count{i}", reset_less=True) for i in range(len(COUNTS))
        ]
        self.largest = Signal(31, reset_less=True)
        self.beat_counts: dict[str, Signal] = {
            name: Signal(range(lanes + 1), name=f"beat_{name}") for name in FLAG_NAMES
        }

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = Pipe(m, "sum")
        stage = add_stage(self.lanes)
        end = p.source(self.end, LATENCY, "end")
        flags = [p.source(flag, LATENCY, f"flags{i}") for i, flag in enumerate(self.flags)]
        words = sum_words(p, SPLIT, self._gated(p, flags))
        counts = count_flags(p, LATENCY, flags, FLAG_NAMES)
        for name, count in counts.items():
            m.d.comb += self.beat_counts[name].eq(count.signal)
        m.d.sync += self.snapshot.eq(p.at(end, stage + 1))
        ending = Signal()
        m.d.comb += ending.eq(p.at(end, stage) | self.drop)
        for word, total in zip(words, self.sums, strict=True):
            self._accumulate(m, p.at(word, stage), total, ending)
        for count, total in zip(record_counts(counts), self.counts, strict=True):
            self._accumulate(m, p.at(count, stage), total, ending)
        self._largest(m, p, flags, stage, end)
        return m

    def _gated(self, p: Pipe, flags: Sequence[Staged]) -> list[dict[str, Staged]]:
        """Per lane: value, square, Δ above and below zero, at SPLIT."""
        lanes = []
        for i, flag in enumerate(flags):
            negative = p.source(flag.signal[FLAG_NAMES.index("negative")], LATENCY, f"minus{i}")
            positive = p.source(~negative.signal, LATENCY, f"plus{i}")
            fixed = p.source(self.fixed[i], LATENCY, f"fixed{i}")
            lanes.append(
                {
                    "value": p.reg(LATENCY, lambda _, i=i: self.value[i], f"value{i}"),
                    "square": p.reg(LATENCY, lambda _, i=i: self.square[i], f"square{i}"),
                    "above": p.reg(LATENCY, lambda at, f=fixed: at(f), f"above{i}", negative),
                    "below": p.reg(LATENCY, lambda at, f=fixed: at(f), f"below{i}", positive),
                }
            )
        return lanes

    def _accumulate(self, m: Module, term: Value, total: Signal, ending: Value) -> None:
        """running += term every clock; one clock after `ending`, `total` takes it over.

        Every sum has a clear of its own: one for all would have some 1500 flip-flops to reach.
        """
        running = Signal(len(total), name=f"running_{total.name}", reset_less=True)
        clear = Signal(name=f"clear_{total.name}", attrs={"keep": 1}, reset_less=True)
        m.d.sync += [clear.eq(ending), running.eq(running + term)]
        with m.If(clear):
            m.d.sync += [total.eq(running), running.eq(0)]

    def _largest(
        self, m: Module, p: Pipe, flags: Sequence[Staged], stage: int, end: Staged
    ) -> None:
        """Maximum over the chunk: two banks take turns, so that each has two clocks to compare."""
        sizes = []
        for i, flag in enumerate(flags):
            dead = p.source(~flag.signal[FLAG_NAMES.index("counted")], LATENCY, f"dead{i}")
            size = p.source(self.size[i], LATENCY, f"size{i}")
            sizes.append(p.reg(LATENCY, lambda at, s=size: at(s), f"live_size{i}", dead))
        top = max_tree(p, SPLIT, sizes, "max")
        turn = Signal(reset_less=True)
        fresh = Signal()
        banks = [Signal(31, name=f"bank{i}", reset_less=True) for i in range(2)]
        arrived, above = Signal(31, reset_less=True), Signal(reset_less=True)
        m.d.comb += fresh.eq(p.at(end, stage + 1) | p.at(end, stage + 2) | self.drop)
        m.d.sync += [
            turn.eq(~turn),
            arrived.eq(p.at(top, stage)),
            above.eq((p.at(top, stage) > Mux(turn, banks[1], banks[0])) | fresh),
        ]
        for i, bank in enumerate(banks):
            with m.If(above & (turn == 1 - i)):
                m.d.sync += bank.eq(arrived)
        first, second = Signal(31, reset_less=True), Signal(31, reset_less=True)
        with m.If(p.at(end, stage + 2)):
            m.d.sync += [first.eq(banks[0]), second.eq(banks[1])]
        m.d.sync += self.largest.eq(Mux(first > second, first, second))
