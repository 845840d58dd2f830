"""cocotb bench of stream input, mask filter and queue: no beat lost, doubled, or mislabelled."""

from __future__ import annotations

import itertools
import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge

from twinscope_fpga.packing import Chunk, encode_header

LANES = int(os.environ["LANES"])
FRAMED = os.environ["FRAMED"] == "1"
GATE = float(os.environ["GATE"])  # chance that the gate may open in a clock


def beats_of(chunk: Chunk, rng: random.Random) -> list[dict[str, int]]:
    """The beats of a chunk with random payload, TKEEP and TUSER."""
    header = encode_header(chunk, inband_mask=chunk.tag % 2 == 1)
    beats = [{"tdata": header, "tkeep": (1 << 8 * LANES) - 1, "tuser": 0, "tlast": 0}]
    for _ in range(-(-chunk.length // LANES)):
        words = [rng.choice((0xFFFFFFFF, rng.getrandbits(64))) for _ in range(LANES)]
        keep = sum(rng.choice((0, 255, 255)) << 8 * i for i in range(LANES))
        beats.append(
            {
                "tdata": sum(word << 64 * i for i, word in enumerate(words)),
                "tkeep": keep,
                "tuser": rng.getrandbits(LANES),
                "tlast": 0,
            }
        )
    beats[-1]["tlast"] = 1
    return beats


def expected_lanes(chunk: Chunk, beats: list[dict[str, int]]) -> list[tuple[int, int]]:
    """(present, masked of the present ones) of every beat, header first."""
    lanes = [(0, 0)]
    for number, beat in enumerate(beats[1:]):
        present = masked = 0
        for i in range(LANES):
            here = number * LANES + i < chunk.length
            here &= not FRAMED or bool(beat["tkeep"] >> 8 * i & 1)
            word = beat["tdata"] >> 64 * i & 0xFFFFFFFF
            out = (FRAMED and not beat["tuser"] >> i & 1) or (
                chunk.tag % 2 == 1 and word == 0xFFFFFFFF
            )
            present |= here << i
            masked |= (here and out) << i
        lanes.append((present, masked))
    return lanes


@cocotb.test()
async def beats_come_out_once_in_order_and_labelled(dut) -> None:  # type: ignore[no-untyped-def]
    """Random lengths and modes against a source that pauses and a gate that closes."""
    rng = random.Random(f"{LANES} {FRAMED} {GATE}")
    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    chunks = [
        Chunk(tag, 0, rng.choice([0, 1, LANES, LANES + 1, 5 * LANES + 1, 40]), mode=tag // 15 % 2)
        for tag in range(60)
    ]
    packets = [(chunk, beats_of(chunk, rng)) for chunk in chunks]
    to_send = [beat for _, beats in packets for beat in beats]
    wanted = []
    for chunk, beats in packets:
        lanes = expected_lanes(chunk, beats)
        for k, (beat, (present, masked)) in enumerate(zip(beats, lanes, strict=True)):
            wanted.append((beat["tdata"], present, masked, k == 0, k == len(beats) - 1, chunk.mode))
    dut.rst.value, dut.framed.value, dut.tvalid.value = 1, FRAMED, 0
    for name in ("tdata", "tkeep", "tuser", "tlast", "record_credit", "token_credit", "drained"):
        getattr(dut, name).value = 0
    await ClockCycles(dut.clk, 3)
    dut.rst.value = 0
    got, ends, clock, ready = [], [], 0, 0
    while len(got) < len(wanted) and clock < 20_000:
        await FallingEdge(dut.clk)
        clock += 1
        if int(dut.tvalid.value) and ready:
            to_send.pop(0)
        offer = bool(to_send) and rng.random() < 0.8
        if int(dut.tvalid.value) and not ready:
            offer = True
        dut.tvalid.value = int(offer)
        if offer:
            for name, value in to_send[0].items():
                getattr(dut, name).value = value
        ready = int(dut.tready.value)
        dut.record_credit.value = int(rng.random() < GATE)
        dut.token_credit.value = 1
        dut.drained.value = int(rng.random() < 0.2)
        if int(dut.out_valid.value):
            present = int(dut.out_present.value)
            got.append(
                (
                    int(dut.out_data.value),
                    present,
                    int(dut.out_masked.value) & present,
                    bool(dut.out_header.value),
                    bool(dut.out_last.value),
                    int(dut.out_mode.value),
                )
            )
            if int(dut.out_last.value):
                ends.append(clock)
    assert got == wanted
    assert all(later - sooner >= 4 for sooner, later in itertools.pairwise(ends))
