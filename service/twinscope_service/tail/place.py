"""Where a tail is: the steps that the service has, in a file that survives the tail.

    {"version": 1, "sent": {"http://host:8321 my-run": {"12": "9f86d081884c7d65", ...}}}

A step is recorded when the service has acknowledged all of it, with a digest of its files' names
and sizes: files that are written again, by a run that was resumed, are other data. One file serves
several runs and services. Written by replacing it whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from twinscope.errors import ConfigError
from twinscope_service.tail.dumps import Step

FILE_NAME = ".twinscope-tail.json"
VERSION = 1


def digest(step: Step) -> str:
    """Of the names and sizes of a step's files."""
    files = sorted([path.name, path.stat().st_size] for path in step.files)
    return hashlib.blake2b(json.dumps(files).encode(), digest_size=8).hexdigest()


@dataclass
class Place:
    """What was sent of one folder to one run. `path` None: remembered in this process only."""

    path: Path | None = None
    key: str = ""
    sent: dict[int, str] = field(default_factory=dict)  # step -> digest

    @classmethod
    def load(cls, path: Path, *, url: str | None, run: str) -> Place:
        """What an earlier tail left. Raises ConfigError for a file that is something else."""
        key = f"{url} {run}"
        try:
            known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            sent = known.get("sent", {}).get(key, {})
            return cls(path, key, {int(number): str(mark) for number, mark in sent.items()})
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{path}: {error}; not a file of twinscope tail: name another with --state"
            ) from error

    def has(self, step: Step) -> bool:
        """Whether the service has this step, as its files are now."""
        return self.sent.get(step.number) == digest(step)

    def was_other(self, step: Step) -> bool:
        """Whether a step of this number was sent from other files: the run was resumed."""
        return step.number in self.sent and not self.has(step)

    def record(self, step: Step, *, tell: Callable[[str], None]) -> None:
        """The service has it. A file that cannot be written is told, and not tried again."""
        self.sent[step.number] = digest(step)
        if self.path is None:
            return
        try:
            self._write(self.path)
        except (OSError, ValueError) as error:
            tell(f"{error}: after a restart all steps are sent again; see --state")
            self.path = None

    def _write(self, path: Path) -> None:
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        mine = {str(number): mark for number, mark in sorted(self.sent.items())}
        sent = {**known.get("sent", {}), self.key: mine}
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump({"version": VERSION, "sent": sent}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
