"""Waiting for what another thread or process does, without hoping that a sleep was long enough."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(predicate: Callable[[], object], *, timeout_s: float = 20.0) -> bool:
    """Whether `predicate()` becomes true; gives up after `timeout_s`.

    Looks often at first, then ten times a second: who waits for a busy process must not keep it
    busy.
    """
    deadline, pause = time.monotonic() + timeout_s, 0.002
    while time.monotonic() < deadline:
        if predicate():
            return True
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)
    return bool(predicate())
