"""The RTL, clock by clock, against the golden arithmetic, through the driver that a board uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinscope_fpga.device import Device, merge_records
from twinscope_fpga.emulator import EmulatedDevice
from twinscope_fpga.errors import FramingLost, WrongDevice
from twinscope_fpga.packing import Chunk, Records
from twinscope_fpga.registers import ERROR, OFFSET, REGISTERS, UNMAPPED
from twinscope_fpga.selftest import SPECIAL, self_test
from twinscope_fpga.simulation import SimulatedDevice

from .conftest import KINDS, draw_pairs
from .equivalence import THROTTLES, compare, different

LANES = (1, 2, 4, 8)
Library = Callable[[int], Path]


def opened(library: Library, lanes: int = 4, idle: int = 0, stall: int = 0) -> Device:
    """A fresh simulated device."""
    return Device(
        SimulatedDevice(lanes=lanes, idle=idle, stall=stall, library=library(lanes), seed=7),
        timeout_s=200.0,
    )


def same(found: Records, expected: Records) -> bool:
    """Every field of every record."""
    names = ("tag", "status", "sums", "counts", "max_abs")
    return all(np.array_equal(getattr(found, n), getattr(expected, n)) for n in names)


def ragged(lanes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(offsets, mask): lengths from 0 up, all around the beat size, and one sample all masked."""
    rng = np.random.default_rng(seed)
    edges = [0, 1, 0, 0, lanes, lanes + 1, 2 * lanes - 1, 3 * lanes, 4 * lanes, 1, 1, 1]
    lengths = np.concatenate([edges, rng.integers(0, 6 * lanes, 60), rng.integers(0, 500, 8), [40]])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    mask = (rng.random(offsets[-1]) < 0.7).astype(np.uint8)
    mask[offsets[-2] :] = 0
    return offsets, mask


@pytest.mark.parametrize("throttle", THROTTLES)
@pytest.mark.parametrize("lanes", LANES)
def test_rtl_equals_golden_in_both_modes(libraries: Library, lanes: int, throttle: str) -> None:
    """All data kinds, masked and not, sequences from 0 tokens up, mode changes in between."""
    idle, stall = THROTTLES[throttle]
    device, golden = opened(libraries, lanes, idle, stall), Device(EmulatedDevice(lanes=lanes))
    offsets, mask = ragged(lanes, seed=lanes)
    for kind in KINDS:
        q, p = draw_pairs(kind, int(offsets[-1]), seed=lanes)
        for mode in (0, 1, 0):
            for chosen in (None, mask):
                arguments = {"mask": chosen, "mode": mode, "clamp": 20.0 if mode else 5.5}
                assert same(
                    device.measure(q, p, offsets, **arguments),
                    golden.measure(q, p, offsets, **arguments),
                )


@pytest.mark.parametrize("lanes", LANES)
def test_ten_million_tokens_bit_for_bit(libraries: Library, lanes: int) -> None:
    """2.5 million per number of lanes: every kind of data under every throttling, both modes,
    pieces in random order, empty and all-masked sequences (`make equivalence`: 10^7 each)."""
    libraries(lanes)
    tokens, sequences, wrong, _ = compare(lanes, 2_500_000)
    assert (wrong, tokens) == (0, 2_500_000)
    assert sequences > 8000


def test_the_comparison_sees_one_unit_in_one_sum() -> None:
    """Else the test above proves nothing."""
    golden = Device(EmulatedDevice())
    q, p = draw_pairs("healthy", 40)
    records = golden.measure(q, p, np.array([0, 10, 40]))
    sums = records.sums.copy()
    sums[1, 3] += 1
    assert different(records, replace(records, sums=sums)).tolist() == [False, True]


@given(
    st.lists(
        st.lists(
            st.tuples(*[st.one_of(st.sampled_from(SPECIAL), st.integers(0, 2**32 - 1))] * 2),
            max_size=24,
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0, 1]),
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_words_in_any_cut(
    libraries: Library, sequences: list[list[tuple[int, int]]], mode: int
) -> None:
    """Hypothesis looks for a pair or a cut on which RTL and golden model differ."""
    device, golden = opened(libraries, 2), Device(EmulatedDevice(lanes=2))
    words = np.array([w for s in sequences for w in s], dtype=np.uint32).reshape(-1, 2)
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in sequences])]).astype(np.int64)
    q, p = np.ascontiguousarray(words.T)
    assert same(device.measure(q, p, offsets, mode=mode), golden.measure(q, p, offsets, mode=mode))


@pytest.mark.parametrize("lanes", LANES)
def test_interleaved_sequences_add_up(libraries: Library, lanes: int) -> None:
    """Pieces of eight sequences in random order: the same sums as one after the other."""
    rng = np.random.default_rng(3)
    q, p = draw_pairs("log-uniform", 8 * 300)
    pieces = [
        Chunk(tag=tag, start=300 * tag + start, length=50)
        for tag in range(8)
        for start in range(0, 300, 50)
    ]
    device = opened(libraries, lanes, 40, 60)
    order = [pieces[i] for i in rng.permutation(len(pieces))]
    interleaved = merge_records([device.send_chunks(q, p, order, None)], 8)
    offsets = np.arange(0, 2401, 300)
    assert same(interleaved, Device(EmulatedDevice()).measure(q, p, offsets))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", KINDS)
def test_token_stream_equals_golden(libraries: Library, lanes: int, kind: str) -> None:
    """Every token's own k3, Δ and flags, with a sink that stalls."""
    q, p = draw_pairs(kind, 333)
    found = opened(libraries, lanes, 0, 150).tokens(q, p)
    expected = Device(EmulatedDevice(lanes=lanes)).tokens(q, p)
    assert np.array_equal(found.value, expected.value)
    assert np.array_equal(found.difference.view(np.uint32), expected.difference.view(np.uint32))
    assert np.array_equal(found.flags, expected.flags)


