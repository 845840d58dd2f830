"""Silences that somebody asked for while the service runs: stored, so that a restart keeps them.

Those of the settings are windows of `alert.target`; these have an id, an end, and a reason.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from twinscope_service.errors import Overloaded, UnknownSilence
from twinscope_service.store.outbox import Database

MOST_OPEN = 1000
LONGEST_S = 30 * 86400.0  # for ever hides a fault; a window of the settings can repeat
KEEP_ENDED_S = 7 * 86400.0


@dataclass(frozen=True)
class Silence:
    """Nobody is told about these runs, kinds and series from `start` to `end` (epoch seconds)."""

    id: int  # 0: not stored yet
    run: str | None  # exactly this run; None: every run that matches `runs`
    runs: str  # glob
    kinds: tuple[str, ...]
    series: str  # glob
    start: float
    end: float
    reason: str = ""

    def covers(self, run: str, kind: str, series: Sequence[str], *, now: float) -> bool:
        """Is news of this run, of this kind, in these series silenced? All series must match."""
        return (
            self.start <= now < self.end
            and kind in self.kinds
            and (fnmatchcase(run, self.runs) if self.run is None else run == self.run)
            and all(fnmatchcase(name, self.series) for name in series)
        )

    def as_json(self) -> dict[str, Any]:
        """For the API."""
        return {**self.__dict__, "kinds": list(self.kinds)}


class Silences:
    """The table of silences. Thread-safe: every call is one transaction or one query."""

    def __init__(self, store: Database) -> None:
        self._store = store

    def add(self, silence: Silence) -> Silence:
        """Store it; the id is new. Raises Overloaded when too many are open."""
        if len(self.open(now=silence.start)) >= MOST_OPEN:
            raise Overloaded(
                f"{MOST_OPEN} silences are open",
                retry_after_s=60.0,
                fix="end some (DELETE /v1/silences/ID), or silence many runs by one glob",
            )
        values = (
            silence.run, silence.runs, json.dumps(silence.kinds), silence.series,
            silence.start, silence.end, silence.reason,
        )  # fmt: skip
        insert = (
            "INSERT INTO silences (run, runs, kinds, series, start_at, end_at, reason) "
            "VALUES (?,?,?,?,?,?,?)"
        )
        with self._store.transaction() as db:
            return replace(silence, id=int(db.execute(insert, values).lastrowid or 0))

    def open(self, *, now: float) -> list[Silence]:
        """Those that are not over, in the order in which they were asked for."""
        rows = self._store.read("SELECT * FROM silences WHERE end_at > ? ORDER BY id", now)
        return [_silence(row) for row in rows]

    def find(self, number: int) -> Silence:
        """One of them, open or over. Raises UnknownSilence."""
        rows = self._store.read("SELECT * FROM silences WHERE id = ?", number)
        if not rows:
            raise UnknownSilence(number)
        return _silence(rows[0])

    def end(self, number: int, *, now: float) -> Silence:
        """It is over now, if it was not. Raises UnknownSilence."""
        with self._store.transaction() as db:
            db.execute("UPDATE silences SET end_at = min(end_at, ?) WHERE id = ?", (now, number))
        return self.find(number)

    def forget(self, *, now: float) -> None:
        """Drop those that were over a week ago."""
        with self._store.transaction() as db:
            db.execute("DELETE FROM silences WHERE end_at < ?", (now - KEEP_ENDED_S,))


def _silence(row: sqlite3.Row) -> Silence:
    return Silence(
        id=row["id"],
        run=row["run"],
        runs=row["runs"],
        kinds=tuple(json.loads(row["kinds"])),
        series=row["series"],
        start=row["start_at"],
        end=row["end_at"],
        reason=row["reason"],
    )
