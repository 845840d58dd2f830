"""The driver: one device, whatever it is made of, behind a few calls with clear errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinscope.errors import ConfigError
from twinscope_fpga import golden
from twinscope_fpga.errors import BadRecord, DeviceTimeout, FramingLost, WrongDevice
from twinscope_fpga.formats import HEADER_BYTES, MAX_CLAMP, RECORD_BYTES, TOKEN_BYTES, TOKEN_FLAGS
from twinscope_fpga.packing import (
    COUNT,
    MAX_LENGTH,
    Chunk,
    Records,
    chunk_beats,
    decode_records,
    pack_chunks,
)
from twinscope_fpga.registers import CONTROL, ERROR_BITS, IDENTITY, OFFSET, REGISTERS, VERSION
from twinscope_fpga.tables import coefficient_tables
from twinscope_fpga.transport import U8, Kind, Transport

U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]
EXCHANGE_BYTES = 4 << 20  # at most about this much goes out in one exchange
MAX_SEQUENCES = 1 << 24  # tags have 24 bits
LENGTH_STATUS = 2


@dataclass(frozen=True)
class DeviceInfo:
    """What was opened. `kind` is what results are labelled with."""

    kind: Kind
    place: str
    lanes: int
    version: str
    table_crc: int


@dataclass(frozen=True)
class TokenValues:
    """The token stream, one row per token: k3 (KL mode: e^q) float64, Δ float32, flags uint8."""

    value: NDArray[np.float64]
    difference: NDArray[np.float32]
    flags: NDArray[np.uint8]

    def flag(self, name: str) -> NDArray[np.bool_]:
        """One of formats.TOKEN_FLAGS."""
        return (self.flags >> np.uint8(TOKEN_FLAGS.index(name)) & 1).astype(np.bool_)


class Device:
    """An opened device. Not for two threads at once."""

    def __init__(self, transport: Transport, *, timeout_s: float = 30.0) -> None:
        self._transport, self._timeout_s = transport, timeout_s
        self.info = self._identify()
        self._clamp: float | None = None
        self.reset()

    def _identify(self) -> DeviceInfo:
        read = self._transport.read_register
        identity, version, shape = (
            read(OFFSET["id"]),
            read(OFFSET["version"]),
            read(OFFSET["shape"]),
        )
        place, crc = self._transport.place, read(OFFSET["table_crc"])
        if identity != IDENTITY:
            raise WrongDevice(f"{place}: identity is {identity:#010x}, not {IDENTITY:#010x}")
        if version >> 16 != VERSION >> 16:
            raise WrongDevice(f"{place}: version {version:#010x}; this driver speaks {VERSION:#x}")
        if crc != coefficient_tables().crc:
            raise WrongDevice(f"{place}: its coefficient tables are not this driver's ({crc:#x})")
        return DeviceInfo(
            self._transport.kind, place, shape & 0xFF, f"{version >> 16}.{version & 0xFFFF}", crc
        )

    def reset(self) -> None:
        """Drop everything under way and start with empty accumulators and no sticky error."""
        read, write = self._transport.read_register, self._transport.write_register
        write(OFFSET["control"], CONTROL["reset"])
        self._wait_until(
            lambda: not (read(OFFSET["control"]) & CONTROL["reset"] or read(OFFSET["status"]) & 4),
            "the reset does not end",
        )
        write(OFFSET["errors"], (1 << len(ERROR_BITS)) - 1)
        self._wait_until(lambda: not read(OFFSET["errors"]), "sticky errors do not clear")
        write(OFFSET["control"], CONTROL["enable"])
        self._clamp = None

    def _wait_until(self, done: Callable[[], bool], complaint: str) -> None:
        """Poll registers, at most a thousand times or the timeout, whichever is longer."""
        deadline = time.monotonic() + self._timeout_s
        tries = 0
        while not done():
            tries += 1
            if tries > 1000 and time.monotonic() > deadline:
                raise DeviceTimeout(f"{self.info.place}: {complaint}")

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    def counters(self) -> dict[str, int]:
        """Every read-only register by name."""
        read = self._transport.read_register
        return {r.name: read(r.offset) for r in REGISTERS if r.access == "r"}

    def sticky_errors(self) -> tuple[str, ...]:
        """Names of the error bits that are set."""
        bits = self._transport.read_register(OFFSET["errors"])
        return tuple(name for i, (name, _) in enumerate(ERROR_BITS) if bits >> i & 1)

    def set_clamp(self, clamp: float) -> None:
        """|Δ| bound of the estimators, nats."""
        if not 0 < clamp <= MAX_CLAMP:
            raise ConfigError(f"clamp: got {clamp}; the FPGA engine takes 0 < clamp <= {MAX_CLAMP}")
        if clamp != self._clamp:
            bits = int(np.float32(clamp).view(np.uint32))
            self._transport.write_register(OFFSET["clamp"], bits)
            self._clamp = clamp

    def measure(
        self,
        rollout: U32,
        train: U32,
        offsets: I64,
        *,
        mask: U8 | None = None,
        clamp: float = MAX_CLAMP,
        mode: int = golden.ESTIMATORS,
        longest_chunk: int = MAX_LENGTH,
    ) -> Records:
        """Exact sums of every sequence, row s for tokens offsets[s]:offsets[s+1].

        rollout, train: float32 bits [N]; offsets int64 [S+1]; mask uint8 [N], 1 = counts.
        Sequences longer than `longest_chunk` travel in pieces and are added up here.
        """
        if len(offsets) - 1 > MAX_SEQUENCES:
            raise ConfigError(f"offsets: {len(offsets) - 1} sequences; at most {MAX_SEQUENCES}")
        self.set_clamp(clamp)
        chunks = list(_cut(offsets, mode, longest_chunk))
        parts = [self.send_chunks(rollout, train, batch, mask) for batch in self._batches(chunks)]
        return merge_records(parts, len(offsets) - 1)

    def batch_total(
        self, rollout: U32, train: U32, offsets: I64, *, mask: U8 | None = None
    ) -> Records:
        """One record for the whole batch, summed on the device (all chunks but the last hold)."""
        self.set_clamp(MAX_CLAMP)
        chunks = [
            Chunk(tag=chunk.tag, start=chunk.start, length=chunk.length, hold=True)
            for chunk in _cut(offsets, golden.ESTIMATORS, MAX_LENGTH)
        ]
        chunks.append(Chunk(tag=0, start=0, length=0))
        return self.send_chunks(rollout, train, chunks, mask, check_counts=False)

    def tokens(
        self, rollout: U32, train: U32, *, mask: U8 | None = None, clamp: float = MAX_CLAMP
    ) -> TokenValues:
        """Every token's own result."""
        self.set_clamp(clamp)
        chunk = Chunk(tag=0, start=0, length=len(rollout), tokens_wanted=True)
        data = pack_chunks(rollout, train, [chunk], lanes=self.info.lanes, mask=mask)
        size = (chunk_beats(len(rollout), self.info.lanes) - 1) * self.info.lanes * TOKEN_BYTES
        reply = self._transport.exchange(
            data, records=RECORD_BYTES, tokens=size, timeout_s=self._timeout_s
        )
        return decode_tokens(reply.tokens[: len(rollout) * TOKEN_BYTES])

    def _batches(self, chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
        """Chunks in groups of about EXCHANGE_BYTES."""
        batch: list[Chunk] = []
        size = 0
        for chunk in chunks:
            batch.append(chunk)
            size += chunk_beats(chunk.length, self.info.lanes) * self.info.lanes * HEADER_BYTES
            if size >= EXCHANGE_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def send_chunks(
        self,
        rollout: U32,
        train: U32,
        chunks: Sequence[Chunk],
        mask: U8 | None,
        *,
        check_counts: bool = True,
    ) -> Records:
        """One exchange: the records of `chunks` in order, checked. Chunks may interleave tags."""
        data = pack_chunks(rollout, train, chunks, lanes=self.info.lanes, mask=mask)
        answered = [chunk for chunk in chunks if not chunk.hold]
        reply = self._transport.exchange(
            data, records=RECORD_BYTES * len(answered), tokens=0, timeout_s=self._timeout_s
        )
        records, intact = decode_records(reply.records)
        self._check(records, intact, answered, check_counts=check_counts)
        return records

    def _check(
        self,
        records: Records,
        intact: NDArray[np.bool_],
        chunks: Sequence[Chunk],
        *,
        check_counts: bool,
    ) -> None:
        """Every record is whole, in order, and counts what was sent."""
        place = self.info.place
        errors = self.sticky_errors()
        if errors:
            raise FramingLost(f"{place}: the device reports {', '.join(errors)}")
        if not intact.all():
            row = int(np.flatnonzero(~intact)[0])
            raise BadRecord(f"{place}: record {row} of {len(intact)} has a wrong checksum")
        tags = np.array([chunk.tag for chunk in chunks], dtype=np.int64)
        lengths = np.array([chunk.length for chunk in chunks], dtype=np.int64)
        wrong = records.tag != tags
        if check_counts:
            wrong |= records.count("received") != lengths
        wrong |= (records.status & LENGTH_STATUS) != 0
        wrong[1:] |= np.diff(records.serial) % (1 << 32) != 1
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise BadRecord(
                f"{place}: record {row} says tag {records.tag[row]}, "
                f"{records.count('received')[row]} tokens, serial {records.serial[row]}; "
                f"sent were tag {tags[row]}, {lengths[row]} tokens"
            )


def _cut(offsets: I64, mode: int, longest: int) -> Iterator[Chunk]:
    """Chunks of every sequence; an empty sequence is one empty chunk."""
    bounds = offsets.tolist()
    for tag in range(len(bounds) - 1):
        start, end = bounds[tag], bounds[tag + 1]
        while True:
            length = min(end - start, longest)
            yield Chunk(tag=tag, start=start, length=length, mode=mode)
            start += length
            if start >= end:
                break


def merge_records(parts: Sequence[Records], sequences: int) -> Records:
    """Add up the records of each tag: integers, so pieces and order leave no trace."""
    tag = np.concatenate([np.zeros(0, dtype=np.int64), *(part.tag for part in parts)])
    sums = np.zeros((sequences, 11), dtype=np.int64)
    counts = np.zeros((sequences, len(COUNT)), dtype=np.int64)
    largest = np.zeros(sequences, dtype=np.uint32)
    status = np.zeros(sequences, dtype=np.int64)
    if len(tag):
        np.add.at(sums, tag, np.concatenate([part.sums for part in parts]))
        np.add.at(counts, tag, np.concatenate([part.counts for part in parts]))
        np.maximum.at(largest, tag, np.concatenate([part.max_abs for part in parts]))
        np.bitwise_or.at(status, tag, np.concatenate([part.status for part in parts]))
    rows = np.arange(sequences, dtype=np.int64)
    return Records(tag=rows, status=status, serial=rows, sums=sums, counts=counts, max_abs=largest)


def decode_tokens(words: U8) -> TokenValues:
    """Token stream bytes -> values; the exact 88-bit k3 is rounded to float64 once."""
    rows = words.reshape(-1, TOKEN_BYTES)
    low = np.ascontiguousarray(rows[:, :8]).view("<u8")[:, 0].astype(np.float64)
    top = np.zeros((len(rows), 4), dtype=np.uint8)
    top[:, :3] = rows[:, 8:11]
    high = top.view("<u4")[:, 0].astype(np.float64)
    difference = np.ascontiguousarray(rows[:, 11:15]).view("<f4")[:, 0]
    return TokenValues(low * 2.0**-58 + high * 2.0**6, difference, rows[:, 15].copy())
