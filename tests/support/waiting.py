"""Waiting for what another thread or process does, without hoping that a sleep was long enough."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(predicate: Callable[[], object], *, timeout_s: float = 20.0) -> bool:
    """Whether `predicate()` becomes true; looks often, gives up after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if predicate():
            return True
        time.sleep(0.002)
    return bool(predicate())
