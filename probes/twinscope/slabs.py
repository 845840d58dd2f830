"""Warm memory for captured tensors.

A fresh 64 MB allocation costs its page faults again on every step, several times the copy itself.
Slabs are bytes that return to the pool when the last batch that uses them is gone.

Whoever holds a view of a slab must also hold the slab (a `Block` does), or the bytes will change
under the view when the slab is used again.
"""

from __future__ import annotations

import sys
import threading

SMALLEST = 64 << 10  # smaller allocations come from the allocator's own warm arenas
HUGE = 4 << 20  # from here on numpy asks for huge pages, which a copy fills sooner
Memory = bytearray | memoryview


class Slab:
    """Bytes, on loan from a pool."""

    __slots__ = ("_pool", "data")

    def __init__(self, pool: SlabPool, data: Memory) -> None:
        self._pool = pool
        self.data = data

    def view(self, size: int) -> memoryview:
        """The first `size` bytes, writable."""
        return memoryview(self.data)[:size]

    def __del__(self) -> None:
        self._pool.give_back(self.data)


class SlabPool:
    """Free bytes, at most `limit_bytes` of them. Never waits for its lock.

    `give_back` runs from `__del__`, which can interrupt any code of this thread, even `take`: a
    lock that is not free means 'allocate afresh' or 'let it go', never 'wait'.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Memory] = []
        self._free_bytes = 0

    def take(self, size: int) -> Slab:
        """A slab of at least `size` bytes; its contents are left over from earlier use."""
        found = None
        if size >= SMALLEST and self._lock.acquire(blocking=False):
            try:
                found = self._pick(size)
            finally:
                self._lock.release()
        return Slab(self, found if found is not None else allocate(round_up(size)))

    def _pick(self, size: int) -> Memory | None:
        """Free bytes that fit and waste at most a quarter."""
        for index, data in enumerate(self._free):
            if size <= len(data) <= size + size // 4:
                self._free_bytes -= len(data)
                return self._free.pop(index)
        return None

    def give_back(self, data: Memory) -> None:
        """Keep `data` for later if there is room."""
        if len(data) < SMALLEST or not self._lock.acquire(blocking=False):
            return
        try:
            if self._free_bytes + len(data) <= self._limit:
                self._free.append(data)
                self._free_bytes += len(data)
        finally:
            self._lock.release()

    def forget_after_fork(self) -> None:
        """In the child: a fresh lock, since another thread may have held the old one."""
        self._start_empty()


def allocate(size: int) -> Memory:
    """Fresh bytes; on huge pages where numpy is loaded and the system has them."""
    numpy = sys.modules.get("numpy")
    if numpy is None or size < HUGE:
        return bytearray(size)
    return memoryview(numpy.empty(size, numpy.uint8))


def round_up(size: int) -> int:
    """The size to allocate: up to an eighth more, so that ragged steps reuse each other's slabs."""
    if size < SMALLEST:
        return size
    grain = 1 << max(0, size.bit_length() - 4)
    return -(-size // grain) * grain
