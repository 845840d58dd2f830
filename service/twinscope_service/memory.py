"""The C allocator, told to keep what it gets: see docs/decisions/0002-http-ingest.md."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
MMAP_THRESHOLD = 32 << 20  # socket reads come from the heap; large bodies are given back
TRIM_THRESHOLD = 128 << 20
LARGE_BODY = 16 << 20  # bytes; what such a body leaves behind is worth a look through all heaps


def keep_freed_memory() -> bool:
    """Stop glibc from mapping and unmapping every socket read. False where that is not possible."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent in musl
    if mallopt is None:
        return False
    wanted = ((M_MMAP_THRESHOLD, MMAP_THRESHOLD), (M_TRIM_THRESHOLD, TRIM_THRESHOLD))
    return all(mallopt(option, value) == 1 for option, value in wanted)


def give_back_after(nbytes: int) -> bool:
    """Give the system what a large body left free in the heaps of all threads. True if any was.

    glibc trims a thread's heap from its end only: what a batch of many samples frees in the middle
    would stay, once per thread. Takes some milliseconds: not for the event loop.
    """
    if nbytes < LARGE_BODY or not sys.platform.startswith("linux"):
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # absent in musl
    return trim is not None and trim(0) == 1
