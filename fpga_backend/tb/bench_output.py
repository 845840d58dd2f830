"""cocotb bench of accumulators and record output: exact sums, clears, order, checksums, credits."""

from __future__ import annotations

import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge

from rtl.compute_core import FLAG_NAMES
from twinscope_fpga.formats import COUNTS, SUMS
from twinscope_fpga.packing import decode_records

LANES = int(os.environ["LANES"])
STALL = float(os.environ["STALL"])
ZERO = {"value": 0, "square": 0, "fixed": 0, "size": 0, "flags": 0}


def draw_slot(rng: random.Random) -> dict[str, int]:
    """Results of one lane in one clock; extremes often."""
    flags = {name: rng.random() < 0.5 for name in FLAG_NAMES}
    if rng.random() < 0.2:
        return dict(ZERO)
    wide = rng.choice((0, 1, (1 << 88) - 1, rng.getrandbits(88)))
    counted = flags["counted"]
    return {
        "value": wide * counted,
        "square": rng.choice(((1 << 72) - 1, rng.getrandbits(72))) * counted,
        "fixed": rng.choice(((1 << 46) - 1, rng.getrandbits(46))) * counted,
        "size": rng.getrandbits(31),
        "flags": sum(flag << i for i, flag in enumerate(flags.values())),
    }


def add_slot(totals: dict[str, int], slot: dict[str, int]) -> None:
    """The same sums in Python integers, segment by segment."""
    bit = {name: slot["flags"] >> i & 1 for i, name in enumerate(FLAG_NAMES)}
    sided = {"above": 1 - bit["negative"], "below": bit["negative"]}
    for entry in SUMS:
        number = slot["fixed"] * sided[entry.name] if entry.name in sided else slot[entry.name]
        for i in range(entry.segments):
            totals[f"{entry.name}{i}"] += number >> i * entry.bits & ((1 << entry.bits) - 1)
    for name in COUNTS:
        totals[name] += bit["present" if name == "received" else name]
    if bit["counted"]:
        totals["largest"] = max(totals["largest"], slot["size"])


def nothing() -> dict[str, int]:
    """Empty accumulators."""
    names = [f"{entry.name}{i}" for entry in SUMS for i in range(entry.segments)]
    return dict.fromkeys((*names, *COUNTS, "largest"), 0)


@cocotb.test()
async def records_are_exact_sums_in_order(dut) -> None:  # type: ignore[no-untyped-def]
    """Chunks of 1 to 20 beats as close as the gate allows, a sink that stalls."""
    rng = random.Random(f"{LANES} {STALL}")
    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    dut.tag.value = dut.status.value = dut.take.value = dut.end.value = 0
    dut.m_axis_tready.value = 0
    dut.rst.value = 1
    drive(dut, [ZERO] * LANES)
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    expected: list[dict[str, int]] = []
    received, clock = bytearray(), 0
    plan: list[str] = []
    totals = nothing()
    while len(received) < 60 * 128:
        await FallingEdge(dut.clk)
        clock += 1
        assert clock < 20_000, (
            f"{len(expected)} ends, {len(received)} bytes, credit {dut.credit.value}"
        )
        if not plan and len(expected) < 60 and int(dut.credit.value):
            body = rng.randint(1, 20)
            plan = ["gap"] * max(1, 4 - body) + ["beat"] * (body - 1) + ["last"]
        step = plan.pop(0) if plan else "gap"
        slots = [draw_slot(rng) if step != "gap" else dict(ZERO) for _ in range(LANES)]
        for slot in slots:
            add_slot(totals, slot)
        drive(dut, slots)
        dut.end.value = dut.take.value = int(step == "last")
        if step == "last":
            expected.append(totals)
            totals = nothing()
        ready = rng.random() >= STALL
        dut.m_axis_tready.value = int(ready)
        if ready and int(dut.m_axis_tvalid.value):  # taken at the coming edge
            received += int(dut.m_axis_tdata.value).to_bytes(32, "little")
    records, intact = decode_records(bytes(received))
    assert intact.all()
    assert records.serial.tolist() == list(range(60))
    for i, wanted in enumerate(expected):
        words = [wanted[f"{entry.name}{k}"] for entry in SUMS for k in range(entry.segments)]
        assert records.sums[i].tolist() == words
        assert records.counts[i].tolist() == [wanted[name] for name in COUNTS]
        assert records.max_abs[i] == wanted["largest"]


def drive(dut, slots: list[dict[str, int]]) -> None:  # type: ignore[no-untyped-def]
    """Put the lanes' results on the ports."""
    for lane, slot in enumerate(slots):
        for name, value in slot.items():
            getattr(dut, f"{name}{lane}").value = value
