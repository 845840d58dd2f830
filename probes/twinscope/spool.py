"""The spool: a folder of trace files for the time when the service is away.

    DIR/<start>-<pid>-<random>/lock               held (flock) while its process lives
    DIR/<start>-<pid>-<random>/<n>-<tokens>-<batch id>.safetensors
    DIR/<start>-<pid>-<random>/<n>-0-<batch id>.json          scalars, events, closed steps

A batch in the spool is a trace file: `twinscope analyze` reads it. Files appear whole (written
aside, then renamed) and are sent oldest first. A process that finds a folder whose lock is free
takes over what its dead owner left. No fsync: the spool survives the process, not the machine.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from twinscope.books import Count
from twinscope.clock import Clock
from twinscope.errors import WireError
from twinscope.items import JSON_TYPE, Item, Post, new_id
from twinscope.wire.schema import CONTENT_TYPE

try:
    import fcntl
except ImportError:  # Windows: a spool is written, but not taken over
    fcntl = None  # type: ignore[assignment]

FILE_NAME = re.compile(r"\d{12}-(\d{1,18})-([0-9a-f]{32}(?:\.\d{1,9})?)\.(safetensors|json)")
Loss = Callable[[Count, str], None]


@dataclass(frozen=True)
class SpooledItem:
    """One file of the spool."""

    path: Path
    count: Count
    nbytes: int
    batch_id: str

    def post(self) -> Post:
        """The request. Raises OSError or WireError when the file is gone or not ours."""
        content = self.path.read_bytes()
        if self.path.suffix == ".safetensors":
            return Post("/v1/batches", CONTENT_TYPE, self.batch_id, [content])
        kept = _unwrap(content)
        if not isinstance(kept, dict) or not str(kept.get("path")).startswith("/v1/"):
            raise WireError(str(self.path), "not a spooled message", "remove the file")
        body = json.dumps(kept.get("body"), separators=(",", ":")).encode()
        return Post(str(kept["path"]), JSON_TYPE, self.batch_id, [body])


class Spool:
    """This process's part of the folder. `lose(count, reason)` is told what had to go."""

    def __init__(self, folder: Path, *, limit_bytes: int, clock: Clock, lose: Loss) -> None:
        self._limit = limit_bytes
        self._lose = lose
        self._lock = threading.Lock()  # the sending thread, and whoever closes
        self._next = 0
        self.nbytes = 0
        self._items: deque[SpooledItem] = deque()
        self._locks: dict[Path, int] = {}  # folder -> file descriptor that holds its lock
        start = int(clock.wall() * 1000)
        self._own = folder / f"{start:014d}-{os.getpid()}-{new_id()[:8]}"
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def adopt(self) -> Count:
        """Take over what processes that have ended left behind; how much that is."""
        found = Count()
        for folder in sorted(path for path in self._folder.iterdir() if path.is_dir()):
            descriptor = _try_lock(folder)
            if descriptor is None:
                continue
            self._locks[folder] = descriptor
            for item in _list_folder(folder):
                self._items.append(item)
                self.nbytes += item.nbytes
                found += item.count
            self._tidy(folder)
        return found

    def write(self, item: Item) -> bool:
        """Keep one item; False when it is larger than the whole spool. Raises OSError."""
        post = item.post()
        content = post.pieces if post.content_type == CONTENT_TYPE else [_wrap(post)]
        size = sum(len(piece) for piece in content)
        if size > self._limit:
            return False
        with self._lock:
            while self._items and self.nbytes + size > self._limit:
                self._evict()
            path = self._own / self._name(item, post)
            self._write_whole(path, content)
            self._items.append(SpooledItem(path, item.count, size, item.batch_id))
            self.nbytes += size
        return True

    def _name(self, item: Item, post: Post) -> str:
        self._next += 1
        suffix = "safetensors" if post.content_type == CONTENT_TYPE else "json"
        return f"{self._next:012d}-{item.count.tokens}-{item.batch_id}.{suffix}"

    def _write_whole(self, path: Path, content: Sequence[bytes | memoryview]) -> None:
        if self._own not in self._locks:
            self._own.mkdir(mode=0o700, exist_ok=True)
            descriptor = _try_lock(self._own, create=True)
            if descriptor is not None:
                self._locks[self._own] = descriptor
        aside = path.with_suffix(".partial")
        try:
            with open(aside, "wb") as file:
                file.writelines(content)
            os.replace(aside, path)
        except OSError:
            with suppress(OSError):
                aside.unlink()
            raise

    def _evict(self) -> None:
        item = self._items[0]
        self._forget(item)
        self._lose(item.count, "spool_full")

    def oldest(self) -> SpooledItem | None:
        """The next to send; stays until `remove`."""
        with self._lock:
            return self._items[0] if self._items else None

    def remove(self, item: SpooledItem) -> bool:
        """Delete a file whose fate is settled; False when it has been evicted meanwhile."""
        with self._lock:
            if item not in self._items:
                return False
            self._forget(item)
            return True

    def _forget(self, item: SpooledItem) -> None:
        self._items.remove(item)
        self.nbytes -= item.nbytes
        with suppress(OSError):
            item.path.unlink()
        self._tidy(item.path.parent)

    def _tidy(self, folder: Path) -> None:
        """Remove a folder taken over from another process once it is empty."""
        if folder != self._own and not any(item.path.parent == folder for item in self._items):
            self._release(folder)

    def _release(self, folder: Path) -> None:
        with suppress(OSError):
            (folder / "lock").unlink()
            folder.rmdir()  # fails, rightly, when something that is not ours is left
        descriptor = self._locks.pop(folder, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Let go of the locks: what is left is for the next process."""
        with self._lock:
            if not self._items and self._own in self._locks:
                self._release(self._own)
            for descriptor in self._locks.values():
                os.close(descriptor)
            self._locks.clear()

    def forget_after_fork(self) -> None:
        """In the child: the files and the locks are the parent's; only our copies are closed."""
        for descriptor in self._locks.values():
            with suppress(OSError):
                os.close(descriptor)


def _wrap(post: Post) -> bytes:
    """A message as a file: its address and its body."""
    text = b"".join(post.pieces).decode()
    return b'{"path":%s,"body":%s}' % (json.dumps(post.path).encode(), (text or "null").encode())


def _unwrap(content: bytes) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _list_folder(folder: Path) -> list[SpooledItem]:
    """What is in another process's folder, oldest first; files half written are removed.

    Its owner, or another heir, may remove the folder while we look.
    """
    items = []
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            item = _read_name(path)
            if item is not None:
                items.append(item)
            elif path.suffix == ".partial":
                path.unlink()
    return items


def _read_name(path: Path) -> SpooledItem | None:
    """A spool file by its name; None: not one."""
    match = FILE_NAME.fullmatch(path.name)
    if match is None:
        return None
    tokens, batch_id, suffix = match.groups()
    batch = Count(batches=1, tokens=int(tokens))
    count = batch if suffix == "safetensors" else Count(messages=1)
    return SpooledItem(path, count, path.stat().st_size, batch_id)


def _try_lock(folder: Path, *, create: bool = False) -> int | None:
    """The lock of a folder: an open file descriptor, or None when its owner lives (or no flock)."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
