"""The emulator: a device made of the golden arithmetic. Needs numpy and numba, no tools."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinscope_fpga import golden
from twinscope_fpga.errors import FramingLost
from twinscope_fpga.formats import COUNTS, HEADER_MAGIC, TOKEN_BYTES, TOKEN_FLAGS
from twinscope_fpga.packing import Records, chunk_beats, decode_header, encode_records
from twinscope_fpga.registers import CONTROL, ERROR, IDENTITY, OFFSET, REGISTERS, UNMAPPED, VERSION
from twinscope_fpga.tables import coefficient_tables
from twinscope_fpga.transport import U8, Kind, Reply

NO_MASK: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)


class EmulatedDevice:
    """`Transport` without hardware: same bytes in, same bytes out, same registers."""

    kind: Kind = "emulator"
    place = "emulator"

    def __init__(self, *, lanes: int = 4) -> None:
        self._lanes = lanes
        self._registers = {register.offset: register.reset for register in REGISTERS}
        self._registers |= {
            OFFSET["id"]: IDENTITY,
            OFFSET["version"]: VERSION,
            OFFSET["shape"]: lanes | 9 << 8 | 16 << 16,
            OFFSET["table_crc"]: coefficient_tables().crc,
            OFFSET["status"]: 1,
        }
        self._clear()

    def _clear(self) -> None:
        self._sums = np.zeros(11, dtype=np.int64)
        self._counts = np.zeros(len(COUNTS), dtype=np.int64)
        self._largest, self._serial, self._mode = 0, 0, 0
        self._tokens: list[U8] = []
        self._totals = dict.fromkeys(("tokens", "masked", *COUNTS[2:6], "chunks"), 0)

    def read_register(self, offset: int) -> int:
        """Counters are computed, everything else is what was written."""
        name = next((r.name for r in REGISTERS if r.offset == offset), "")
        if name == "status":
            return 1 | self._mode << 1
        if name == "records":
            return self._serial & 0xFFFFFFFF
        if name in self._totals:
            return self._totals[name] & 0xFFFFFFFF
        if name == "tokens_high":
            return self._totals["tokens"] >> 32
        return self._registers.get(offset, UNMAPPED)

    def write_register(self, offset: int, value: int) -> None:
        """As the device does: sticky errors clear by ones, reset clears everything under way."""
        if offset == OFFSET["errors"]:
            value = self._registers[offset] & ~value
        if offset == OFFSET["control"] and value & CONTROL["reset"]:
            self._clear()
            value &= ~CONTROL["reset"]
        self._registers[offset] = value

    def exchange(self, data: U8, *, records: int, tokens: int, timeout_s: float) -> Reply:
        """Measure every chunk in `data`; the answer has the asked sizes when all is well."""
        words = data.view("<u8")
        pairs = data.view("<u4").reshape(-1, 2)
        made: list[tuple[int, NDArray[np.int64], NDArray[np.int64], int]] = []
        at = 0
        while at < len(words):
            header = decode_header(int(words[at]))
            if header["magic"] != HEADER_MAGIC:
                self._registers[OFFSET["errors"]] |= ERROR["bad_header"]
                raise FramingLost(f"no header at byte {8 * at} of the stream: found {words[at]:#x}")
            self._mode = header["mode"]
            self._measure(pairs[at + self._lanes :][: header["length"]], header)
            if not header["hold"]:
                made.append((header["tag"], self._sums, self._counts, self._largest))
                self._sums, self._counts = np.zeros_like(self._sums), np.zeros_like(self._counts)
                self._largest = 0
            at += chunk_beats(header["length"], self._lanes) * self._lanes
        stream, self._tokens = self._tokens, []
        return Reply(self._encode(made), np.concatenate([np.zeros(0, dtype=np.uint8), *stream]))

    def _measure(self, pairs: NDArray[np.uint32], header: dict[str, int]) -> None:
        from twinscope_fpga import kernels

        clamp = self._registers[OFFSET["clamp"]]
        before = self._counts.copy()
        largest = kernels.measure_chunk(
            pairs,
            NO_MASK,
            (header["mode"], clamp, header["inband_mask"]),
            kernels.kernel_tables(),
            self._sums,
            self._counts,
        )
        self._largest = max(self._largest, int(largest))
        gained = self._counts - before
        self._totals["chunks"] += 1
        self._totals["tokens"] += int(gained[0])
        self._totals["masked"] += int(gained[0] - gained[1:5].sum())
        for column, name in enumerate(COUNTS[2:6], start=2):
            self._totals[name] += int(gained[column])
        if header["tokens_wanted"]:
            self._tokens.append(self._token_words(pairs, header, clamp))

    def _token_words(self, pairs: NDArray[np.uint32], header: dict[str, int], clamp: int) -> U8:
        """The token stream of one chunk, whole beats, absent lanes zero but for the mode."""
        results = golden.compute(
            pairs[:, 0],
            pairs[:, 1],
            mode=header["mode"],
            clamp=float(np.uint32(clamp).view(np.float32)),
            inband_mask=bool(header["inband_mask"]),
        )
        return token_words(results, header["mode"], beats_of=self._lanes)

    def _encode(self, made: list[tuple[int, NDArray[np.int64], NDArray[np.int64], int]]) -> U8:
        if not made:
            return np.zeros(0, dtype=np.uint8)
        count = len(made)
        records = Records(
            tag=np.array([row[0] for row in made], dtype=np.int64),
            status=np.full(count, self._mode, dtype=np.int64),
            serial=np.arange(self._serial, self._serial + count, dtype=np.int64),
            sums=np.stack([row[1] for row in made]),
            counts=np.stack([row[2] for row in made]),
            max_abs=np.array([row[3] for row in made], dtype=np.uint32),
        )
        self._serial += count
        return encode_records(records).reshape(-1)

    def close(self) -> None:
        """Nothing to give back."""


def token_words(results: golden.TokenResults, mode: int, *, beats_of: int) -> U8:
    """Token results as the device streams them: [tokens rounded up to beats, 16] bytes, flat."""
    count = len(results.counted)
    words = np.zeros((-(-count // beats_of) * beats_of, TOKEN_BYTES), dtype=np.uint8)
    low = results.value_low | (results.value_high & 0xFFFFF) << 44
    rest = results.value_high >> 20
    words[:count, 0:8] = low.astype("<i8").view(np.uint8).reshape(-1, 8)
    words[:count, 8:11] = rest.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :3]
    sizes = (results.difference & 0x7FFFFFFF) | results.negative.astype(np.uint32) << 31
    sizes[~results.counted] = 0
    words[:count, 11:15] = sizes.astype("<u4").view(np.uint8).reshape(-1, 4)
    flags = np.zeros(count, dtype=np.uint8)
    values = {"present": np.ones(count, dtype=np.bool_), "mode": np.full(count, bool(mode))}
    for bit, name in enumerate(TOKEN_FLAGS):
        flag = values[name] if name in values else getattr(results, name)
        flags |= flag.astype(np.uint8) << np.uint8(bit)
    words[:count, 15] = flags
    words[count:, 15] = mode << TOKEN_FLAGS.index("mode")
    return words.reshape(-1)
