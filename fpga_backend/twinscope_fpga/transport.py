"""The seam between driver and device: registers and two byte streams, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Kind = Literal["emulator", "simulation", "board"]
U8 = NDArray[np.uint8]


@dataclass(frozen=True)
class Reply:
    """What came back: bytes of the result stream and of the token stream."""

    records: U8
    tokens: U8


class Transport(Protocol):
    """What a device looks like from here. Every call raises a `DeviceError` or does its work.

    `kind` is the honest name: a simulator is never a board. `place` says which one (library,
    device file) for messages.
    """

    kind: Kind
    place: str

    def read_register(self, offset: int) -> int:
        """One 32-bit register."""
        ...

    def write_register(self, offset: int, value: int) -> None:
        """Write one 32-bit register."""
        ...

    def exchange(self, data: U8, *, records: int, tokens: int, timeout_s: float) -> Reply:
        """Send `data` (whole beats), collect that many bytes of both streams."""
        ...

    def close(self) -> None:
        """Give everything back. Closing twice is allowed."""
        ...
