"""The coefficient ROMs, two ports each, so that two lanes share one copy."""

from __future__ import annotations

from amaranth.hdl import Elaboratable, Module, Signal, unsigned
from amaranth.lib.memory import Memory

from twinscope_fpga.tables import Tables, coefficient_tables

LINE_BITS, POWER_BITS = 45, 36


def line_words(tables: Tables) -> list[int]:
    """c0 in the low 27 bits, c1 (two's complement, 18 bits) above."""
    return [
        int(value) | (int(slope) & 0x3FFFF) << 27
        for value, slope in zip(tables.value, tables.slope, strict=True)
    ]


def power_words(tables: Tables) -> list[int]:
    """Mantissa in the low 28 bits, exponent (two's complement, 8 bits) above."""
    return [
        int(mantissa) | (int(exponent) & 0xFF) << 28
        for mantissa, exponent in zip(tables.mantissa, tables.exponent, strict=True)
    ]


class TableRom(Elaboratable):
    """Both ROMs for up to two lanes. Address in, word out one clock later.

    `flip`: (address, bit) to corrupt, for the mutation tests only.
    """

    def __init__(self, *, lanes: int, flip: tuple[int, int] | None = None) -> None:
        self.lanes, self.flip = lanes, flip
        self.line_address = [Signal(11, name=f"line_address{i}") for i in range(lanes)]
        self.line_word = [Signal(LINE_BITS, name=f"line_word{i}") for i in range(lanes)]
        self.power_address = [Signal(8, name=f"power_address{i}") for i in range(lanes)]
        self.power_word = [Signal(POWER_BITS, name=f"power_word{i}") for i in range(lanes)]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        tables = coefficient_tables()
        lines = line_words(tables)
        if self.flip is not None:
            lines[self.flip[0]] ^= 1 << self.flip[1]
        for name, bits, words, address, word in (
            ("lines", LINE_BITS, lines, self.line_address, self.line_word),
            ("powers", POWER_BITS, power_words(tables), self.power_address, self.power_word),
        ):
            memory = Memory(shape=unsigned(bits), depth=len(words), init=words)
            m.submodules[name] = memory
            for i in range(self.lanes):
                port = memory.read_port()
                m.d.comb += [port.en.eq(1), port.addr.eq(address[i]), word[i].eq(port.data)]
        return m
