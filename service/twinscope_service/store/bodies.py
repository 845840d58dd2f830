"""Accepted bodies by sequence number: on disk in the inbox, decoded when somebody asks."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from twinscope.errors import WireError
from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode
from twinscope.wire.limits import Limits
from twinscope_service.errors import StoreError
from twinscope_service.store.inbox import Inbox

OPEN_AT_A_TIME = 256  # bodies kept open; a large one holds a file descriptor
OPEN_BYTES = 128 << 20  # of all that are kept open: touched pages of a mapped file count as memory

log = logging.getLogger(__name__)


@dataclass
class KeptBody:
    """A body on disk. It is removed again unless the store accepts it."""

    digest: bytes
    file: str
    bytes: int
    accepted: bool = False

    @contextmanager
    def claimed(self, *, by_store: bool) -> Iterator[None]:
        """Around the commit: only a commit that certainly failed leaves the file unowned.

        When in doubt the file stays; a file that no accepted batch owns is swept at the start.
        """
        self.accepted = by_store
        try:
            yield
        except StoreError:
            self.accepted = False
            raise


class Bodies:
    """The arrays of every accepted batch whose step is open. Guarded by the pipeline's lock,
    except `keep`, which works outside of it."""

    def __init__(self, inbox: Inbox, *, limits: Limits) -> None:
        self._inbox, self._limits = inbox, limits
        self._files: dict[int, str] = {}
        self._present: dict[int, Batch] = {}  # in the memory of a request
        self._open: OrderedDict[int, Batch] = OrderedDict()
        self._open_bytes = 0
        self.bytes = 0  # of accepted bodies on disk
        self._sizes: dict[int, int] = {}

    @contextmanager
    def keep(self, body: memoryview | bytes, *, digest: bytes) -> Iterator[KeptBody]:
        """Write a body to disk; after the block it is gone again unless it was adopted.

        The file's name is its own: equal bodies may be on their way twice.
        """
        file = self._inbox.put(f"{digest.hex()}-{uuid4().hex[:8]}", body)
        kept = KeptBody(digest, file, len(body))
        try:
            yield kept
        finally:
            if not kept.accepted:
                self._inbox.remove(file)

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes more could be written now."""
        return self._inbox.fits(nbytes)

    def adopt(self, seq: int, kept: KeptBody, batch: Batch | None) -> None:
        """A body is accepted. `batch`: its arrays, if they are in memory: `load` finds them there
        until `release`."""
        kept.accepted = True
        self._files[seq], self._sizes[seq] = kept.file, kept.bytes
        self.bytes += kept.bytes
        if batch is not None:
            self._present[seq] = batch

    def release(self, seq: int) -> None:
        """Let go of the arrays in memory; from now on they are read from disk."""
        self._present.pop(seq, None)

    def load(self, seq: int) -> Batch:
        """The arrays of an accepted batch, as views of the file. Raises StoreError."""
        if seq in self._present:
            return self._present[seq]
        if seq in self._open:
            self._open.move_to_end(seq)
            return self._open[seq]
        batch = self._decode(seq)
        self._open[seq] = batch
        self._open_bytes += self._sizes[seq]
        while len(self._open) > 1 and self._too_much_open():
            self._shut(next(iter(self._open)))
        return batch

    def _too_much_open(self) -> bool:
        return len(self._open) > OPEN_AT_A_TIME or self._open_bytes > OPEN_BYTES

    def _shut(self, seq: int) -> None:
        if self._open.pop(seq, None) is not None:
            self._open_bytes -= self._sizes[seq]

    def raw(self, seq: int) -> memoryview:
        """The bytes of an accepted body. Raises StoreError."""
        try:
            return self._inbox.read(self._files[seq])
        except (OSError, KeyError) as error:
            raise _unreadable(self._files.get(seq, str(seq)), error) from error

    def forget(self, files: Iterable[str]) -> None:
        """Remove bodies that no open step needs."""
        gone = set(files)
        for seq in [seq for seq, file in self._files.items() if file in gone]:
            self._shut(seq)
            self.bytes -= self._sizes.pop(seq)
            self._inbox.remove(self._files.pop(seq))

    def put_aside(self, seq: int) -> None:
        """A body that cannot be read: out of the way, for a person to look at."""
        self._shut(seq)
        self.bytes -= self._sizes.pop(seq)
        self._inbox.quarantine(self._files.pop(seq))

    def close(self) -> None:
        """Let go of the open files."""
        self._present.clear()
        self._open.clear()
        self._open_bytes = 0

    def quarantined(self) -> int:
        """Bodies that were put aside, ever."""
        return self._inbox.quarantined()

    def _decode(self, seq: int) -> Batch:
        try:
            return decode(self.raw(seq), limits=self._limits)
        except WireError as error:
            raise _unreadable(self._files[seq], error) from error


def _unreadable(file: str, error: Exception) -> StoreError:
    return StoreError(
        f"body {file} cannot be read back: {error}",
        field="data_dir",
        fix="check the disk of the data directory",
    )
