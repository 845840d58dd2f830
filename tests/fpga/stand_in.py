"""A card that is not there: pipes for the two streams, a file for the registers, a thread behind.

Speaks what `CharacterDevices` speaks to a PCIe DMA core, with the emulator doing the arithmetic,
and can be told to misbehave.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

import numpy as np

from twinscope_fpga.emulator import EmulatedDevice
from twinscope_fpga.errors import FramingLost
from twinscope_fpga.packing import chunk_beats, decode_header
from twinscope_fpga.registers import OFFSET, REGISTERS

LANES = 4
BEAT = 8 * LANES


class StandInCard:
    """`prefix`: what a driver opens. Faults: `corrupt`, `lost`, `mute`, `unplug` (registers read
    all ones, nothing comes), `short` (the results end early), `gone` (the input is torn down)."""

    def __init__(self, folder: Path) -> None:
        self.prefix = folder / "xdma0"
        self.fault = ""
        self.device = EmulatedDevice(lanes=LANES)
        self._user = Path(f"{self.prefix}_user")
        self._user.write_bytes(bytes(4096))
        for name in ("h2c_0", "c2h_0"):
            os.mkfifo(f"{self.prefix}_{name}")
        self._input: int | None = os.open(f"{self.prefix}_h2c_0", os.O_RDWR)
        self._output: int | None = os.open(f"{self.prefix}_c2h_0", os.O_RDWR)
        self._registers = os.open(self._user, os.O_RDWR)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._show()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._serve, self._watch)
        ]

    def __enter__(self) -> StandInCard:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stop.set()
        if self._input is not None:
            os.write(self._input, bytes(BEAT))  # wakes the reader
        for thread in self._threads:
            thread.join(10)
        for descriptor in (self._input, self._output, self._registers):
            if descriptor is not None:
                os.close(descriptor)

    def _show(self) -> None:
        """Put every register where the driver reads it."""
        for register in REGISTERS:
            value = self.device.read_register(register.offset)
            os.pwrite(self._registers, value.to_bytes(4, "little"), register.offset)

    def _seen(self, name: str) -> int:
        return int.from_bytes(os.pread(self._registers, 4, OFFSET[name]), "little")

    def _watch(self) -> None:
        """Take what the driver wrote: a file does not act by itself, so it is looked at."""
        while not self._stop.wait(0.0005):
            with self._lock:
                for name in ("control", "errors", "clamp"):
                    seen, own = self._seen(name), self.device.read_register(OFFSET[name])
                    if seen != own:
                        self.device.write_register(OFFSET[name], seen)
                        if name != "clamp":
                            self._show()

    def _read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += os.read(self._input, size - len(data))
        return data

    def _serve(self) -> None:
        """Chunk by chunk: read it whole, answer."""
        while True:
            header = self._read_exactly(BEAT)
            if self._stop.is_set():
                return
            if self.fault == "gone":
                os.close(self._input)
                self._input = None
                return
            length = decode_header(int.from_bytes(header[:8], "little"))["length"]
            body = self._read_exactly((chunk_beats(length, LANES) - 1) * BEAT)
            self._answer(header + body)

    def _answer(self, data: bytes) -> None:
        if self.fault == "lost":
            data = bytes(BEAT) + data[BEAT:]
        clamp = self._seen("clamp")
        with self._lock:
            self.device.write_register(OFFSET["clamp"], clamp)
            try:
                reply = self.device.exchange(
                    np.frombuffer(data, dtype=np.uint8), records=0, tokens=0, timeout_s=1.0
                )
                records = bytearray(reply.records.tobytes())
            except FramingLost:
                records = bytearray(128)
            self._show()
        if self.fault == "corrupt" and records:
            records[40] ^= 4
        if self.fault == "unplug":
            self.device._registers[OFFSET["id"]] = 0xFFFFFFFF
        if self.fault == "short" and self._output is not None:
            os.write(self._output, records[:64])
            os.close(self._output)
            self._output = None
        elif self.fault not in ("mute", "unplug") and self._output is not None:
            os.write(self._output, records)
