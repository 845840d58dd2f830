"""The database schema as a list of migrations; `PRAGMA user_version` counts those applied.

Append, never edit: a data directory of any earlier version is brought forward step by step.
"""

from __future__ import annotations

import sqlite3

from twinscope_service.errors import StoreError

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE runs (
        run TEXT PRIMARY KEY,
        first_seen REAL NOT NULL,          -- seconds since the epoch
        last_seen REAL NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE batches (                 -- every accepted batch or summary; the list of re-sends
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL,
        batch_id TEXT NOT NULL,            -- as sent, or the digest
        digest BLOB NOT NULL,              -- of the body, 16 bytes
        kind TEXT NOT NULL,                -- batch, summary
        step INTEGER,                      -- of a summary; of a batch the body tells
        file TEXT NOT NULL,                -- in the inbox; '' when nothing of the body is needed
        bytes INTEGER NOT NULL,
        received_at REAL NOT NULL,
        receipt TEXT NOT NULL,             -- JSON, the answer of the first time
        settled BLOB,                      -- per sample: join.records.Outcome, 255 unsettled
        done INTEGER NOT NULL DEFAULT 0,   -- 1: no sample needs the body any more
        UNIQUE (run, batch_id)
    );
    CREATE INDEX batches_open ON batches (seq) WHERE done = 0;
    CREATE INDEX batches_age ON batches (received_at) WHERE done = 1;

    CREATE TABLE steps (                   -- closed steps
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        closed_at REAL NOT NULL,
        verdict TEXT NOT NULL,
        view TEXT NOT NULL,                -- JSON of the step without scalars
        late INTEGER NOT NULL DEFAULT 0,   -- samples that came after the close
        duplicates INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (run, step)
    ) WITHOUT ROWID;
    CREATE INDEX steps_age ON steps (closed_at);

    CREATE TABLE blobs (                   -- of closed steps; kinds have their own retention
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        kind TEXT NOT NULL,                -- summary, rows, evidence, memory
        data BLOB NOT NULL,
        PRIMARY KEY (run, step, kind)
    );

    CREATE TABLE scalars (
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        name TEXT NOT NULL,
        value REAL NOT NULL,
        PRIMARY KEY (run, step, name)
    ) WITHOUT ROWID;

    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL,
        step INTEGER,
        kind TEXT NOT NULL,
        fields TEXT NOT NULL,              -- JSON
        at REAL NOT NULL
    );
    CREATE INDEX events_run ON events (run, id);

    CREATE TABLE alerts (                  -- one row per (run, kind, cause) while it fires
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL,
        kind TEXT NOT NULL,                -- spike, level_shift, growth, silence, bypass
        state TEXT NOT NULL,               -- provisional, firing, resolved
        series TEXT NOT NULL,
        step INTEGER NOT NULL,
        onset_step INTEGER,
        before REAL,
        after REAL,
        ratio REAL,
        message TEXT NOT NULL,
        causes TEXT NOT NULL DEFAULT '[]', -- JSON list of cause ids, best first
        at REAL NOT NULL,
        resolved_at REAL
    );
    CREATE INDEX alerts_run ON alerts (run, id);

    CREATE TABLE outbox (                  -- one row per alert and target, until it is delivered
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        alert INTEGER NOT NULL REFERENCES alerts (id),
        target TEXT NOT NULL,
        payload TEXT NOT NULL,             -- JSON
        created_at REAL NOT NULL,
        due_at REAL NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        delivered_at REAL,
        last_error TEXT
    );
    CREATE INDEX outbox_due ON outbox (due_at) WHERE delivered_at IS NULL;

    CREATE TABLE detector_state (
        run TEXT PRIMARY KEY,
        state TEXT NOT NULL                -- JSON
    ) WITHOUT ROWID;
    """,
    """
    DROP TABLE outbox;
    ALTER TABLE alerts ADD COLUMN notice INTEGER;

    CREATE TABLE notices (                 -- one per (run, kind, cause) while it lasts
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL,
        kind TEXT NOT NULL,
        cause TEXT NOT NULL,               -- first cause when it began, or the group's series
        state TEXT NOT NULL,               -- provisional, firing, resolved
        started_at REAL NOT NULL,
        resolved_at REAL,
        told_at REAL NOT NULL DEFAULT 0,   -- when news of it were last queued
        news TEXT NOT NULL DEFAULT '{}'    -- JSON, the latest
    );
    CREATE INDEX notices_open ON notices (run, kind) WHERE resolved_at IS NULL;

    CREATE TABLE outbox (                  -- one row per piece of news and target
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        target TEXT NOT NULL,
        run TEXT NOT NULL,
        notice INTEGER NOT NULL,
        news TEXT NOT NULL,                -- JSON
        created_at REAL NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        delivered_at REAL,                 -- NULL: still to be sent
        last_error TEXT
    );
    CREATE INDEX outbox_due ON outbox (target, id) WHERE delivered_at IS NULL;
    """,
    """
    CREATE TABLE silences (                -- asked for by people, beside the settings'
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT,                          -- exactly this run; NULL: by `runs`
        runs TEXT NOT NULL,                -- glob
        kinds TEXT NOT NULL,               -- JSON list
        series TEXT NOT NULL,              -- glob
        start_at REAL NOT NULL,            -- seconds since the epoch
        end_at REAL NOT NULL,
        reason TEXT NOT NULL
    );
    """,
)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema to the newest version, one transaction per step."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the database has schema {version}, this version knows {len(MIGRATIONS)}",
            field="data_dir",
            fix="start the newer version, or give another data_dir",
        )
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")
