"""Mask and padding FSM: finds headers, counts tokens down, decides about every lane of every beat.

    HEADER --good header, length > 0--> BODY --last beat--> HEADER
    HEADER --bad magic--> SKIP (framed: until TLAST; unframed: until a reset)
    BODY   --TLAST missing where the header's length ends (framed)--> SKIP until TLAST
    BODY   --TLAST too early--> the chunk ends there, its record says length_error

Lanes beyond the length, and lanes without TKEEP, are padding: not tokens at all. A token is
masked by TUSER (framed) or by an in-band all-ones word. Neither costs a clock: the slot goes
through empty.
"""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Elaboratable, Module, Mux, Signal, Value

from rtl.beat import PAIR_BITS, Beat
from twinscope_fpga.formats import HEADER_FIELDS, HEADER_MAGIC

LENGTH_BITS = 24


def header_slices(word: Value) -> dict[str, Value]:
    """The fields of a header word."""
    fields, at = {}, 0
    for name, bits, _ in HEADER_FIELDS:
        fields[name] = word[at : at + bits]
        at += bits
    return fields


class MaskFilter(Elaboratable):
    """Takes the registered beat of StreamInput, gives a Beat one clock later. Never stalls."""

    def __init__(self, *, lanes: int) -> None:
        self.lanes = lanes
        self.shift = (lanes - 1).bit_length()
        self.framed = Signal()
        self.valid = Signal()
        self.data = [Signal(PAIR_BITS, name=f"in_data{i}") for i in range(lanes)]
        self.keep = Signal(lanes)
        self.user = Signal(lanes)
        self.last = Signal()
        self.out = Beat(lanes, "filtered")
        self.bad_header = Signal()
        self.length_error = Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        fields = header_slices(self.data[0])
        beats = Signal(LENGTH_BITS + 1, reset_less=True)  # body beats to come
        final = Signal(reset_less=True)  # the next body beat is the last by count
        lasting = Signal(self.lanes, reset_less=True)  # lanes of that last beat
        inband = Signal(reset_less=True)
        held = {name: Signal(name=f"held_{name}") for name in ("mode", "hold", "tokens")}
        m.d.sync += [
            *(mine.eq(theirs) for mine, theirs in zip(self.out.data, self.data, strict=True)),
            self.out.valid.eq(0),
            self.out.header.eq(0),
            self.out.last.eq(0),
            self.out.error.eq(0),
            self.out.present.eq(0),
            self.bad_header.eq(0),
            self.length_error.eq(0),
        ]
        m.d.sync += self.out.masked.eq(self._masked(inband))
        with m.FSM(name="framing"):
            with m.State("HEADER"), m.If(self.valid):
                self._header(m, fields, beats, final, lasting, inband, held)
            with m.State("BODY"), m.If(self.valid):
                self._body(m, beats, final, lasting, held)
            with m.State("SKIP"), m.If(self.valid & self.last & self.framed):
                m.next = "HEADER"
        return m

    def _masked(self, inband: Signal) -> Value:
        return Cat(
            *(
                (self.framed & ~self.user[i]) | (inband & self.data[i][:32].all())
                for i in range(self.lanes)
            )
        )

    def _header(
        self, m: Module, fields: dict[str, Value], beats: Signal, final: Signal,
        lasting: Signal, inband: Signal, held: dict[str, Signal],
    ) -> None:  # fmt: skip
        length = fields["length"]
        names = {"mode": "mode", "hold": "hold", "tokens": "tokens_wanted"}
        truncated = self.framed & self.last & length.any()
        m.d.sync += [
            beats.eq((length + (self.lanes - 1)) >> self.shift),
            final.eq(length <= self.lanes),
            lasting.eq(self._lanes_of(length[: self.shift])),
            inband.eq(fields["inband_mask"]),
        ]
        with m.If(fields["magic"] != HEADER_MAGIC):
            m.d.sync += self.bad_header.eq(1)
            with m.If(~(self.framed & self.last)):
                m.next = "SKIP"
        with m.Else():
            for name, field in names.items():
                m.d.sync += [
                    held[name].eq(fields[field]),
                    getattr(self.out, name).eq(fields[field]),
                ]
            m.d.sync += [
                self.out.valid.eq(1),
                self.out.header.eq(1),
                self.out.last.eq(truncated | ~length.any()),
                self.out.error.eq(truncated),
                self.length_error.eq(truncated),
            ]
            with m.If(length.any() & ~truncated):
                m.next = "BODY"
            with m.Elif(~length.any() & self.framed & ~self.last):
                m.d.sync += [self.out.error.eq(1), self.length_error.eq(1)]
                m.next = "SKIP"

    def _body(
        self, m: Module, beats: Signal, final: Signal, lasting: Signal, held: dict[str, Signal]
    ) -> None:
        early = self.framed & self.last & ~final
        late = self.framed & final & ~self.last
        lanes = Mux(final, lasting, Const((1 << self.lanes) - 1, self.lanes))
        keep = self.keep | (~self.framed).replicate(self.lanes)
        m.d.sync += [
            self.out.valid.eq(1),
            self.out.present.eq(lanes & keep),
            self.out.last.eq(final | early),
            self.out.error.eq(early | late),
            self.length_error.eq(early | late),
            beats.eq(beats - 1),
            final.eq(beats == 2),
            *(getattr(self.out, name).eq(signal) for name, signal in held.items()),
        ]
        with m.If(late):
            m.next = "SKIP"
        with m.Elif(final | early):
            m.next = "HEADER"

    def _lanes_of(self, rest: Value) -> Value:
        """Lanes of the last beat: all when the length is a multiple of the lanes."""
        if self.lanes == 1:
            return Const(1, 1)
        whole = (1 << self.lanes) - 1
        return Array(Const((1 << k) - 1 if k else whole, self.lanes) for k in range(self.lanes))[
            rest
        ]
