"""The buffer: bounded, first in first out, and its books balance whatever happens."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinscope.books import DROP_REASONS, Count
from twinscope.buffer import Buffer
from twinscope.items import Post


@dataclass(frozen=True)
class Thing:
    """An item of a given size."""

    nbytes: int
    batch_id: str = ""

    @property
    def count(self) -> Count:
        return Count(batches=1, tokens=self.nbytes)

    def post(self) -> Post:
        return Post("/v1/batches", "", self.batch_id, [])


def _total(buffer: Buffer) -> Count:
    ledger = buffer.ledger
    return sum([*ledger.columns.values(), *ledger.dropped.values()], Count())


def _unpack(buffer: Buffer[Thing], sizes: list[int] | None) -> None:
    """As the sending thread: the oldest raw call becomes items, or cannot be used (None)."""
    raw = buffer.next_raw()
    if raw is not None and sizes is not None:
        assert buffer.replace(raw, [Thing(size) for size in sizes])
    elif raw is not None:
        assert buffer.discard(raw, "invalid")


def test_a_raw_call_keeps_its_place_and_holds_back_what_came_after_it() -> None:
    """A step must not be closed before its tokens have arrived."""
    buffer: Buffer[Thing] = Buffer(100)
    buffer.put(Thing(1, "before"))
    buffer.put_raw(Thing(50, "raw"))
    buffer.put(Thing(1, "after"))
    order = []
    while (item := buffer.take()) is not None:
        order.append(item.batch_id)
        buffer.settle(item, "shipped")
    raw = buffer.next_raw()

    assert order == ["before"]
    assert raw is not None
    assert buffer.replace(raw, [Thing(10, "first"), Thing(20, "second")])
    while (item := buffer.take()) is not None:
        order.append(item.batch_id)
        buffer.settle(item, "shipped")
    assert order == ["before", "first", "second", "after"]
    assert buffer.ledger.captured == buffer.ledger.columns["shipped"] == Count(4, 32)
    assert buffer.bytes_held() == 0


def test_what_was_dropped_while_it_was_unpacked_stays_dropped() -> None:
    """The host's thread made room, or close() gave up, in the meantime."""
    buffer: Buffer[Thing] = Buffer(100)
    buffer.put_raw(Thing(60, "raw"))
    raw = buffer.next_raw()
    assert raw is not None
    buffer.put(Thing(70, "new"))

    assert buffer.replace(raw, [Thing(10)]) is False
    assert buffer.discard(raw, "invalid") is False
    assert buffer.ledger.dropped == {"buffer_full": Count(batches=1, tokens=60)}
    assert buffer.bytes_held() == 70


def test_items_leave_in_the_order_they_came() -> None:
    """First in, first out."""
    buffer = Buffer(100)
    things = [Thing(1, str(n)) for n in range(5)]
    for thing in things:
        assert buffer.put(thing)

    left = []
    while (item := buffer.take()) is not None:
        left.append(item)
        assert buffer.settle(item, "shipped")
    assert left == things
    assert buffer.ledger.columns["shipped"] == Count(batches=5, tokens=5)


def test_the_oldest_make_room_and_are_counted() -> None:
    """The newest data are worth more: they show what is happening now."""
    buffer = Buffer(100)
    for name in "abc":
        buffer.put(Thing(40, name))

    assert buffer.ledger.dropped == {"buffer_full": Count(batches=1, tokens=40)}
    assert buffer.take() == Thing(40, "b")


def test_what_is_on_its_way_is_never_dropped_for_room() -> None:
    """Half of it may have arrived; the newcomer goes instead, and the bound holds."""
    buffer = Buffer(100)
    buffer.put(Thing(80, "on its way"))
    taken = buffer.take()

    assert buffer.put(Thing(40, "new")) is False
    assert buffer.bytes_held() == 80
    assert taken is not None
    buffer.give_back(taken)
    assert buffer.put(Thing(40, "newer"))
    assert buffer.take() == Thing(40, "newer")


def test_an_item_larger_than_the_buffer_does_not_empty_it() -> None:
    """It is dropped as too large; the rest stays."""
    buffer = Buffer(100)
    buffer.put(Thing(60))

    assert buffer.put(Thing(101)) is False
    assert buffer.ledger.dropped == {"too_large": Count(batches=1, tokens=101)}
    assert buffer.bytes_held() == 60


def test_the_outcome_of_abandoned_items_counts_no_more() -> None:
    """After close() the books are final, even when a late answer arrives."""
    buffer = Buffer(100)
    buffer.put(Thing(10))
    taken = buffer.take()
    buffer.put(Thing(20))
    buffer.abandon("shutdown")

    assert taken is not None
    assert buffer.settle(taken, "shipped") is False
    buffer.give_back(taken)
    assert buffer.take() is None
    assert buffer.ledger.dropped == {"shutdown": Count(batches=2, tokens=30)}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "put",
                    "take",
                    "give_back",
                    "shipped",
                    "spooled",
                    "steal",
                    "refuse",
                    "put_raw",
                    "replace",
                    "discard",
                ]
            ),
            st.integers(1, 60),
        ),
        max_size=60,
    ),
    st.sampled_from(["abandon", "close", ""]),
)
def test_the_books_balance_after_any_sequence(actions: list[tuple[str, int]], last: str) -> None:
    """captured = shipped + pending + spooled + dropped, and bytes held are those of pending."""
    buffer: Buffer[Thing] = Buffer(100)
    taken = None
    for action, size in actions:
        if action == "put":
            buffer.put(Thing(size))
        elif action == "refuse":
            buffer.refuse(Count(batches=1), "invalid")
        elif action == "put_raw":
            buffer.put_raw(Thing(size))
        elif action in ("replace", "discard"):
            _unpack(buffer, None if action == "discard" else [size, size // 2])
        elif action in ("take", "steal"):
            taken = getattr(buffer, action)() or taken
        elif taken is not None and action == "give_back":
            buffer.give_back(taken)
        elif taken is not None:
            buffer.settle(taken, action)
        assert buffer.ledger.captured == _total(buffer)
        assert 0 <= buffer.bytes_held() == buffer.ledger.columns["pending"].tokens <= 100
    if last == "abandon":
        buffer.abandon("shutdown")
        assert buffer.is_empty()
    elif last == "close":
        buffer.close()
        assert buffer.put(Thing(1)) is False
    assert buffer.ledger.captured == _total(buffer)
    assert set(buffer.ledger.dropped) <= set(DROP_REASONS)


def test_counts_add_and_subtract_by_unit() -> None:
    """Batches, tokens and messages are never mixed."""
    a, b = Count(1, 10, 2), Count(2, 5, 0)

    assert a + b == Count(3, 15, 2)
    assert (a + b) - b == a


def test_a_child_of_a_fork_starts_with_empty_books() -> None:
    """What waited belongs to the parent."""
    buffer = Buffer(100)
    buffer.put(Thing(10))
    buffer.forget_after_fork()

    assert buffer.is_empty()
    assert buffer.ledger.captured == Count()


@pytest.mark.parametrize("reason", DROP_REASONS)
def test_reasons_are_words_with_a_meaning(reason: str) -> None:
    """They become metric labels: a closed list."""
    assert reason.replace("_", "").isalpha()
    assert DROP_REASONS[reason]
