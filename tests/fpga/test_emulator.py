"""The emulator and the driver: same integers as the golden model, whatever the framing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinscope.errors import ConfigError
from twinscope_fpga import golden, kernels
from twinscope_fpga.device import Device
from twinscope_fpga.emulator import EmulatedDevice
from twinscope_fpga.error_analysis import value_of
from twinscope_fpga.errors import FramingLost, WrongDevice
from twinscope_fpga.packing import Chunk, decode_header, encode_header, pack_chunks
from twinscope_fpga.registers import CONTROL, OFFSET
from twinscope_fpga.selftest import SPECIAL, self_test, self_test_pairs

NO_MASK = np.zeros(0, dtype=np.uint8)
WORDS = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from(SPECIAL))


def kernel_sums(q: np.ndarray, p: np.ndarray, mode: int) -> tuple[list[int], list[int], int]:
    """What the compiled loop adds up."""
    sums, counts = np.zeros(11, dtype=np.int64), np.zeros(10, dtype=np.int64)
    largest = kernels.measure_chunk(
        np.stack([q, p], axis=1), NO_MASK, (mode, 0x41A00000, 0), kernels.kernel_tables(), sums,
        counts,
    )  # fmt: skip
    return sums.tolist(), counts.tolist(), int(largest)


@given(st.lists(st.tuples(WORDS, WORDS), max_size=40), st.sampled_from([0, 1]))
@settings(max_examples=200, deadline=None)
def test_compiled_loop_equals_the_golden_model(pairs: list[tuple[int, int]], mode: int) -> None:
    """Any bit patterns, special values among them: sums, counts and maximum to the last bit."""
    q, p = np.array(pairs, dtype=np.uint32).reshape(-1, 2).T
    sums, counts, largest = golden.sum_tokens(golden.compute(q, p, mode=mode), mode=mode)
    assert kernel_sums(q, p, mode) == (sums.tolist(), counts.tolist(), largest)


@pytest.mark.parametrize("mode", [0, 1])
def test_compiled_loop_equals_the_golden_model_on_many_tokens(mode: int) -> None:
    """Log-uniform pairs over the whole range, both signs."""
    rng = np.random.default_rng(1)
    q, p = (-np.exp(rng.uniform(-18, 6.9, 60_000)).astype(np.float32) for _ in "qp")
    words = q.view(np.uint32), p.view(np.uint32)
    sums, counts, largest = golden.sum_tokens(golden.compute(*words, mode=mode), mode=mode)
    assert kernel_sums(*words, mode) == (sums.tolist(), counts.tolist(), largest)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_lanes_and_pieces_leave_no_trace(lanes: int) -> None:
    """Sequences from 0 tokens up, masked ones too, cut in pieces or not: the same records."""
    rng = np.random.default_rng(2)
    lengths = [0, 1, lanes, lanes + 1, 50, 0, 333]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    q, p = (rng.integers(0, 1 << 32, offsets[-1], dtype=np.uint32) for _ in "qp")
    mask = (rng.random(offsets[-1]) < 0.6).astype(np.uint8)
    mask[offsets[4] : offsets[5]] = 0
    whole = Device(EmulatedDevice(lanes=lanes)).measure(q, p, offsets, mask=mask)
    cut = Device(EmulatedDevice(lanes=3 - lanes % 2)).measure(
        q, p, offsets, mask=mask, longest_chunk=7
    )
    assert (whole.sums == cut.sums).all()
    assert (whole.counts == cut.counts).all()
    assert (whole.max_abs == cut.max_abs).all()
    assert whole.count("counted")[4] == 0
    assert whole.count("received").tolist() == lengths


def test_a_batch_is_the_sum_of_its_sequences() -> None:
    """Held accumulators give one record for everything."""
    rng = np.random.default_rng(5)
    offsets = np.array([0, 10, 10, 400], dtype=np.int64)
    q, p = ((-rng.exponential(1, 400)).astype(np.float32).view(np.uint32) for _ in "qp")
    device = Device(EmulatedDevice())
    each, total = device.measure(q, p, offsets), device.batch_total(q, p, offsets)
    assert (each.sums.sum(axis=0) == total.sums[0]).all()
    assert (each.counts.sum(axis=0) == total.counts[0]).all()


def test_tokens_add_up_to_the_sequence() -> None:
    """The token stream carries each token's own k3 and Δ; uncounted tokens carry zeros."""
    rng = np.random.default_rng(6)
    q = -rng.exponential(1, 101).astype(np.float32)
    p = np.minimum(q + rng.normal(0, 0.01, 101).astype(np.float32), 0)
    q[3] = np.nan
    device = Device(EmulatedDevice())
    tokens = device.tokens(q.view(np.uint32), p.view(np.uint32))
    golden_tokens = golden.compute(q.view(np.uint32), p.view(np.uint32))
    assert (tokens.value == value_of(golden_tokens)).all()
    assert (tokens.difference[4:] == (p - q)[4:]).all()
    assert tokens.flag("nonfinite").tolist() == [i == 3 for i in range(101)]
    whole = device.measure(q.view(np.uint32), p.view(np.uint32), np.array([0, 101]))
    assert tokens.value.sum() == pytest.approx(float(whole.total("value")[0]), rel=1e-12)


