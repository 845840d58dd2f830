"""What is remembered of closed steps: 24 bytes per sample, to tell late or repeated from new."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinscope_service.join.records import Entry, Part

U64 = NDArray[np.uint64]
ROWS = 3  # key prefix, rollout mark, train mark
ABSENT = 0  # mark of a side that never came; `_mark` keeps real marks away from it


@dataclass(frozen=True)
class StepMemory:
    """The samples of one closed step, sorted by key prefix. Axis n samples."""

    keys: U64  # [n] first 8 bytes of the join key
    rollout: U64  # [n] marks, 0: the side never came
    train: U64  # [n]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> StepMemory:
        """The memory of a step's entries."""
        rows = [
            (key_prefix(e.key), _mark(e.parts.get("rollout")), _mark(e.parts.get("train")))
            for e in entries
        ]
        table = np.array(sorted(rows), np.uint64).reshape(-1, ROWS).T
        return cls(*np.ascontiguousarray(table))

    @classmethod
    def decode(cls, data: bytes) -> StepMemory:
        """From `encode`."""
        return cls(*np.frombuffer(data, "<u8").reshape(ROWS, -1))

    def encode(self) -> bytes:
        """Little-endian uint64 [3,n]."""
        return np.stack([self.keys, self.rollout, self.train]).astype("<u8").tobytes()

    def holds(self, prefixes: U64) -> list[int]:
        """Indices of the key prefixes [S] that are here."""
        at = np.searchsorted(self.keys, prefixes)
        inside = at < len(self.keys)
        found = np.zeros(len(prefixes), bool)
        found[inside] = self.keys[at[inside]] == prefixes[inside]
        return [int(index) for index in np.flatnonzero(found)]

    def find(self, key: bytes) -> list[tuple[int, int]]:
        """(rollout mark, train mark) of every sample with this key."""
        prefix = np.uint64(key_prefix(key))
        low = int(np.searchsorted(self.keys, prefix, "left"))
        high = int(np.searchsorted(self.keys, prefix, "right"))
        return [(int(self.rollout[i]), int(self.train[i])) for i in range(low, high)]


def key_prefix(key: bytes) -> int:
    """64 bits of a join key: of a million samples, two collide with odds of 1 to 30 million."""
    return int.from_bytes(key[:8], "little")


def known_mark(mark: int) -> int:
    """A mark that is not confused with an absent side."""
    return mark or 1


def _mark(part: Part | None) -> int:
    return ABSENT if part is None else known_mark(part.mark)
