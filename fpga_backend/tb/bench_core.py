"""cocotb bench of the compute core alone: a token every clock, holes in between, both modes."""

from __future__ import annotations

import os

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge

from rtl.compute_core import FLAG_NAMES, LATENCY
from tb.bench_engine import draw
from twinscope_fpga import golden

MODE = int(os.environ["MODE"])
CLAMP = float(os.environ["CLAMP"])
TOKENS = 1200
OUTPUTS = ("value", "square", "fixed", "size", "flags")


@cocotb.test()
async def every_token_equals_golden_after_exactly_latency_clocks(dut) -> None:  # type: ignore[no-untyped-def]
    """Value, square, fixed, size and flags of every slot; empty slots give nothing."""
    rng = np.random.default_rng(MODE)
    q, p = draw(rng, TOKENS)
    present, masked = rng.random(TOKENS) < 0.8, rng.random(TOKENS) < 0.1
    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    dut.mode.value, dut.clamp.value = MODE, int(np.float32(CLAMP).view(np.uint32))
    dut.rst.value = 0
    dut.present.value = dut.masked.value = dut.rollout.value = dut.train.value = 0
    await ClockCycles(dut.clk, 60)
    seen = []
    for slot in range(TOKENS + LATENCY):
        await FallingEdge(dut.clk)
        if slot >= LATENCY:
            seen.append(
                [int(getattr(dut, n).value) for n in ("value", "square", "fixed", "size", "flags")]
            )
        inside = slot < TOKENS
        dut.rollout.value = int(q[slot]) if inside else 0
        dut.train.value = int(p[slot]) if inside else 0
        dut.present.value = int(inside and present[slot])
        dut.masked.value = int(inside and masked[slot])
    expected = golden.compute(q, p, masked, mode=MODE, clamp=CLAMP)
    for slot, (value, square, fixed, size, flags) in enumerate(seen):
        if not present[slot]:
            assert value == square == fixed == flags == 0
            continue
        wanted = (int(expected.value_high[slot]) << 44) | int(expected.value_low[slot])
        assert value == wanted, f"slot {slot}: {q[slot]:#x} {p[slot]:#x}"
        product = (int(expected.square_high[slot]) << 36) | int(expected.square_low[slot])
        if MODE and expected.negative[slot]:
            product ^= (1 << 72) - 1
        assert square == product
        assert fixed == expected.fixed[slot]
        if expected.counted[slot]:
            assert size == expected.difference[slot] & 0x7FFFFFFF
        named = dict(zip(FLAG_NAMES, f"{flags:011b}"[::-1], strict=True))
        for name in FLAG_NAMES[1:]:
            assert int(named[name]) == int(getattr(expected, name)[slot]), name