def test_headers_survive_the_round_trip() -> None:
    """Every field comes back."""
    chunk = Chunk(tag=0xABCDEF, start=0, length=0xFEDCBA, mode=1, hold=True, tokens_wanted=True)
    fields = decode_header(encode_header(chunk, inband_mask=True))
    assert fields["tag"] == 0xABCDEF
    assert fields["length"] == 0xFEDCBA
    assert fields["mode"] == fields["hold"] == fields["tokens_wanted"] == 1


def test_a_stream_without_a_header_is_refused_until_a_reset() -> None:
    """The device says bad_header and keeps saying so; a reset makes it whole."""
    transport = EmulatedDevice()
    device = Device(transport)
    noise = np.full(64, 0x55, dtype=np.uint8)
    with pytest.raises(FramingLost, match="no header"):
        transport.exchange(noise, records=0, tokens=0, timeout_s=1.0)
    assert device.sticky_errors() == ("bad_header",)
    device.reset()
    assert device.sticky_errors() == ()
    self_test(device)


def test_a_device_with_other_tables_is_refused() -> None:
    """TABLE_CRC must be this driver's."""
    transport = EmulatedDevice()
    transport._registers[OFFSET["table_crc"]] ^= 1
    with pytest.raises(WrongDevice, match="coefficient tables"):
        Device(transport)


def test_clamp_beyond_the_format_names_value_and_limit() -> None:
    """The datapath ends at 20 nats."""
    q, p = self_test_pairs()
    with pytest.raises(ConfigError, match=r"got 25\.0; the FPGA engine takes 0 < clamp <= 20"):
        Device(EmulatedDevice()).measure(q, p, np.array([0, len(q)]), clamp=25.0)


def test_counters_tell_what_went_through() -> None:
    """Registers count chunks, tokens and every fate since the reset."""
    q, p = self_test_pairs()
    device = Device(EmulatedDevice())
    device.measure(q, p, np.array([0, 5, len(q)]))
    counters = device.counters()
    assert counters["chunks"] == counters["records"] == 2
    assert counters["tokens"] == len(q)
    device.reset()
    assert device.counters()["tokens"] == 0


def test_padding_beats_are_zero_and_ignored() -> None:
    """A chunk takes whole beats; what is behind its last token does not count."""
    q = np.full(5, 0xBF800000, dtype=np.uint32)
    data = pack_chunks(q, q, [Chunk(tag=0, start=0, length=5)], lanes=4)
    assert len(data) == 3 * 32
    assert not data[32 + 5 * 8 :].any()
    assert CONTROL["reset"] == 4
