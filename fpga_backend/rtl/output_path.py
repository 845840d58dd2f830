"""Accumulators and record output in a row: everything behind the lanes."""

from __future__ import annotations

from amaranth.hdl import Elaboratable, Module, Signal

from rtl.accumulate import Accumulate
from rtl.record_output import RecordOutput


class OutputPath(Elaboratable):
    """Lane results and chunk ends in, records out. `take` announces an end, as the gate does."""

    def __init__(self, *, lanes: int, depth: int = 64) -> None:
        self.accumulate = Accumulate(lanes=lanes)
        self.output = RecordOutput(depth=depth)

    def ports(self) -> dict[str, Signal]:
        """Port names of the bench."""
        total, output = self.accumulate, self.output
        ports = {"end": total.end, "take": output.take, "credit": output.credit}
        ports |= {"tag": output.tag, "status": output.status}
        for name in ("value", "square", "fixed", "size", "flags"):
            ports |= {f"{name}{i}": signal for i, signal in enumerate(getattr(total, name))}
        names = ("tdata", "tlast", "tvalid", "tready")
        return ports | {f"m_axis_{name}": getattr(output, name) for name in names}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        total, output = self.accumulate, self.output
        m.submodules.accumulate, m.submodules.output = total, output
        m.d.comb += [
            output.snapshot.eq(total.snapshot),
            output.largest.eq(total.largest),
            *(a.eq(b) for a, b in zip(output.sums, total.sums, strict=True)),
            *(a.eq(b) for a, b in zip(output.counts, total.counts, strict=True)),
        ]
        return m
