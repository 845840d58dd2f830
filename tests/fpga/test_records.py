"""Records on the result stream: layout, checksum, damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinscope_fpga.formats import CRC_POLYNOMIAL, RECORD_BYTES, record_fields
from twinscope_fpga.packing import Records, checksums, decode_records, encode_records
from twinscope_fpga.registers import OFFSET, REGISTERS, render_registers


def some_records(count: int) -> Records:
    """Random contents that use every bit of every field."""
    rng = np.random.default_rng(count)
    return Records(
        tag=rng.integers(0, 1 << 24, count),
        status=rng.integers(0, 4, count),
        serial=np.arange(count, dtype=np.int64),
        sums=rng.integers(0, 1 << 48, (count, 11)),
        counts=rng.integers(0, 1 << 24, (count, 10)),
        max_abs=rng.integers(0, 1 << 31, count).astype(np.uint32),
    )


def polynomial_checksum(words: list[int]) -> int:
    """The definition, bit by bit with Python integers: Σ w_i·x^(31-i) mod the polynomial."""
    total = 0
    for i, word in enumerate(words[:31]):
        total ^= word << (31 - i)
    for bit in range(total.bit_length() - 1, 31, -1):
        if total >> bit & 1:
            total ^= (1 << 32 | CRC_POLYNOMIAL) << (bit - 32)
    return total


def test_fields_fill_the_record_without_gap_or_overlap() -> None:
    """128 bytes, every byte in exactly one field."""
    covered = [at + i for _, at, size in record_fields() for i in range(size)]
    assert covered == list(range(RECORD_BYTES))


def test_records_survive_the_round_trip() -> None:
    """Encode, decode: the same numbers, all intact."""
    records = some_records(50)
    decoded, intact = decode_records(encode_records(records).tobytes())
    assert intact.all()
    for name in ("tag", "status", "serial", "sums", "counts", "max_abs"):
        assert (getattr(decoded, name) == getattr(records, name)).all()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=32, max_size=32))
@settings(max_examples=100, deadline=None)
def test_checksum_is_the_polynomial_it_claims_to_be(words: list[int]) -> None:
    """Against long division over GF(2)."""
    assert int(checksums(np.array([words], dtype=np.uint32))[0]) == polynomial_checksum(words)


@given(st.integers(0, RECORD_BYTES * 8 - 1))
@settings(max_examples=200, deadline=None)
def test_any_flipped_bit_is_noticed(bit: int) -> None:
    """One bit anywhere, in the checksum too."""
    data = encode_records(some_records(1)).reshape(-1)
    data[bit // 8] ^= 1 << bit % 8
    assert not decode_records(data)[1].any()


def test_exchanged_words_are_noticed() -> None:
    """Two neighbouring words in the wrong order, as a torn transfer would leave them."""
    words = encode_records(some_records(1)).view("<u4")
    words[0, [5, 6]] = words[0, [6, 5]]
    assert not decode_records(words.tobytes())[1].any()


def test_segments_add_up_to_the_number_they_were_cut_from() -> None:
    """1 in each segment of k3 means 2^-58 (1 + 2^22 + 2^44 + 2^66)."""
    records = some_records(1)
    records.sums[:] = 0
    records.sums[0, :4] = 1
    expected = (1 + 2**22 + 2**44 + 2**66) / 2**58
    assert records.total("value")[0] == pytest.approx(expected, rel=1e-15)


def test_register_offsets_are_distinct_words() -> None:
    """No two registers share an address."""
    assert len(set(OFFSET.values())) == len(REGISTERS)
    assert all(offset % 4 == 0 and offset < 128 for offset in OFFSET.values())


def test_every_register_is_in_the_rendered_map() -> None:
    """The document's table comes from the declaration."""
    assert all(f"`{register.name}`" in render_registers() for register in REGISTERS)
