"""What is proved. Each top has free inputs, assertions, covers, and mutants that must fail.

A property that holds for the real design and for its mutant says nothing: `MUTANTS` lists, for
each top, small faults that the checker has to find.
"""

from __future__ import annotations

from collections.abc import Callable

from amaranth.hdl import Assert, Cat, Cover, Elaboratable, Module, Signal, Value
from amaranth.lib.fifo import SyncFIFOBuffered

from rtl import beat_queue
from rtl.axi_lite import PORTS, AxiLite
from rtl.beat_queue import BeatQueue
from rtl.mask_filter import MaskFilter
from rtl.record_output import RecordOutput
from rtl.stream_input import StreamInput
from rtl.token_output import TokenOutput

LANE_CLOCKS = 9  # stands for the pipeline between the gate and the outputs; any length proves alike
RECORD_DEPTH, TOKEN_DEPTH = 32, 8


class Top(Elaboratable):
    """Base: `free` are the inputs the solver chooses."""

    def __init__(self, mutant: str = "") -> None:
        self.mutant = mutant
        self.free: dict[str, Signal] = {}

    def input(self, name: str, width: int = 1) -> Signal:
        """A free input."""
        self.free[name] = Signal(width, name=name)
        return self.free[name]


class RecordFlow(Top):
    """Gate rules and record queue: no overflow, credits conserved.

    The gate is reduced to what it promises: a header passes only with a credit, the earliest one
    clock after the end before it, and ends are more than PACE clocks apart.
    """

    MUTANTS = ("lost_credit", "no_pace", "no_reserve")

    def elaborate(self, platform: object) -> Module:
        m = Module()
        wish, tready = self.input("wish"), self.input("tready")
        header, opened = self.input("header"), Signal()
        extra = 1 if self.mutant == "lost_credit" else 0
        output = RecordOutput(depth=RECORD_DEPTH, lost_credit=extra)
        m.submodules.output = output
        pace, line = Signal(range(beat_queue.PACE + 1)), Signal(LANE_CLOCKS)
        gap = 1 if self.mutant == "no_pace" else beat_queue.PACE
        take = Signal()
        m.d.comb += [
            take.eq(wish & (opened | (header & output.credit)) & (pace == 0)),
            output.take.eq(take),
            output.snapshot.eq(line[-1]),
            output.tready.eq(tready),
        ]
        m.d.sync += [
            line.eq(Cat(take, line[:-1])),
            opened.eq((opened | (header & output.credit)) & ~take),
        ]
        free = output.left.left + output.left.freed - output.left.taken
        m.d.comb += [Assert(~opened | (free >= 1)), Assert(~output.credit | (free >= 1))]
        with m.If(take):
            m.d.sync += pace.eq(gap)
        with m.Elif(pace != 0):
            m.d.sync += pace.eq(pace - 1)
        self._spacing(m, pace, line, output.phase)
        self._conservation(m, output, line)
        m.d.comb += [
            Assert(~output.overflow),
            Assert(~output.valid[2] | output.fifo.w_rdy),
            Cover(~output.credit & output.tvalid & ~tready),
            Cover(output.tvalid & tready & output.tlast & (output.records == 3)),
        ]
        return m

    def _spacing(self, m: Module, pace: Signal, line: Signal, phase: Signal) -> None:
        """Starts are four clocks apart everywhere in the pipeline, so the serialiser is free."""
        for i in range(LANE_CLOCKS):
            for j in range(i + 1, min(i + 4, LANE_CLOCKS)):
                m.d.comb += Assert(~(line[i] & line[j]))
            if i < beat_queue.PACE:
                m.d.comb += Assert(~line[i] | (pace >= beat_queue.PACE - i))
                m.d.comb += Assert(~line[-1 - i] | (phase == 0) | (phase + i >= 4))

    def _conservation(self, m: Module, output: RecordOutput, line: Signal) -> None:
        """Four times (credits left + records in the lanes) + beats anywhere = four times all."""
        left = output.left
        whole = left.left + left.freed - left.taken + sum(line[i] for i in range(LANE_CLOCKS))
        beats = Signal(range(RECORD_DEPTH * 2))
        rest = Signal(3)
        with m.If(output.phase != 0):
            m.d.comb += rest.eq(4 - output.phase)
        waiting = sum((signal for signal in output.valid), start=rest)
        m.d.comb += [
            beats.eq(waiting + output.fifo.level + output.popped),
            Assert((whole << 2) + beats == 4 * output.credits),
            Assert(left.left <= output.credits),
            Assert(left.left >= left.taken),
        ]


class TokenFlow(Top):
    """Token queue: no overflow, credits conserved."""

    MUTANTS = ("no_slack", "lost_credit")

    def elaborate(self, platform: object) -> Module:
        m = Module()
        wish, tready = self.input("wish"), self.input("tready")
        extra = 1 if self.mutant == "lost_credit" else 0
        output = TokenOutput(lanes=1, depth=TOKEN_DEPTH, lost_credit=extra)
        m.submodules.output = output
        take, line = Signal(), Signal(LANE_CLOCKS)
        m.d.comb += [
            take.eq(wish & output.credit),
            output.take.eq(take),
            output.push.eq(line[-1]),
            output.tready.eq(tready),
        ]
        m.d.sync += line.eq(Cat(take, line[:-1]))
        left, held = output.left, Signal()
        m.d.sync += held.eq(output.tvalid & ~tready)
        m.d.comb += Assert(~held | output.tvalid)
        under_way = sum(line[i] for i in range(LANE_CLOCKS)) + output.pushing + output.fifo.level
        m.d.comb += [
            Assert(left.left + left.freed - left.taken + under_way == left.places),
            Assert(left.left <= left.places),
            Assert(left.left >= left.taken),
            Assert(~output.overflow),
            Assert(~output.pushing | output.fifo.w_rdy),
            Assert(output.tvalid == (output.fifo.level != 0)),
            Cover(~output.credit & (output.fifo.level == TOKEN_DEPTH)),
        ]
        return m


