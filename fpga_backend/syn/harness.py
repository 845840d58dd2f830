"""A shell that lets the engine be placed and routed without a thousand pins.

Inputs come from a shift register, outputs are captured and folded by xor into one pin. Nothing of
the engine can be optimised away, and every path of it starts and ends in a register.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Elaboratable, Module, Signal

from rtl.engine import Engine


class Harness(Elaboratable):
    """One input pin, one output pin, one clock around an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.serial_in = Signal()
        self.serial_out = Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.engine = self.engine
        ports = self.engine.ports()
        outputs = [s for name, s in ports.items() if is_output(name)]
        inputs = [s for name, s in ports.items() if not is_output(name)]
        width = sum(len(signal) for signal in inputs)
        chain = Signal(width, reset_less=True)
        m.d.sync += chain.eq(Cat(self.serial_in, chain[:-1]))
        m.d.comb += Cat(*inputs).eq(chain)
        level = Cat(*outputs)
        captured = Signal(len(level), reset_less=True)
        m.d.sync += captured.eq(level)
        folded = captured
        while len(folded) > 1:
            step = Signal(-(-len(folded) // 4), reset_less=True)
            m.d.sync += step.eq(Cat(*(folded[i : i + 4].xor() for i in range(0, len(folded), 4))))
            folded = step
        m.d.comb += self.serial_out.eq(folded)
        return m


def is_output(name: str) -> bool:
    """Direction of an AXI port from its name."""
    stream = name.split("_")[0] == "m"
    if name.endswith(("tready",)):
        return not stream
    if "axis" in name:
        return stream
    return name.split("_")[-1] in (
        "awready", "wready", "bresp", "bvalid", "arready", "rdata", "rresp", "rvalid",
    )  # fmt: skip
