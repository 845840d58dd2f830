"""cocotb bench of the whole engine: framed AXI4-Stream with TKEEP, TUSER and TLAST, AXI4-Lite."""

from __future__ import annotations

import itertools
import os
import random

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotbext.axi import (
    AxiLiteBus,
    AxiLiteMaster,
    AxiStreamBus,
    AxiStreamFrame,
    AxiStreamSink,
    AxiStreamSource,
)

from twinscope_fpga import golden
from twinscope_fpga.packing import Chunk, decode_records, encode_header
from twinscope_fpga.registers import CONTROL, ERROR, IDENTITY, OFFSET, UNMAPPED
from twinscope_fpga.selftest import SPECIAL

LANES = int(os.environ["LANES"])
IDLE = os.environ["IDLE"] == "1"
STALL = os.environ["STALL"] == "1"
COVERED: set[str] = set()  # functional coverage of this run, checked at the end


def pauses(seed: int):  # type: ignore[no-untyped-def]
    """Random runs of pause and go."""
    rng = random.Random(seed)
    while True:
        yield from itertools.repeat(rng.random() < 0.5, rng.randint(1, 9))


async def start(dut):  # type: ignore[no-untyped-def]
    """Clock, reset, and the three ports."""
    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    source = AxiStreamSource(AxiStreamBus.from_prefix(dut, "s_axis"), dut.clk, dut.rst)
    sink = AxiStreamSink(AxiStreamBus.from_prefix(dut, "m_axis"), dut.clk, dut.rst)
    registers = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
    dut.m_axis_token_tready.value = 1
    dut.rst.value = 1
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    await ClockCycles(dut.clk, 130)
    if IDLE:
        source.set_pause_generator(pauses(1))
    if STALL:
        sink.set_pause_generator(pauses(2))
    await registers.write_dword(OFFSET["control"], CONTROL["enable"] | CONTROL["framed"])
    return source, sink, registers


