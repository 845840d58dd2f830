"""Beat queue and gate: holds beats until nothing behind can overflow, then lets one pass per clock.

The lanes never stall, so every rule is kept here, before a beat enters:
- a header passes only with a record credit, and only in the mode the lanes are in (else they are
  drained first and the mode is changed);
- two ends of chunks are at least four clocks apart, because a record leaves in four beats;
- a token-stream beat passes only with a token credit.

The control bits are looked at one clock ahead of the payload: the payload memory is read by a
pointer that follows the decision, its output register loads every clock, and nothing wide waits
for a combinational decision.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value, unsigned
from amaranth.lib.memory import Memory

from rtl.beat import CONTROL_NAMES, PAIR_BITS, Beat

DEPTH = 16
ROOM_BELOW = DEPTH - 6  # beats that are under way when `room` falls still fit
PACE = 3  # clocks between two chunk ends, less one


class BeatQueue(Elaboratable):
    """`beat_in` is always taken; `room` must stop its source within four clocks.

    record_credit, token_credit: there is room behind. drained: nothing is in the lanes.
    """

    def __init__(self, *, lanes: int) -> None:
        self.lanes = lanes
        self.beat_in = Beat(lanes, "queued")
        self.beat_out = Beat(lanes, "gated")
        self.room = Signal(init=1)
        self.record_credit = Signal()
        self.token_credit = Signal()
        self.drained = Signal()
        self.mode = Signal()
        self.takes_record = Signal()  # a record will come of the beat that passes
        self.takes_token = Signal()
        self.passing = Signal()
        self.empty = Signal()
        self.level = Signal(range(DEPTH + 1))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        write, look = Signal(range(DEPTH)), Signal(range(DEPTH))
        level = self.level
        arrives = self.beat_in.valid
        control = self._memory(m, "control", self.beat_in.control, arrives, write, look)
        bits = {name: control[i] for i, name in enumerate(CONTROL_NAMES)}
        pace = Signal(range(PACE + 1))
        turn = Signal()  # the lanes are empty and the mode changes in this clock
        m.d.comb += [
            turn.eq((level != 0) & bits["header"] & (bits["mode"] != self.mode) & self.drained),
            self.passing.eq(
                (level != 0)
                & (~bits["header"] | (self.record_credit & (bits["mode"] == self.mode)))
                & (~bits["last"] | (pace == 0))
                & (~bits["tokens"] | self.token_credit)
            ),
            self.takes_record.eq(self.passing & bits["last"] & ~bits["hold"]),
            self.takes_token.eq(self.passing & bits["tokens"] & ~bits["header"]),
            self.empty.eq(level == 0),
        ]
        m.d.sync += [
            write.eq(write + self.beat_in.valid),
            look.eq(look + self.passing),
            level.eq(level + self.beat_in.valid - self.passing),
            self.room.eq(level < ROOM_BELOW),
            pace.eq(Mux(self.passing & bits["last"], PACE, Mux(pace == 0, 0, pace - 1))),
        ]
        with m.If(turn):
            m.d.sync += self.mode.eq(bits["mode"])
        self._payload(m, write, control)
        return m

    def _payload(self, m: Module, write: Signal, control: Signal) -> None:
        """The wide memory, read one clock after the decision; beat_out one clock after that."""
        passed = Signal()
        control_1 = Signal(len(CONTROL_NAMES))
        m.d.sync += [
            passed.eq(self.passing),
            control_1.eq(control),
            self.beat_out.valid.eq(passed),
            self.beat_out.control.eq(Mux(passed, control_1, 0)),
        ]
        narrow = Cat(self.beat_in.present, self.beat_in.masked)
        read = self._pointer(m, "read_mark", passed)
        marks = self._memory(m, "marks", narrow, self.beat_in.valid, write, read)
        m.d.sync += [
            self.beat_out.present.eq(Mux(passed, marks[: self.lanes], 0)),
            self.beat_out.masked.eq(marks[self.lanes :]),
        ]
        for i in range(self.lanes):
            m.d.sync += self.beat_out.data[i].eq(self._lane(m, i, passed))

    def _lane(self, m: Module, i: int, passed: Signal) -> Signal:
        """The pairs of one lane: written a clock after the control bits, which is soon enough,
        so that the write strobe and its pointer can be copies that lie beside the memory."""
        data = Signal(PAIR_BITS, name=f"late_data{i}", reset_less=True)
        strobe = Signal(name=f"late_valid{i}", attrs={"keep": 1})
        m.d.sync += [data.eq(self.beat_in.data[i]), strobe.eq(self.beat_in.valid)]
        write = self._pointer(m, f"write_lane{i}", strobe)
        read = self._pointer(m, f"read_lane{i}", passed)
        return self._memory(m, f"data{i}", data, strobe, write, read)

    def _pointer(self, m: Module, name: str, step: Signal) -> Signal:
        """One pointer per lane: equal counters, kept apart to stay close to their memory."""
        pointer = Signal(range(DEPTH), name=name, attrs={"keep": 1})
        m.d.sync += pointer.eq(pointer + step)
        return pointer

    def _memory(
        self, m: Module, name: str, data: Value, strobe: Signal, write: Signal, read: Signal
    ) -> Signal:
        memory = Memory(shape=unsigned(len(data)), depth=DEPTH, init=[])
        m.submodules[f"memory_{name}"] = memory
        writer, reader = memory.write_port(), memory.read_port(domain="comb")
        m.d.comb += [
            writer.addr.eq(write), writer.data.eq(data), writer.en.eq(strobe),
            reader.addr.eq(read),
        ]  # fmt: skip
        return reader.data
