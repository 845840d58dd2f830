"""Warm memory: used again when free, never while someone holds it, and bounded."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from twinscope.slabs import SMALLEST, SlabPool, round_up


def test_a_free_slab_is_used_again() -> None:
    """The next step of about the same size touches no fresh page."""
    pool = SlabPool(1 << 24)
    first = pool.take(1 << 20)
    address = id(first.data)
    del first

    assert id(pool.take((1 << 20) - 5000).data) == address


def test_a_slab_in_use_is_never_given_out() -> None:
    """Two batches that wait have different memory."""
    pool = SlabPool(1 << 24)
    slabs = [pool.take(1 << 20) for _ in range(3)]

    assert len({id(slab.data) for slab in slabs}) == 3


def test_free_memory_is_bounded() -> None:
    """What exceeds the limit goes back to the allocator."""
    pool = SlabPool(3 << 20)
    slabs = [pool.take(1 << 20) for _ in range(8)]
    addresses = {id(slab.data) for slab in slabs}
    kept = [slab.data for slab in slabs]  # keeps the allocator from reusing the addresses
    slabs.clear()

    again = [pool.take(1 << 20) for _ in range(8)]
    assert len(addresses & {id(slab.data) for slab in again}) == 3
    assert len(kept) == 8


@given(st.integers(0, 1 << 28))
def test_rounding_wastes_at_most_an_eighth(size: int) -> None:
    """The bound on memory holds for what is allocated, not only for what is used."""
    assert size <= round_up(size) <= size + size // 8 + 1
    assert size >= SMALLEST or round_up(size) == size


def test_a_lock_that_is_held_is_never_waited_for() -> None:
    """A finaliser may interrupt the pool itself: it lets the memory go instead."""
    pool = SlabPool(1 << 24)
    slab = pool.take(1 << 20)
    done = threading.Event()

    def release() -> None:
        nonlocal slab
        del slab
        pool.take(1 << 20)
        done.set()

    with pool._lock:
        thread = threading.Thread(target=release)
        thread.start()
        assert done.wait(10)
    thread.join()
