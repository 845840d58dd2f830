"""Unpacking: raw calls that wait in the buffer become posts, on the sending thread.

It comes before everything else that the thread does, also while the service is away: a padded
call takes several times the memory of its posts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from twinscope.buffer import Buffer
from twinscope.errors import WireError
from twinscope.guard import Guard
from twinscope.items import Part
from twinscope.raw_call import RawCall
from twinscope.slabs import SlabPool


class Unpacker:
    """`refuse(reason)` counts a call whose arguments cannot be used."""

    def __init__(
        self,
        buffer: Buffer[RawCall],
        *,
        guard: Guard,
        pool: SlabPool,
        post_bytes: int,
        refuse: Callable[[str], None],
    ) -> None:
        self._buffer = buffer
        self._guard = guard
        self._pool = pool
        self._post_bytes = post_bytes
        self._refuse = refuse

    def unpack_waiting(self) -> None:
        """All that wait now. Losses are counted by reason, and logged once per kind."""
        while (call := self._buffer.next_raw()) is not None:
            parts = self._guard.run(call.method, None, functools.partial(self._unpack, call))
            if parts is None:
                self._buffer.discard(call, "internal_error")
            else:
                self._buffer.replace(call, parts)

    def _unpack(self, call: RawCall) -> list[Part]:
        try:
            return call.unpack(self._pool, self._post_bytes)
        except WireError as error:
            self._refuse("invalid")
            self._guard.note(call.method, error)
            self._buffer.discard(call, "invalid")
            return []  # nothing is left to replace
