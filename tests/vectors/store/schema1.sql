BEGIN TRANSACTION;
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
INSERT INTO "batches" VALUES(1,'recorded','used',X'00000000000000000000000000000000','batch',NULL,'',100,1.0,'{"batch_id": "used", "run": "recorded", "step": null, "side": "rollout", "samples": 4, "tokens": 40, "joined": 0, "waiting": 4, "duplicates": 0, "retokenized": 0, "late": 0, "duplicate": false, "steps": []}',NULL,1);
INSERT INTO "batches" VALUES(2,'recorded','waits',X'00000000000000000000000000000000','batch',NULL,'2.safetensors',100,2.0,'{"batch_id": "waits", "run": "recorded", "step": null, "side": "rollout", "samples": 4, "tokens": 40, "joined": 0, "waiting": 4, "duplicates": 0, "retokenized": 0, "late": 0, "duplicate": false, "steps": []}',X'FF04FFFF',0);
CREATE TABLE blobs (                   -- of closed steps; kinds have their own retention
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        kind TEXT NOT NULL,                -- summary, rows, evidence, memory
        data BLOB NOT NULL,
        PRIMARY KEY (run, step, kind)
    );
INSERT INTO "blobs" VALUES('recorded',7,'summary',X'73737373737373737373');
INSERT INTO "blobs" VALUES('recorded',7,'rows',X'72727272727272727272');
INSERT INTO "blobs" VALUES('recorded',7,'evidence',X'65656565656565656565');
INSERT INTO "blobs" VALUES('recorded',7,'memory',X'6D');
CREATE TABLE detector_state (
        run TEXT PRIMARY KEY,
        state TEXT NOT NULL                -- JSON
    ) WITHOUT ROWID;
CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL,
        step INTEGER,
        kind TEXT NOT NULL,
        fields TEXT NOT NULL,              -- JSON
        at REAL NOT NULL
    );
INSERT INTO "events" VALUES(1,'recorded',7,'weight_sync','{"version":8}',7.0);
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
CREATE TABLE runs (
        run TEXT PRIMARY KEY,
        first_seen REAL NOT NULL,          -- seconds since the epoch
        last_seen REAL NOT NULL
    ) WITHOUT ROWID;
INSERT INTO "runs" VALUES('recorded',1.0,7.0);
CREATE TABLE scalars (
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        name TEXT NOT NULL,
        value REAL NOT NULL,
        PRIMARY KEY (run, step, name)
    ) WITHOUT ROWID;
INSERT INTO "scalars" VALUES('recorded',7,'reward',0.5);
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
INSERT INTO "steps" VALUES('recorded',7,7.0,'ok','{"run":"recorded","step":7,"state":"closed","sides":{},"tokens":1,"samples":1,"coverage":{},"metrics":{"k3_mean":0.5},"verdict":"ok","reasons":[],"diagnosis":[],"joined":0,"retokenized":0,"retokenized_examples":[],"duplicates":0,"late":0,"evicted":{},"findings":[],"opened_at":0.0,"closed_at":7.0,"closed_by":"call"}',3,0);
CREATE INDEX batches_open ON batches (seq) WHERE done = 0;
CREATE INDEX batches_age ON batches (received_at) WHERE done = 1;
CREATE INDEX steps_age ON steps (closed_at);
CREATE INDEX events_run ON events (run, id);
CREATE INDEX alerts_run ON alerts (run, id);
CREATE INDEX outbox_due ON outbox (due_at) WHERE delivered_at IS NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('batches',2);
INSERT INTO "sqlite_sequence" VALUES('events',1);
COMMIT;
PRAGMA user_version = 1;
