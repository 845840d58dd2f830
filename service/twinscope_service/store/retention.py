"""What is removed when: by age, by number of steps, by size. Oldest first, a little at a time."""

from __future__ import annotations

import sqlite3

from twinscope_service.store.base import Retention

STEPS_AT_A_TIME = 64
VACUUM_PAGES = 2000
ROUNDS = 16


def live_bytes(db: sqlite3.Connection) -> int:
    """Bytes of pages in use."""
    pages, free, size = (
        db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def drop_old(db: sqlite3.Connection, policy: Retention, *, now: float) -> None:
    """Steps past their age with all that belongs to them, events, and ids of finished batches."""
    query = "SELECT run, step FROM steps WHERE closed_at < ? ORDER BY closed_at LIMIT ?"
    _drop_steps(db, db.execute(query, (now - policy.age_s, STEPS_AT_A_TIME)).fetchall())
    db.execute("DELETE FROM events WHERE at < ?", (now - policy.age_s,))
    db.execute(
        "DELETE FROM batches WHERE seq IN "
        "(SELECT seq FROM batches WHERE done = 1 AND received_at < ? LIMIT 10000)",
        (now - policy.resend_s,),
    )
    db.execute(
        "DELETE FROM runs WHERE last_seen < ? AND run NOT IN (SELECT run FROM steps) "
        "AND run NOT IN (SELECT run FROM batches WHERE done = 0)",
        (now - policy.age_s,),
    )


def drop_beyond_counts(db: sqlite3.Connection, policy: Retention) -> None:
    """Blobs of steps that are not among the latest so many of their run."""
    for kind, keep in (
        ("rows", policy.rows_steps),
        ("evidence", policy.evidence_steps),
        ("memory", policy.memory_steps),
    ):
        for (run,) in db.execute("SELECT run FROM runs").fetchall():
            db.execute(
                "DELETE FROM blobs WHERE run = ? AND kind = ? AND step <= coalesce("
                "(SELECT step FROM steps WHERE run = ? ORDER BY step DESC LIMIT 1 OFFSET ?), -1)",
                (run, kind, run, keep),
            )


def drop_beyond_size(db: sqlite3.Connection, policy: Retention) -> None:
    """The oldest evidence, then rows, then whole steps, until the database fits."""
    for _ in range(ROUNDS):
        if live_bytes(db) <= policy.size_bytes:
            return
        if not (_drop_oldest(db, "evidence") or _drop_oldest(db, "rows")):
            query = "SELECT run, step FROM steps ORDER BY closed_at LIMIT ?"
            _drop_steps(db, db.execute(query, (STEPS_AT_A_TIME,)).fetchall())


def _drop_oldest(db: sqlite3.Connection, kind: str) -> int:
    """How many blobs of a kind were there to remove."""
    return db.execute(
        "DELETE FROM blobs WHERE rowid IN (SELECT blobs.rowid FROM blobs JOIN steps "
        "USING (run, step) WHERE kind = ? ORDER BY closed_at LIMIT ?)",
        (kind, STEPS_AT_A_TIME),
    ).rowcount


def _drop_steps(db: sqlite3.Connection, steps: list[sqlite3.Row]) -> None:
    for run, step in steps:
        for table in ("steps", "blobs", "scalars"):
            db.execute(f"DELETE FROM {table} WHERE run = ? AND step = ?", (run, step))