def frame(chunk: Chunk, q, p, mask, absent):  # type: ignore[no-untyped-def]
    """One packet: header beat and data beats; masked tokens by TUSER, absent ones by TKEEP."""
    beats = -(-chunk.length // LANES)
    data = np.zeros(((1 + beats) * LANES, 2), dtype="<u4")
    data.view("<u8")[0, 0] = encode_header(chunk, inband_mask=False)
    data[LANES : LANES + chunk.length] = np.stack([q, p], axis=1)
    keep = np.ones(((1 + beats) * LANES, 8), dtype=np.uint8)
    keep[LANES : LANES + chunk.length][absent] = 0
    user = np.ones(((1 + beats), LANES), dtype=np.int64)
    user.reshape(-1)[LANES : LANES + chunk.length] = mask
    word = (user << np.arange(LANES)).sum(axis=1)
    return AxiStreamFrame(
        data.tobytes(),
        tkeep=keep.reshape(-1).tolist(),
        tuser=np.repeat(word, 8 * LANES).tolist(),
    )


def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """A mixture of healthy pairs, wide pairs and special words."""
    q = -rng.exponential(1, count).astype(np.float32)
    p = np.minimum(q + rng.normal(0, 10.0 ** rng.uniform(-4, 1, count)), 0).astype(np.float32)
    words_q, words_p = q.view(np.uint32).copy(), p.view(np.uint32).copy()
    for words in (words_q, words_p):
        some = rng.random(count) < 0.1
        words[some] = rng.choice(np.array(SPECIAL, dtype=np.uint32), some.sum())
    return words_q, words_p


@cocotb.test()
async def framed_chunks_equal_golden(dut) -> None:  # type: ignore[no-untyped-def]
    """Random lengths, masks, holes, both modes: every record equals the golden sums."""
    source, sink, registers = await start(dut)
    rng = np.random.default_rng([LANES, IDLE, STALL])
    for tag in range(40):
        length = int(rng.choice([0, 1, 2, LANES, LANES + 1, 3 * LANES, int(rng.integers(40, 90))]))
        mode = int(rng.random() < 0.3)
        q, p = draw(rng, length)
        mask = (rng.random(length) < (0.0 if tag % 11 == 5 else 0.8)).astype(np.int64)
        absent = rng.random(length) < 0.05
        await source.send(frame(Chunk(tag, 0, length, mode=mode), q, p, mask, absent))
        COVERED.update((f"length {min(length, 2)}", f"mode {mode}"))
        if length and not mask.any():
            COVERED.add("all masked")
        received = await sink.recv()
        records, intact = decode_records(bytes(received.tdata))
        here = ~absent
        results = golden.compute(q[here], p[here], mask[here] == 0, mode=mode)
        sums, counts, largest = golden.sum_tokens(results, mode=mode)
        assert intact.all()
        assert records.tag[0] == tag
        assert records.status[0] == mode
        assert (records.sums[0] == sums).all()
        assert (records.counts[0] == counts).all()
        assert records.max_abs[0] == largest
    assert await registers.read_dword(OFFSET["errors"]) == 0
    assert {"length 0", "length 1", "length 2", "mode 0", "mode 1", "all masked"} <= COVERED


@cocotb.test()
async def many_chunks_in_flight_keep_their_order(dut) -> None:  # type: ignore[no-untyped-def]
    """All sent before any record is taken: credits, order, serial numbers."""
    source, sink, _ = await start(dut)
    sink.clear_pause_generator()  # the stalls of the crossing would take records
    sink.pause = True
    rng = np.random.default_rng(9)
    expected = []
    for tag in range(150):
        length = int(rng.integers(0, 3 * LANES))
        q, p = draw(rng, length)
        none = np.zeros(length, dtype=bool)
        await source.send(frame(Chunk(tag, 0, length), q, p, np.ones(length, dtype=int), none))
        expected.append(golden.sum_tokens(golden.compute(q, p))[0])
    await ClockCycles(dut.clk, 2500)
    assert not source.idle()  # the last ones wait for credits
    sink.pause = False
    for tag in range(150):
        records, intact = decode_records(bytes((await sink.recv()).tdata))
        assert intact.all()
        assert records.tag[0] == records.serial[0] == tag
        assert (records.sums[0] == expected[tag]).all()


@cocotb.test()
async def a_wrong_tlast_is_reported_in_record_and_register(dut) -> None:  # type: ignore[no-untyped-def]
    """Too early: the record counts what came; too late: the rest is skipped; then all is well."""
    source, sink, registers = await start(dut)
    rng = np.random.default_rng(4)
    length = 5 * LANES
    q, p = draw(rng, length)
    ones, none = np.ones(length, dtype=int), np.zeros(length, dtype=bool)
    for promised, counted in ((7 * LANES, length), (3 * LANES, 3 * LANES)):
        packet = frame(Chunk(1, 0, length), q, p, ones, none)
        header = encode_header(Chunk(1, 0, promised), inband_mask=False)
        packet.tdata = bytearray(header.to_bytes(8, "little")) + packet.tdata[8:]
        await source.send(packet)
        records, _ = decode_records(bytes((await sink.recv()).tdata))
        assert records.status[0] == 2
        assert records.count("received")[0] == counted
        await RisingEdge(dut.clk)
        assert await registers.read_dword(OFFSET["errors"]) == ERROR["length"]
        await registers.write_dword(OFFSET["errors"], ERROR["length"])
        assert await registers.read_dword(OFFSET["errors"]) == 0
    await source.send(frame(Chunk(2, 0, length), q, p, ones, none))
    records, _ = decode_records(bytes((await sink.recv()).tdata))
    assert records.status[0] == 0
    assert (records.sums[0] == golden.sum_tokens(golden.compute(q, p))[0]).all()


@cocotb.test()
async def registers_answer_by_the_rules_of_axi_lite(dut) -> None:  # type: ignore[no-untyped-def]
    """Identity, a read-write word, a hole, a read-only write."""
    _, _, registers = await start(dut)
    assert await registers.read_dword(OFFSET["id"]) == IDENTITY
    await registers.write_dword(OFFSET["scratch"], 0xCAFEF00D)
    assert await registers.read_dword(OFFSET["scratch"]) == 0xCAFEF00D
    hole = await registers.read(0x7C, 4)
    assert int.from_bytes(hole.data, "little") == UNMAPPED
    assert hole.resp == 2
    assert (await registers.write(OFFSET["id"], bytes(4))).resp == 2
    shape = await registers.read_dword(OFFSET["shape"])
    assert shape & 0xFF == LANES


@cocotb.test()
async def the_high_word_belongs_to_the_low_word_read_before_it(dut) -> None:  # type: ignore[no-untyped-def]
    """The low word of `cycles` wraps in each clock of a read in turn: never off by 2^32."""
    _, _, registers = await start(dut)
    for ahead in range(1, 13):
        await FallingEdge(dut.clk)
        first = (7 << 32) - ahead
        dut.control.cycles.value, dut.control.cycles_carry.value = first, 0
        low = await registers.read_dword(OFFSET["cycles"])
        high = await registers.read_dword(OFFSET["cycles_high"])
        assert 0 < (high << 32 | low) - first < 100, f"{ahead} clocks before the wrap"


@cocotb.test()
async def a_reset_amid_records_leaves_nothing_behind(dut) -> None:  # type: ignore[no-untyped-def]
    """Short chunks without end, a reset at every phase of the serialiser: the next record is whole
    and holds its own chunk only."""
    source, sink, registers = await start(dut)
    on = CONTROL["enable"] | CONTROL["framed"]
    q, p = draw(np.random.default_rng(5), LANES)
    ones, none = np.ones(LANES, dtype=int), np.zeros(LANES, dtype=bool)
    sums, _, _ = golden.sum_tokens(golden.compute(q, p))
    for wait in range(8):
        for tag in range(60):
            await source.send(frame(Chunk(tag, 0, LANES), q, p, ones, none))
        await ClockCycles(dut.clk, 80 + wait)
        await registers.write_dword(OFFSET["control"], on | CONTROL["reset"])
        source.clear()
        await ClockCycles(dut.clk, 140)
        await source.wait()
        sink.clear()
        await source.send(frame(Chunk(99, 0, LANES), q, p, ones, none))
        tag = -1
        while tag != 99:  # a chunk that the source held in its hands comes first
            last = bytes((await sink.recv()).tdata)[-128:]  # before it, beats of a record cut off
            records, intact = decode_records(last)
            tag = int(records.tag[0])
            assert intact.all(), f"damaged after a reset at {wait}"
            assert records.serial[0] <= 1
        assert (records.sums[0] == sums).all()
