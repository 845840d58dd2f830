"""What is removed when: by age, by number of steps, by size. Oldest first, a little at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import accumulate

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
    """The oldest evidence, then rows, then whole steps, until the database fits and no further."""
    for _ in range(ROUNDS):
        excess = live_bytes(db) - policy.size_bytes
        if excess <= 0:
            return
        if not (_drop_oldest(db, "evidence", excess) or _drop_oldest(db, "rows", excess)):
            query = (
                "SELECT run, step, length(view) + (SELECT coalesce(sum(length(data)), 0) "
                "FROM blobs WHERE blobs.run = steps.run AND blobs.step = steps.step) AS bytes "
                "FROM steps ORDER BY closed_at LIMIT ?"
            )
            _drop_steps(db, _enough(db.execute(query, (STEPS_AT_A_TIME,)).fetchall(), excess))


def _drop_oldest(db: sqlite3.Connection, kind: str, excess: int) -> int:
    """Remove blobs of a kind until `excess` bytes are gone; how many there were to remove."""
    query = (
        "SELECT blobs.rowid, length(data) AS bytes FROM blobs JOIN steps USING (run, step) "
        "WHERE kind = ? ORDER BY closed_at LIMIT ?"
    )
    found = _enough(db.execute(query, (kind, STEPS_AT_A_TIME)).fetchall(), excess)
    db.executemany("DELETE FROM blobs WHERE rowid = ?", [row[:1] for row in found])
    return len(found)


def _enough(rows: Sequence[sqlite3.Row], excess: int) -> Sequence[sqlite3.Row]:
    """The first rows whose `bytes`, the last column, add up to `excess`; all, if they do not."""
    sums = accumulate(row[-1] for row in rows)
    return rows[: next((i for i, total in enumerate(sums, 1) if total >= excess), len(rows))]


def _drop_steps(db: sqlite3.Connection, steps: Sequence[sqlite3.Row]) -> None:
    for run, step in (row[:2] for row in steps):
        for table in ("steps", "blobs", "scalars"):
            db.execute(f"DELETE FROM {table} WHERE run = ? AND step = ?", (run, step))
