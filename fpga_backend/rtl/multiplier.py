"""18x18 multiplier with three registers (input, middle, output), and `mul3` made of three of them.

On ECP5 the block is instantiated, because yosys does not pack registers into it; elsewhere the
same three registers are written out and the vendor's tool retimes them into its own block.
"""

from __future__ import annotations

from amaranth.hdl import ClockSignal, Elaboratable, Instance, Module, Signal, signed

from rtl.pipeline import Pipe, Staged

LATENCY = 3


class Multiplier18(Elaboratable):
    """product = a · b, LATENCY clocks later. a, b: 18 bits; both signed or both unsigned."""

    def __init__(self, *, is_signed: bool = False, ecp5: bool = False) -> None:
        self.is_signed, self.ecp5 = is_signed, ecp5
        self.a = Signal(18)
        self.b = Signal(18)
        self.product = Signal(36)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        if self.ecp5:
            m.submodules.block = self._block()
            return m
        shape = signed(18) if self.is_signed else 18
        a, b = Signal(shape, reset_less=True), Signal(shape, reset_less=True)
        middle, last = Signal(36, reset_less=True), Signal(36, reset_less=True)
        m.d.sync += [a.eq(self.a), b.eq(self.b), middle.eq(a * b), last.eq(middle)]
        m.d.comb += self.product.eq(last)
        return m

    def _block(self) -> Instance:
        registers = {
            f"p_REG_{name}_CLK": "CLK0" for name in ("INPUTA", "INPUTB", "PIPELINE", "OUTPUT")
        }
        word = {f"i_A{i}": self.a[i] for i in range(18)}
        word |= {f"i_B{i}": self.b[i] for i in range(18)}
        word |= {f"o_P{i}": self.product[i] for i in range(36)}
        controls = {f"i_CE{i}": 1 for i in range(4)} | {f"i_RST{i}": 0 for i in range(4)}
        return Instance(
            "MULT18X18D",
            p_CLK0_DIV="ENABLED",
            **registers,
            **word,
            **controls,
            i_CLK0=ClockSignal(),
            i_CLK1=0,
            i_CLK2=0,
            i_CLK3=0,
            i_SIGNEDA=int(self.is_signed),
            i_SIGNEDB=int(self.is_signed),
            i_SOURCEA=0,
            i_SOURCEB=0,
        )


class Product3:
    """golden.mul3 in hardware: (32-bit x · 28-bit y) / 2^24, 36 bits, five stages."""

    STAGES = LATENCY + 2

    def __init__(self, m: Module, name: str, *, ecp5: bool) -> None:
        self.x, self.y = Signal(32, name=f"{name}_x"), Signal(28, name=f"{name}_y")
        self._outs = []
        x_high, x_low, y_high, y_low = self.x[14:], self.x[:14], self.y[10:], self.y[:10]
        for part, a, b in (("hh", x_high, y_high), ("hl", x_high, y_low), ("lh", x_low, y_high)):
            block = Multiplier18(ecp5=ecp5)
            m.submodules[f"{name}_{part}"] = block
            m.d.comb += [block.a.eq(a), block.b.eq(b)]
            self._outs.append(block.product)
        cross = Signal(33, name=f"{name}_cross", reset_less=True)
        high = Signal(36, name=f"{name}_high", reset_less=True)
        self.product = Signal(36, name=f"{name}_product", reset_less=True)
        top, left, right = self._outs
        m.d.sync += [
            cross.eq((left[:28] << 4) + right[:32]),
            high.eq(top),
            self.product.eq(high + cross[14:]),
        ]

    def result(self, pipe: Pipe, stage: int, name: str) -> Staged:
        """The product of inputs applied at `stage`."""
        return pipe.source(self.product, stage + self.STAGES, name)
