"""A data directory is opened: by one service at a time, with the bodies that still wait."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from twinscope.errors import ConfigError
from twinscope_service.alert.target import parse_targets
from twinscope_service.config import Settings
from twinscope_service.errors import StoreError
from twinscope_service.stages import build_limits
from twinscope_service.store.bodies import Bodies
from twinscope_service.store.inbox import Inbox
from twinscope_service.store.sqlite import SqliteStore, open_store

LOCK = "lock"


class DataDir:
    """The data directory while this process holds it."""

    def __init__(self, settings: Settings) -> None:
        self._path = Path(settings.data_dir)
        self._lock = _lock(self._path)
        power_safe = settings.durability == "power"
        try:
            self.store: SqliteStore
            self.store, was_lost = open_store(self._path, power_safe=power_safe)
            self.store.targets = tuple(t.name for t in parse_targets(settings.alert_targets))
            inbox = Inbox(self._path, fsync=power_safe)
            inbox.sweep((b.file for b in self.store.open_batches()), forget=not was_lost)
        except BaseException:
            os.close(self._lock)
            raise
        self.bodies = Bodies(inbox, limits=build_limits(settings))

    def release(self) -> None:
        """Let another process have it."""
        self.store.close()
        self.bodies.close()
        os.close(self._lock)


def _lock(path: Path) -> int:
    """An advisory lock; it goes with the process, however that dies."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(
            f"data_dir {path}: {error.strerror}; give a folder that can be written"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StoreError(
            f"data_dir {path} is used by another service",
            field="data_dir",
            value=str(path),
            fix="stop the other one, or give this one its own folder",
        ) from error
    return handle