class InputFlow(Top):
    """Stream input, filter and queue: no beat is lost, whatever the gate and the source do."""

    MUTANTS = ("room_too_late",)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        stream, mask, queue = StreamInput(lanes=1), MaskFilter(lanes=1), BeatQueue(lanes=1)
        m.submodules.stream, m.submodules.mask, m.submodules.queue = stream, mask, queue
        for name in ("tdata", "tuser", "tlast", "tvalid"):
            port = getattr(stream, name)
            m.d.comb += port.eq(self.input(name, len(port)))
        gate = {name: self.input(name) for name in ("record_credit", "token_credit", "drained")}
        late = Signal(4)
        m.d.sync += late.eq(Cat(queue.room, late[:-1]))
        m.d.comb += [
            stream.enable.eq(1),
            stream.room.eq(late[3] if self.mutant == "room_too_late" else queue.room),
            mask.framed.eq(self.input("framed")),
            mask.valid.eq(stream.valid),
            mask.keep.eq(stream.keep),
            mask.user.eq(stream.user),
            mask.last.eq(stream.last),
            *(a.eq(b) for a, b in zip(mask.data, stream.data, strict=True)),
            *queue.beat_in.copy(mask.out),
            *(getattr(queue, name).eq(signal) for name, signal in gate.items()),
        ]
        coming = stream.valid + queue.beat_in.valid
        slack = beat_queue.DEPTH - beat_queue.ROOM_BELOW
        m.d.comb += [
            Assert(queue.level + queue.beat_in.valid <= beat_queue.DEPTH),
            Assert(queue.level + coming + stream.tready <= beat_queue.DEPTH),
            Assert(queue.level + coming + stream.tready + queue.room <= beat_queue.DEPTH),
            Cover(queue.level == beat_queue.ROOM_BELOW + slack - 3),
            Cover(queue.passing & (queue.level == 1) & queue.mode),
        ]
        return m


class StreamStability(Top):
    """The result queue's port: once offered, a beat stays, unchanged, until it is taken."""

    MUTANTS = ("drops_when_stalled",)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        fifo = SyncFIFOBuffered(width=4, depth=6)
        m.submodules.fifo = fifo
        tready = self.input("tready")
        pop = 1 if self.mutant == "drops_when_stalled" else tready
        m.d.comb += [
            fifo.w_data.eq(self.input("data", 4)),
            fifo.w_en.eq(self.input("write")),
            fifo.r_en.eq(pop),
        ]
        held, data = Signal(), Signal(4)
        m.d.sync += [held.eq(fifo.r_rdy & ~tready), data.eq(fifo.r_data)]
        m.d.comb += [
            Assert(~held | (fifo.r_rdy & (fifo.r_data == data))),
            Cover(held & (fifo.r_data == 5)),
        ]
        return m


class RegisterPort(Top):
    """AXI4-Lite: answers only to requests, one each, and holds them until they are taken."""

    MUTANTS = ("answer_vanishes", "answers_twice")

    def elaborate(self, platform: object) -> Module:
        m = Module()
        slave = AxiLite(lanes=1, constants={})
        m.submodules.slave = slave
        outputs = ("awready", "wready", "bresp", "bvalid", "arready", "rdata", "rresp", "rvalid")
        for name, width in PORTS.items():
            if name not in outputs:
                m.d.comb += getattr(slave, name).eq(self.input(name, width))
        bready, rready = self.free["bready"], self.free["rready"]
        seen_b: Value = bready if self.mutant != "answer_vanishes" else bready & ~slave.bvalid
        writes, reads = Signal(2), Signal(2)
        taken_w = slave.awready & self.free["awvalid"]
        taken_r = slave.arready & self.free["arvalid"]
        m.d.sync += [
            writes.eq(writes + taken_w - (slave.bvalid & seen_b)),
            reads.eq(reads + taken_r - (slave.rvalid & rready)),
        ]
        held_b, held_r, word, response = Signal(), Signal(), Signal(32), Signal(2)
        twice: Value = rready if self.mutant == "answers_twice" else Signal()
        m.d.sync += [
            held_b.eq(slave.bvalid & ~bready),
            held_r.eq(slave.rvalid & ~(rready & ~twice)),
            word.eq(slave.rdata),
            response.eq(slave.bresp),
        ]
        m.d.comb += [
            Assert(slave.awready == slave.wready),
            Assert(~slave.bvalid | (writes != 0)),
            Assert(~slave.rvalid | (reads != 0)),
            Assert(writes == slave.writing + slave.bvalid),
            Assert(reads == slave.reading + slave.rvalid),
            Assert((writes <= 1) & (reads <= 1)),
            Assert(~held_b | (slave.bvalid & (slave.bresp == response))),
            Assert(~held_r | (slave.rvalid & (slave.rdata == word))),
            Cover(held_b & bready),
            Cover(held_r & rready & (slave.rdata == 0xDEADDEAD)),
        ]
        return m


TOPS: dict[str, Callable[..., Top]] = {
    top.__name__: top for top in (RecordFlow, TokenFlow, InputFlow, StreamStability, RegisterPort)
}
DEPTHS = {"RecordFlow": 12, "TokenFlow": 8, "InputFlow": 8, "StreamStability": 8, "RegisterPort": 6}
