"""A board behind the character devices of a PCIe DMA core (the XDMA naming: _user, _h2c_0, _c2h_0).

Registers are 4-byte reads and writes at an offset of the user device. Streams are plain blocking
reads and writes; the reader runs beside the writer, because a card whose results nobody takes
stops taking input. Not run on a board yet: tested against a stand-in made of pipes.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from twinscope_fpga.errors import DeviceError, DeviceGone, DeviceTimeout, NoDevice, ShortTransfer
from twinscope_fpga.transport import U8, Kind, Reply

T = TypeVar("T")
LATE = (errno.ETIMEDOUT, errno.ETIME, errno.EAGAIN, errno.ERESTART)
WRITE_BYTES = 1 << 20


def find_boards(folder: Path = Path("/dev")) -> list[Path]:
    """Prefixes of all boards found: /dev/xdma0 for /dev/xdma0_user and so on."""
    return sorted(
        path.with_name(path.name.removesuffix("_user")) for path in folder.glob("xdma*_user")
    )


class CharacterDevices:
    """`Transport` over `<prefix>_user`, `<prefix>_h2c_0`, `<prefix>_c2h_0`."""

    kind: Kind = "board"

    def __init__(self, prefix: Path) -> None:
        self.place = str(prefix)
        self._files: dict[str, int] = {}
        modes = {"user": os.O_RDWR, "h2c_0": os.O_WRONLY, "c2h_0": os.O_RDONLY}
        try:
            for name, mode in modes.items():
                self._files[name] = os.open(f"{prefix}_{name}", mode | os.O_CLOEXEC)
        except OSError as error:
            self.close()
            raise NoDevice(f"{error.filename}: {error.strerror}") from error

    def read_register(self, offset: int) -> int:
        """Four bytes at `offset` of the user device."""
        data = self._guard(lambda: os.pread(self._files["user"], 4, offset), "read a register")
        if len(data) != 4:
            raise ShortTransfer(f"{self.place}_user: {len(data)} of 4 bytes at {offset:#x}")
        return int.from_bytes(data, "little")

    def write_register(self, offset: int, value: int) -> None:
        """Four bytes at `offset` of the user device."""
        data = (value & 0xFFFFFFFF).to_bytes(4, "little")
        done = self._guard(lambda: os.pwrite(self._files["user"], data, offset), "write a register")
        if done != 4:
            raise ShortTransfer(f"{self.place}_user: {done} of 4 bytes written at {offset:#x}")

    def exchange(self, data: U8, *, records: int, tokens: int, timeout_s: float) -> Reply:
        """Write and read side by side until both are complete."""
        if tokens:
            raise NoDevice(f"{self.place}: the token stream needs a second c2h channel")
        answer = np.zeros(records, dtype=np.uint8)
        workers = (
            _Worker(lambda: self._read_all(answer.data), "c2h"),
            _Worker(lambda: self._write_all(np.ascontiguousarray(data).data), "h2c"),
        )
        deadline = time.monotonic() + timeout_s
        for worker in workers:
            worker.start()
        for worker in workers[::-1]:
            worker.finish(deadline, self.place)
        return Reply(answer, np.zeros(0, dtype=np.uint8))

    def _write_all(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            piece = data[at : at + WRITE_BYTES]
            done = self._guard(partial(self._send, piece), "send")
            if done == 0:
                raise ShortTransfer(f"{self.place}_h2c_0: took {at} of {len(data)} bytes")
            at += done

    def _read_all(self, answer: memoryview) -> None:
        at = 0
        while at < len(answer):
            wanted = len(answer) - at
            piece = self._guard(partial(self._receive, wanted), "receive")
            if not piece:
                raise ShortTransfer(f"{self.place}_c2h_0: gave {at} of {len(answer)} bytes")
            answer[at : at + len(piece)] = piece
            at += len(piece)

    def _send(self, piece: memoryview) -> int:
        return os.write(self._files["h2c_0"], piece)

    def _receive(self, size: int) -> bytes:
        return os.read(self._files["c2h_0"], size)

    def _guard(self, call: Callable[[], T], doing: str) -> T:
        """Run a system call; its error number becomes a DeviceError."""
        try:
            return call()
        except KeyError as error:
            raise DeviceGone(f"{self.place}: closed, cannot {doing}") from error
        except OSError as error:
            what = f"{self.place}: cannot {doing}: {os.strerror(error.errno or 0)}"
            if error.errno in LATE:
                raise DeviceTimeout(what) from error
            raise DeviceGone(what) from error

    def close(self) -> None:
        """Close all three files."""
        files, self._files = self._files, {}
        for descriptor in files.values():
            os.close(descriptor)


class _Worker(threading.Thread):
    """One direction of an exchange. Daemon: a read that never returns must not hold the process."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=f"twinscope-fpga-{name}", daemon=True)
        self._work = work
        self._error: DeviceError | None = None

    def run(self) -> None:
        try:
            self._work()
        except DeviceError as error:
            self._error = error

    def finish(self, deadline: float, place: str) -> None:
        """Wait until the deadline; raise what went wrong."""
        self.join(max(0.0, deadline - time.monotonic()))
        if self._error is not None:
            raise self._error
        if self.is_alive():
            raise DeviceTimeout(f"{place}: {self.name.rsplit('-', 1)[1]} did not finish in time")