def test_short_sequences_fill_the_record_queue_without_loss(libraries: Library) -> None:
    """600 one-beat sequences back to back against a sink that hardly takes anything."""
    q, p = draw_pairs("healthy", 600 * 4)
    offsets = np.arange(0, 2401, 4)
    found = opened(libraries, 4, 0, 250).measure(q, p, offsets)
    assert same(found, Device(EmulatedDevice()).measure(q, p, offsets))


def test_a_held_batch_gives_one_record(libraries: Library) -> None:
    """Batch sum on the device."""
    offsets, mask = ragged(4, seed=9)
    q, p = draw_pairs("healthy", int(offsets[-1]))
    found = opened(libraries).batch_total(q, p, offsets, mask=mask)
    assert same(found, Device(EmulatedDevice()).batch_total(q, p, offsets, mask=mask))


def clocks(device: SimulatedDevice, driver: Device, q: np.ndarray, chunks: list[Chunk]) -> int:
    """Clocks from the first beat offered to the last record taken, register reads left out."""
    from twinscope_fpga.packing import pack_chunks

    data = pack_chunks(q, q, chunks, lanes=driver.info.lanes)
    before = device.cycles
    device.exchange(data, records=128 * len(chunks), tokens=0, timeout_s=100.0)
    return device.cycles - before


@pytest.mark.parametrize("lanes", LANES)
def test_one_beat_per_clock_without_a_bubble(libraries: Library, lanes: int) -> None:
    """Back-to-back chunks of four beats (header and three) keep the input busy every clock."""
    device = SimulatedDevice(lanes=lanes, library=libraries(lanes))
    driver = Device(device)
    q, _ = draw_pairs("healthy", 3 * lanes)
    latency = clocks(device, driver, q, [Chunk(tag=0, start=0, length=3 * lanes)])
    many = [Chunk(tag=i, start=0, length=3 * lanes) for i in range(500)]
    assert clocks(device, driver, q, many) == latency + 499 * 4
    assert driver.counters()["stall_in"] == 0


@pytest.mark.parametrize("lanes", LANES)
def test_a_one_beat_sequence_answers_within_64_clocks(libraries: Library, lanes: int) -> None:
    """From the clock that takes the token's beat to the first beat of its record."""
    device = SimulatedDevice(lanes=lanes, library=libraries(lanes))
    driver = Device(device)
    q, _ = draw_pairs("healthy", lanes)
    total = clocks(device, driver, q, [Chunk(tag=0, start=0, length=lanes)])
    header_and_record_beats = 1 + 3
    assert total - header_and_record_beats <= 64


def test_registers_read_as_declared(libraries: Library) -> None:
    """Every register answers; holes and read-only ones refuse."""
    device = SimulatedDevice(lanes=4, library=libraries(4))
    for register in REGISTERS:
        value = device.read_register(register.offset)
        if register.reset:
            assert value == register.reset
    assert device.read_register(0x7C) == UNMAPPED
    assert device.read_register(0x100) == UNMAPPED
    device.write_register(OFFSET["scratch"], 0x12345678)
    assert device.read_register(OFFSET["scratch"]) == 0x12345678
    for offset in (OFFSET["id"], 0x7C, 0x800):
        with pytest.raises(WrongDevice):
            device.write_register(offset, 1)
    assert device.read_register(OFFSET["id"]) == REGISTERS[0].reset


def test_lost_framing_is_reported_and_a_reset_recovers(libraries: Library) -> None:
    """Noise where a header should be: sticky error, nothing taken for data, then a clean start."""
    transport = SimulatedDevice(lanes=4, library=libraries(4))
    device = Device(transport)
    noise = np.full(32 * 20, 0x55, dtype=np.uint8)
    transport.exchange(noise, records=0, tokens=0, timeout_s=1.0)
    assert transport.read_register(OFFSET["errors"]) == ERROR["bad_header"]
    q, p = draw_pairs("healthy", 40)
    with pytest.raises(Exception, match="simulation"):
        Device.measure(device, q, p, np.array([0, 40]))
    device.reset()
    self_test(device)


def test_a_reset_in_the_middle_leaves_no_trace(libraries: Library) -> None:
    """Half a chunk, reset, then correct results from the first record on."""
    transport = SimulatedDevice(lanes=4, library=libraries(4))
    device = Device(transport)
    from twinscope_fpga.packing import pack_chunks

    q, p = draw_pairs("log-uniform", 400)
    data = pack_chunks(q, p, [Chunk(tag=1, start=0, length=400)], lanes=4)
    transport.exchange(data[: 32 * 50], records=0, tokens=0, timeout_s=1.0)
    device.reset()
    assert same(
        device.measure(q, p, np.array([0, 400])),
        Device(EmulatedDevice()).measure(q, p, np.array([0, 400])),
    )


def test_framing_errors_are_named(libraries: Library) -> None:
    """The driver's message carries the device's own word for it."""
    transport = SimulatedDevice(lanes=4, library=libraries(4))
    device = Device(transport)
    transport.exchange(np.full(64, 9, dtype=np.uint8), records=0, tokens=0, timeout_s=1.0)
    with pytest.raises(FramingLost, match="bad_header"):
        device._check(
            Records(*(np.zeros(0, dtype=np.int64) for _ in range(3)),
                    np.zeros((0, 11), dtype=np.int64), np.zeros((0, 10), dtype=np.int64),
                    np.zeros(0, dtype=np.uint32)),
            np.zeros(0, dtype=np.bool_), [], check_counts=True,
        )  # fmt: skip
