"""The bounded buffer between the host's threads and the sending thread.

Policy when full: the oldest waiting items are dropped until the new one fits; an item on its way
is never dropped for room, so a new one that still does not fit is itself dropped. Every loss is
counted by reason in the ledger, under the same lock: the books balance at every instant.

A raw call waits in the place of the items that it will be unpacked into. It is never taken: the
sending thread asks for it (`next_raw`) and puts its items in its place (`replace`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from twinscope.books import ZERO, Count, Ledger
from twinscope.items import Item, Raw

T = TypeVar("T")
R = TypeVar("R", bound=Raw)


class Buffer(Generic[R]):
    """First in, first out, bounded in bytes. `changed` is notified on every change.

    R: what raw calls are.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._start_empty()

    def _start_empty(self) -> None:
        self.changed = threading.Condition()
        self.ledger = Ledger()
        self._waiting: deque[Item | R] = deque()
        self._raw: dict[int, R] = {}  # those of `_waiting` that are raw, by id(), in order
        self._taken: Item | None = None
        self._bytes = 0
        self._closed = False

    def put_raw(self, call: R) -> bool:
        """`put` for a raw call."""
        with self.changed:
            taken = self.put(call)
            if taken:
                self._raw[id(call)] = call
            return taken

    def next_raw(self) -> R | None:
        """The oldest raw call. It stays where it is: `replace` or `discard` it."""
        with self.changed:
            return next(iter(self._raw.values()), None)

    def replace(self, call: R, items: Sequence[Item]) -> bool:
        """The items in the place of their call. False: it was dropped meanwhile, they are too."""
        with self.changed:
            if id(call) not in self._raw:
                return False
            self.ledger.restate(call.count, sum((item.count for item in items), ZERO))
            place = self._forget(call)
            for item in reversed(items):
                self._waiting.insert(place, item)
                self._bytes += item.nbytes
            while self._waiting and self._bytes > self.capacity_bytes:
                self._settle(self._waiting.popleft(), "buffer_full")
            self.changed.notify_all()
            return True

    def discard(self, call: R, reason: str) -> bool:
        """The call cannot be unpacked. False: it was dropped meanwhile."""
        with self.changed:
            if id(call) not in self._raw:
                return False
            self.ledger.move(call.count, "pending", reason)
            self._forget(call)
            self.changed.notify_all()
            return True

    def _forget(self, call: R) -> int:
        """Take a raw call out of the queue; returns where it was."""
        place = next(n for n, item in enumerate(self._waiting) if item is call)
        del self._waiting[place], self._raw[id(call)]
        self._bytes -= call.nbytes
        return place

    def put(self, item: Item | R) -> bool:
        """Append; False when the item itself was dropped."""
        with self.changed:
            if self._closed or item.nbytes > self.capacity_bytes:
                reason = "closed" if self._closed else "too_large"
                self.ledger.capture(item.count, into=reason)
                return False
            while self._waiting and self._bytes + item.nbytes > self.capacity_bytes:
                self._settle(self._waiting.popleft(), "buffer_full")
            if self._bytes + item.nbytes > self.capacity_bytes:
                self.ledger.capture(item.count, into="buffer_full")
                return False
            self.ledger.capture(item.count, into="pending")
            self._bytes += item.nbytes
            self._waiting.append(item)
            self.changed.notify_all()
            return True

    def refuse(self, count: Count, reason: str) -> None:
        """Something was captured but cannot even wait."""
        with self.changed:
            self.ledger.capture(count, into=reason)

    def take(self) -> Item | None:
        """The oldest item, now on its way: `settle` it or `give_back`. None: nothing waits.

        Nor is anything taken past a raw call: what came first leaves first.
        """
        with self.changed:
            if self._taken is not None or not self._waiting or id(self._waiting[0]) in self._raw:
                return None
            self._taken = self._waiting.popleft()  # type: ignore[assignment]
            return self._taken

    def give_back(self, item: Item) -> None:
        """It could not be sent: the oldest again. Nothing, if it was abandoned meanwhile."""
        with self.changed:
            if self._taken is item:
                self._taken = None
                self._waiting.appendleft(item)

    def settle(self, item: Item, outcome: str) -> bool:
        """The item on its way is done: a column or a drop reason. False: abandoned meanwhile."""
        with self.changed:
            if self._taken is not item:
                return False
            self._taken = None
            self._settle(item, outcome)
            self.changed.notify_all()
            return True

    def steal(self) -> Item | None:
        """Like `take`, but also what another thread has on its way: its outcome will not count."""
        with self.changed:
            if self._taken is not None:
                item, self._taken = self._taken, None
                self._waiting.appendleft(item)
            return self.take()

    def close(self) -> None:
        """Refuse everything from now on."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def drop_taken(self, reason: str) -> None:
        """The sending thread broke while it had an item: that item is lost, not the thread."""
        with self.changed:
            if self._taken is not None:
                self.settle(self._taken, reason)

    def abandon(self, reason: str) -> None:
        """Drop everything, also what is on its way (its outcome will not count any more)."""
        with self.changed:
            if self._taken is not None:
                self._settle(self._taken, reason)
                self._taken = None
            self.abandon_waiting(reason)

    def abandon_waiting(self, reason: str) -> None:
        """Drop what waits; what another thread has on its way is that thread's to settle."""
        with self.changed:
            while self._waiting:
                self._settle(self._waiting.popleft(), reason)
            self.changed.notify_all()

    def _settle(self, item: Item | R, outcome: str) -> None:
        self._raw.pop(id(item), None)
        self._bytes -= item.nbytes
        self.ledger.move(item.count, "pending", outcome)

    def read(self, look: Callable[[Ledger], T]) -> T:
        """`look(ledger)` under the lock."""
        with self.changed:
            return look(self.ledger)

    def is_empty(self) -> bool:
        """Nothing waits and nothing is on its way."""
        with self.changed:
            return not self._waiting and self._taken is None

    def has_waiting(self) -> bool:
        """Something waits to be taken."""
        with self.changed:
            return bool(self._waiting)

    def bytes_held(self) -> int:
        """Bytes that wait or are on their way."""
        with self.changed:
            return self._bytes

    def forget_after_fork(self) -> None:
        """In the child: what waited belongs to the parent, which will send it."""
        self._start_empty()  # with a fresh lock: another thread may have held the old one
