"""Alerts on their way out: what is said about them once, and to whom it still must be said.

`alerts` has one row per (run, kind, series). Several series often tell of the same trouble, so they
are gathered into *notices*, one per (run, kind, cause) while it lasts: a notice is what people
hear of. `outbox` has one row per notice, piece of news and target, written in the transaction that
stores the alerts; it is marked when the target took it. So an alert that is stored is sent, at
least once, whatever happens in between.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from twinscope_service.store.rows import alert_view, upsert_alert
from twinscope_service.views import AlertView

FELL = "level_fell"  # the trouble, for want of a worse one, of a level that came down

SILENCED, NOT_WANTED = KEPT_BACK = ("silenced", "not_wanted")  # why a target was not told

Muted = Callable[[Mapping[str, Any]], bool]  # news -> does somebody want to be left in peace?


class Database(Protocol):
    """What the outbox needs of the store."""

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """All or nothing."""
        ...

    def read(self, query: str, *values: object) -> list[sqlite3.Row]:
        """Rows of a query."""
        ...


@dataclass(frozen=True)
class OutboxRow:
    """One piece of news for one target. `news`: see `_news`."""

    id: int
    target: str
    run: str
    notice: int
    attempts: int
    news: Mapping[str, Any]


def record_alerts(
    db: sqlite3.Connection,
    run: str,
    alerts: Iterable[AlertView],
    *,
    diagnosis: Sequence[Mapping[str, Any]],
    targets: Sequence[str],
    at: float,
) -> None:
    """Store what the detectors said, and queue the news for every target. Inside a transaction."""
    touched: dict[int, None] = {}
    # Falls last: what rises in the same step has a notice for them to join.
    for alert in sorted(alerts, key=lambda one: one.state != "resolved" and one.came_down):
        number = upsert_alert(db, run, alert, at=at)
        touched[_notice_of(db, run, number, alert, at=at)] = None
    for notice in touched:
        _tell(db, notice, diagnosis=diagnosis, targets=targets, at=at)


def _cause_of(alert: AlertView) -> str:
    """What makes alerts of one kind the same trouble: the group they name, else the first cause."""
    if "{" in alert.series:
        return alert.series
    if alert.came_down:
        return FELL
    named = [cause for cause in alert.causes if cause != "numerical_noise"]
    return named[0] if named else ""


def _notice_of(
    db: sqlite3.Connection, run: str, number: int, alert: AlertView, *, at: float
) -> int:
    """The notice of an alert: the one it has, an open one of the same trouble, or a new one.

    An alert whose cause is not known joins any open notice of its kind in the run that is not
    about a group: the diagnosis of a later step may name a cause, but it is one trouble. So does a
    level that fell, which beside others is a part of theirs; none joins a notice of falls alone.
    """
    (known,) = db.execute("SELECT notice FROM alerts WHERE id = ?", (number,)).fetchone()
    if known is not None:
        return int(known)
    cause = _cause_of(alert)
    query = "SELECT id, cause FROM notices WHERE run = ? AND kind = ? AND resolved_at IS NULL"
    open_ones = db.execute(query, (run, alert.kind)).fetchall()
    same = [row["id"] for row in open_ones if _joins(cause, row["cause"])]
    if same:
        notice = int(same[0])
    else:
        insert = "INSERT INTO notices (run, kind, cause, state, started_at) VALUES (?,?,?,'',?)"
        notice = int(db.execute(insert, (run, alert.kind, cause, at)).lastrowid or 0)
    db.execute("UPDATE alerts SET notice = ? WHERE id = ?", (notice, number))
    return notice


def _joins(cause: str, notice: str) -> bool:
    if cause == notice:
        return True
    if "{" in cause or "{" in notice or notice == FELL:
        return False
    return cause in ("", FELL) or notice == ""


def _tell(
    db: sqlite3.Connection,
    notice: int,
    *,
    diagnosis: Sequence[Mapping[str, Any]],
    targets: Sequence[str],
    at: float,
) -> None:
    """A notice changed: its state from its alerts, and a row for every target."""
    row = db.execute("SELECT * FROM notices WHERE id = ?", (notice,)).fetchone()
    members = db.execute("SELECT * FROM alerts WHERE notice = ? ORDER BY id", (notice,)).fetchall()
    live = [member for member in members if member["resolved_at"] is None]
    states = {member["state"] for member in live}
    state = "firing" if "firing" in states else "provisional" if states else "resolved"
    resolved_at = at if state == "resolved" else None
    shown = sorted(live or members, key=_rank)
    news = _news(row, shown, state=state, resolved_at=resolved_at)
    news["diagnosis"] = [dict(cause) for cause in diagnosis[:3]]
    changed = _is_news(json.loads(row["news"]), news, shown, at=at)
    db.execute(
        "UPDATE notices SET state = ?, resolved_at = ?, told_at = ?, news = ? WHERE id = ?",
        (state, resolved_at, at if changed else row["told_at"], json.dumps(news), notice),
    )
    if changed and not _is_aside(db, row, news):
        queue(db, notice, row["run"], news, targets=targets, at=at)


_ALSO = ("series", "before", "after", "ratio")
MOVES_ALONG = ("abs_p99", "abs_p50", "rho_excess")  # with the mismatch
# Who speaks first: the side that is missing, then the mismatch itself, then what moves with it.
LEADERS = ("rollout", "train", "k3", *MOVES_ALONG)


def _rank(member: sqlite3.Row) -> tuple[int, int]:
    """By LEADERS; the others in the order of their beginning."""
    series = member["series"]
    return (LEADERS.index(series) if series in LEADERS else len(LEADERS), int(member["id"]))


def _is_news(
    last: Mapping[str, Any], news: Mapping[str, Any], shown: Sequence[sqlite3.Row], *, at: float
) -> bool:
    """Is it worth waking somebody again? Yes: another state, a further shift of a series that was
    firing, the mismatch itself joins. No: one more series of the same trouble begins or ends."""
    if news["state"] != last.get("state"):
        return True
    if news["series"][0] == "k3" != last["series"][0]:
        return True
    return any(
        member["at"] == at and member["state"] == "firing" and member["series"] in last["firing"]
        for member in shown
    )


def _is_aside(db: sqlite3.Connection, row: sqlite3.Row, news: Mapping[str, Any]) -> bool:
    """A spike of what moves with the mismatch, in a run that is told to be in trouble, and the end
    of one: it moves more while the mismatch is high. The mismatch and the others speak always."""
    if row["kind"] != "spike" or not set(news["series"]) <= set(MOVES_ALONG):
        return False
    if db.execute("SELECT 1 FROM outbox WHERE notice = ?", (row["id"],)).fetchone():
        return False
    trouble = (
        "SELECT 1 FROM notices WHERE run = ? AND resolved_at IS NULL AND state = 'firing' "
        "AND kind IN ('level_shift', 'growth', 'inconsistent') AND cause != ?"
    )
    fires = db.execute(trouble, (row["run"], FELL)).fetchone() is not None
    return fires or news["state"] == "resolved"


def _news(
    row: sqlite3.Row,
    shown: Sequence[sqlite3.Row],
    *,
    state: str,
    resolved_at: float | None,
) -> dict[str, Any]:
    """The snapshot that is sent, whenever it is sent. `shown`: the alerts of it, leader first."""
    return {
        "notice": row["id"],
        "run": row["run"],
        "kind": row["kind"],
        "cause": row["cause"],
        "state": state,
        "started_at": row["started_at"],
        "resolved_at": resolved_at,
        "reminder": False,
        "series": [member["series"] for member in shown],
        "firing": [member["series"] for member in shown if member["state"] == "firing"],
        "also": [{name: member[name] for name in _ALSO} for member in shown[1:]],
        "alert": alert_view(shown[0]).as_json(),
        "diagnosis": [],
    }


def queue(
    db: sqlite3.Connection,
    notice: int,
    run: str,
    news: Mapping[str, Any],
    *,
    targets: Sequence[str],
    at: float,
) -> None:
    """One row per target."""
    rows = [(target, run, notice, json.dumps(news), at) for target in targets]
    columns = "(target, run, notice, news, created_at)"
    db.executemany(f"INSERT INTO outbox {columns} VALUES (?,?,?,?,?)", rows)


class Outbox:
    """What the senders ask of the store. Thread-safe; every call is one transaction."""

    def __init__(self, store: Database, targets: Sequence[str]) -> None:
        self._store, self._targets = store, tuple(targets)
        known = ",".join("?" * len(self._targets))
        with store.transaction() as db:  # nobody will ever send these
            db.execute(
                "UPDATE outbox SET delivered_at = 0, last_error = 'target removed' "
                f"WHERE delivered_at IS NULL AND target NOT IN ({known})",
                self._targets,
            )

    def due(self, target: str, *, limit: int = 64) -> list[OutboxRow]:
        """The oldest undelivered rows of a target, in order."""
        query = "SELECT * FROM outbox WHERE target = ? AND delivered_at IS NULL ORDER BY id LIMIT ?"
        return [
            OutboxRow(
                row["id"], target, row["run"], row["notice"], row["attempts"],
                json.loads(row["news"]),
            )
            for row in self._store.read(query, target, limit)
        ]  # fmt: skip

    def settle(self, rows: Sequence[OutboxRow], *, at: float, note: str = "") -> None:
        """These need not be sent again. `note`: why, if they were not delivered."""
        values = [(at, note or None, row.id) for row in rows]
        with self._store.transaction() as db:
            db.executemany(
                "UPDATE outbox SET delivered_at = ?, last_error = ? WHERE id = ?", values
            )

    def untold(self, row: OutboxRow) -> bool:
        """Was everything before this row, about the same trouble, kept from its target?"""
        query = "SELECT last_error FROM outbox WHERE target = ? AND notice = ? AND id < ?"
        before = self._store.read(query, row.target, row.notice, row.id)
        return bool(before) and all(told["last_error"] in KEPT_BACK for told in before)

    def silence(self, rows: Sequence[OutboxRow], *, at: float) -> None:
        """Not sent, because a silence window is open: told again when it is over and they fire."""
        self.settle(rows, at=at, note=SILENCED)
        with self._store.transaction() as db:
            db.executemany(
                "UPDATE notices SET told_at = 0 WHERE id = ? AND resolved_at IS NULL",
                [(row.notice,) for row in rows],
            )

    def fail(self, rows: Sequence[OutboxRow], *, error: str) -> None:
        """An attempt failed; they stay."""
        with self._store.transaction() as db:
            db.executemany(
                "UPDATE outbox SET attempts = attempts + 1, last_error = ? WHERE id = ?",
                [(error[:500], row.id) for row in rows],
            )

    def remind(self, *, now: float, repeat_s: float, muted: Muted) -> int:
        """Queue again what has been firing for `repeat_s` since it was told. Returns how many."""
        query = (
            "SELECT * FROM notices WHERE resolved_at IS NULL AND state = 'firing' AND told_at <= ?"
        )
        told = 0
        for row in self._store.read(query, now - repeat_s):
            news = {**json.loads(row["news"]), "reminder": self._was_told(row["id"])}
            if muted(news):
                continue
            with self._store.transaction() as db:
                db.execute("UPDATE notices SET told_at = ? WHERE id = ?", (now, row["id"]))
                queue(db, row["id"], row["run"], news, targets=self._targets, at=now)
            told += 1
        return told

    def _was_told(self, notice: int) -> bool:
        """Was anybody told of it, or will be? If not, its next news are no reminder."""
        query = "SELECT last_error FROM outbox WHERE notice = ?"
        return any(row["last_error"] not in KEPT_BACK for row in self._store.read(query, notice))

    def pending(self) -> dict[str, int]:
        """Undelivered rows per target."""
        query = (
            "SELECT target, count(*) AS n FROM outbox WHERE delivered_at IS NULL GROUP BY target"
        )
        found = {row["target"]: int(row["n"]) for row in self._store.read(query)}
        return {target: found.get(target, 0) for target in self._targets}

    def forget(self, *, before: float) -> None:
        """Drop delivered rows older than `before`."""
        with self._store.transaction() as db:
            db.execute(
                "DELETE FROM outbox WHERE delivered_at IS NOT NULL AND created_at < ?", (before,)
            )
