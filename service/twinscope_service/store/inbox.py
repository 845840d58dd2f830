"""The folder of bodies that still wait: one file per accepted batch, read back through mmap."""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from twinscope_service.errors import StoreError

DIGEST_BYTES = 16
SUFFIX = ".safetensors"
TEMPORARY = ".tmp"
MAPPED_BYTES = 1 << 20

log = logging.getLogger(__name__)


def body_digest(body: memoryview | bytes) -> bytes:
    """16 bytes that name a body (SHA-256, cut: the fastest good hash on machines of today)."""
    return hashlib.sha256(body).digest()[:DIGEST_BYTES]


class Inbox:
    """Bodies on disk. A name is complete or absent: files are written aside and renamed."""

    def __init__(self, data_dir: Path, *, fsync: bool) -> None:
        self._folder, self._quarantine = data_dir / "inbox", data_dir / "quarantine"
        self._fsync = fsync
        self._folder.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, body: memoryview | bytes) -> str:
        """Keep a body; returns the file's name. Raises StoreError, and then nothing is left."""
        final = self._folder / f"{name}{SUFFIX}"
        aside = self._folder / f"{name}.{uuid4().hex}{TEMPORARY}"
        try:
            with aside.open("wb", buffering=0) as file:
                _write_all(file.fileno(), memoryview(body).cast("B"))
                if self._fsync:
                    os.fsync(file.fileno())
            aside.replace(final)
            if self._fsync:
                self._fsync_folder()
        except OSError as error:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise _full(final, error) from error
        return final.name

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes more could be written now: a trial, of which nothing is left."""
        disk = os.statvfs(self._folder)
        if disk.f_bavail * disk.f_frsize < nbytes:
            return False  # a trial would take the rest, from whoever else writes
        trial = self._folder / f"trial-{uuid4().hex}{TEMPORARY}"
        try:
            with trial.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, nbytes)
        except OSError:
            return False
        finally:
            with suppress(OSError):
                trial.unlink(missing_ok=True)
        return True

    def read(self, file: str) -> memoryview:
        """The body, read-only. A large one is a view of the file: its pages come and go with the
        page cache, and it costs a file descriptor; a small one is read."""
        with (self._folder / file).open("rb") as handle:
            if os.fstat(handle.fileno()).st_size < MAPPED_BYTES:
                return memoryview(handle.read())
            return memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))

    def remove(self, file: str) -> None:
        """Forget a body. Views of it stay valid; a file that is gone already is fine."""
        with suppress(FileNotFoundError):
            (self._folder / file).unlink()

    def quarantine(self, file: str) -> None:
        """Put a body that cannot be read aside, for a person to look at."""
        self._quarantine.mkdir(exist_ok=True)
        with suppress(OSError):
            (self._folder / file).replace(self._quarantine / file)

    def quarantined(self) -> int:
        """How many files were put aside, ever."""
        return sum(1 for _ in self._quarantine.glob("*")) if self._quarantine.exists() else 0

    def sweep(self, known: Iterable[str], *, forget: bool) -> None:
        """Deal with files that no accepted batch owns: the process died before acknowledging.

        `forget` removes them; otherwise (the database was lost) they are put aside.
        """
        names = set(known)
        dispose: Callable[[str], None] = self.remove if forget else self.quarantine
        for path in self._folder.iterdir():
            if path.suffix == TEMPORARY:
                self.remove(path.name)
            elif path.name not in names:
                dispose(path.name)

    def bytes(self) -> int:
        """Size of all bodies."""
        total = 0
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def _fsync_folder(self) -> None:
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_all(handle: int, view: memoryview) -> None:
    """write(2) takes at most 2 GiB and may take less."""
    while view:
        view = view[os.write(handle, view[: 1 << 30]) :]


def _full(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot write {path.name}: {error.strerror}",
        field="data_dir",
        fix="free space in the data directory, then send the batch again",
    )
