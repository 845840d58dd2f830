"""Bytes on the two streams: chunks of pairs towards the device, records of sums back.

A chunk is one header beat and ceil(length / lanes) data beats; a beat is 8·lanes bytes, little
endian; the pair of lane i is {q, p} at bytes 8i..8i+7. Unused bytes are zero and ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinscope_fpga.formats import (
    COUNTS,
    CRC_POLYNOMIAL,
    HEADER_FIELDS,
    HEADER_MAGIC,
    MASKED_WORD,
    RECORD_BYTES,
    RECORD_MAGIC,
    SUMS,
    record_fields,
)

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
MAX_LENGTH = (1 << 24) - 1
COUNT = {name: i for i, name in enumerate(COUNTS)}
SUM_SLICE = {}
for _at, _entry in enumerate(SUMS):
    _start = sum(entry.segments for entry in SUMS[:_at])
    SUM_SLICE[_entry.name] = (slice(_start, _start + _entry.segments), _entry)
_OFFSET = {name: (at, size) for name, at, size in record_fields()}
_SUM_NAMES = [f"{entry.name}{i}" for entry in SUMS for i in range(entry.segments)]


@dataclass(frozen=True)
class Chunk:
    """Header of one chunk. `start`: first token in the arrays that are packed with it."""

    tag: int
    start: int
    length: int
    mode: int = 0
    hold: bool = False
    tokens_wanted: bool = False


def encode_header(chunk: Chunk, *, inband_mask: bool) -> int:
    """The 64-bit header word of a chunk."""
    values = {
        "magic": HEADER_MAGIC,
        "mode": chunk.mode,
        "inband_mask": int(inband_mask),
        "hold": int(chunk.hold),
        "tokens_wanted": int(chunk.tokens_wanted),
        "length": chunk.length,
        "tag": chunk.tag,
    }
    word, at = 0, 0
    for name, bits, _ in HEADER_FIELDS:
        word |= (values.get(name, 0) & ((1 << bits) - 1)) << at
        at += bits
    return word


def decode_header(word: int) -> dict[str, int]:
    """Every field of a header word."""
    fields, at = {}, 0
    for name, bits, _ in HEADER_FIELDS:
        fields[name] = (word >> at) & ((1 << bits) - 1)
        at += bits
    return fields


def chunk_beats(length: int, lanes: int) -> int:
    """Beats of a chunk, header included."""
    return 1 + -(-length // lanes)


def pack_chunks(
    rollout: U32,
    train: U32,
    chunks: Sequence[Chunk],
    *,
    lanes: int,
    mask: U8 | None = None,
) -> U8:
    """The bytes of all chunks in order. `rollout`, `train`: float32 bits [N]; `mask` 1 = count."""
    beats = [chunk_beats(chunk.length, lanes) for chunk in chunks]
    stream = np.zeros((sum(beats) * lanes, 2), dtype="<u4")
    words = stream.view("<u8")[:, 0]
    at = 0
    for chunk, size in zip(chunks, beats, strict=True):
        words[at] = encode_header(chunk, inband_mask=mask is not None)
        body = stream[at + lanes : at + lanes + chunk.length]
        span = slice(chunk.start, chunk.start + chunk.length)
        body[:, 0], body[:, 1] = rollout[span], train[span]
        if mask is not None:
            body[mask[span] == 0] = MASKED_WORD
        at += size * lanes
    return stream.view(np.uint8).reshape(-1)


@dataclass(frozen=True)
class Records:
    """Decoded records, one row each. sums: int64 [R,11] segment words; counts: int64 [R,10]."""

    tag: I64
    status: I64
    serial: I64
    sums: I64
    counts: I64
    max_abs: U32

    def __len__(self) -> int:
        return len(self.tag)

    def total(self, name: str) -> NDArray[np.float64]:
        """One sum of every record in nats (or nats²): float64, the last rounding of all."""
        where, entry = SUM_SLICE[name]
        segments = self.sums[:, where].astype(np.float64)
        if name == "square":  # undo the ones' complement of negative KL terms
            flips = self.counts[:, COUNT["negative"]] * (self.status & 1)
            segments = segments - (flips * ((1 << entry.bits) - 1)).astype(np.float64)[:, None]
        weights = 2.0 ** (entry.bits * np.arange(entry.segments) - entry.fraction)
        total: NDArray[np.float64] = segments @ weights
        return total

    def count(self, name: str) -> I64:
        """One count of every record."""
        return self.counts[:, COUNT[name]]


def checksums(words: U32) -> U32:
    """Checksum of records [R,32]: Σ w_i · x^(31-i) in GF(2)[x] modulo the CRC-32 polynomial.

    i runs over the 31 words before the checksum. Horner's rule, one bit of shift per word, so that
    hardware folds eight words per clock. Any change inside one word, and any exchange of two
    different neighbours, changes the sum.
    """
    state = np.zeros(len(words), dtype=np.uint32)
    for i in range(32):
        carry = (state >> np.uint32(31)) * np.uint32(CRC_POLYNOMIAL)
        state = (state << np.uint32(1)) ^ carry
        if i < 31:
            state = state ^ words[:, i]
    return state


def encode_records(records: Records) -> U8:
    """Records as a device sends them: uint8 [R,128]."""
    rows = np.zeros((len(records), RECORD_BYTES), dtype=np.uint8)

    def put(name: str, values: NDArray[np.generic]) -> None:
        at, size = _OFFSET[name]
        wide = np.ascontiguousarray(values.astype("<u8")).view(np.uint8).reshape(-1, 8)
        rows[:, at : at + size] = wide[:, :size]

    put("magic", np.full(len(records), RECORD_MAGIC))
    put("status", records.status)
    put("tag", records.tag)
    put("serial", records.serial)
    put("max_abs", records.max_abs)
    for i, name in enumerate(_SUM_NAMES):
        put(name, records.sums[:, i])
    for i, name in enumerate(COUNTS):
        put(name, records.counts[:, i])
    put("checksum", checksums(rows.view("<u4")))
    return rows


def decode_records(data: bytes | U8) -> tuple[Records, NDArray[np.bool_]]:
    """(records, intact): a row that fails its magic or checksum is False in `intact`."""
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, RECORD_BYTES)

    def get(name: str) -> I64:
        at, size = _OFFSET[name]
        wide = np.zeros((len(rows), 8), dtype=np.uint8)
        wide[:, :size] = rows[:, at : at + size]
        return wide.view("<i8")[:, 0].astype(np.int64)

    words = np.ascontiguousarray(rows).view("<u4").astype(np.uint32)
    intact = (get("magic") == RECORD_MAGIC) & (get("checksum") == checksums(words))
    return (
        Records(
            tag=get("tag"),
            status=get("status"),
            serial=get("serial"),
            sums=np.stack([get(name) for name in _SUM_NAMES], axis=1),
            counts=np.stack([get(name) for name in COUNTS], axis=1),
            max_abs=get("max_abs").astype(np.uint32),
        ),
        intact,
    )
