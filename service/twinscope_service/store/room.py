"""Whether the data directory takes what comes: what /readyz says of a full disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from twinscope_service.errors import StoreError

MARGIN_BYTES = 1 << 20  # for the database beside a body: rows, and pages of its log

log = logging.getLogger(__name__)


class Room:
    """Remembers that a body was refused until one is taken, or it would fit. Thread-safe.

    `fits`: whether so many bytes could be written now.
    """

    def __init__(self, fits: Callable[[int], bool]) -> None:
        self._fits = fits
        self._lock = threading.Lock()
        self._refused: StoreError | None = None
        self._wanted = 0  # bytes of the smallest body that was refused

    @contextmanager
    def keeping(self, nbytes: int) -> Iterator[None]:
        """Around the acceptance of a body: what the data directory refuses is remembered."""
        try:
            yield
        except StoreError as error:
            self._shut(error, nbytes)
            raise
        with self._lock:
            if self._refused is not None and nbytes >= self._wanted:
                self._open()

    def refused(self) -> StoreError | None:
        """Why bodies are refused; None: they are taken. Looks whether there is room again."""
        with self._lock:
            if self._refused is not None and self._fits(self._wanted + MARGIN_BYTES):
                self._open()
            return self._refused

    def _shut(self, error: StoreError, nbytes: int) -> None:
        with self._lock:
            if self._refused is None:
                self._wanted = nbytes
                log.warning("not ready, batches are refused: %s", error)
            self._refused, self._wanted = error, min(self._wanted, nbytes)

    def _open(self) -> None:
        self._refused = None
        log.warning("ready, there is room for batches again")
