"""The store on SQLite in WAL mode: one writing connection, one reading one, each behind a lock."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from twinscope.wire.header import STEP_END
from twinscope_service.errors import StoreError
from twinscope_service.join.records import Settled
from twinscope_service.measure.records import COVERAGE
from twinscope_service.store import retention
from twinscope_service.store.base import (
    RESTART,
    BlobKind,
    ClosedStep,
    NewBatch,
    Retention,
    StoredBatch,
)
from twinscope_service.store.migrations import migrate
from twinscope_service.store.outbox import record_alerts
from twinscope_service.store.rows import (
    alert_view,
    apply_settled,
    closed_view,
    pack_settled,
    stored_batch,
    timeline_row,
)
from twinscope_service.views import AlertView, StepView, TimelineRow

FILE = "twinscope.sqlite"
BUSY_MS = 10_000
WAL_BYTES = 64 << 20
BATCH_COLUMNS = (
    "seq, run, batch_id, digest, kind, step, file, bytes, received_at, receipt, settled, done"
)

log = logging.getLogger(__name__)


def open_store(data_dir: Path, *, power_safe: bool) -> tuple[SqliteStore, bool]:
    """The store of a data directory, and whether its database had to be put aside as unreadable.

    `power_safe`: a commit survives the loss of power, not only the death of the process.
    """
    path = data_dir / FILE
    try:
        return SqliteStore(path, power_safe=power_safe), False
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise StoreError(
                f"cannot open {path}: {error}",
                field="data_dir",
                fix="give a folder that can be written, used by no other service",
            ) from error
        log.error("database put aside, it cannot be read", extra={"path": str(path)}, exc_info=True)
        _put_aside(data_dir)
        return SqliteStore(path, power_safe=power_safe), True


def _put_aside(data_dir: Path) -> None:
    folder = data_dir / "quarantine"
    folder.mkdir(exist_ok=True)
    number = sum(1 for _ in folder.glob(f"{FILE}.*"))
    for end in ("", "-wal", "-shm"):
        broken = data_dir / f"{FILE}{end}"
        if broken.exists():
            broken.replace(folder / f"{FILE}.{number}{end}")


class SqliteStore:
    """`base.Store` on one file. Opening it migrates the schema.

    `targets`: names of those who are told of alerts; set once, before the first step closes.
    """

    targets: tuple[str, ...] = ()

    def __init__(self, path: Path, *, power_safe: bool) -> None:
        self._write_lock, self._read_lock = threading.RLock(), threading.RLock()
        self._writer = _connect(path)
        try:
            self._writer.execute(
                "PRAGMA auto_vacuum=INCREMENTAL"
            )  # takes effect on a new file only
            self._writer.execute("PRAGMA journal_mode=WAL")
            self._writer.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
            self._writer.execute(f"PRAGMA synchronous={'FULL' if power_safe else 'NORMAL'}")
            migrate(self._writer)
            last = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'batches'"
            (self._last_seq,) = self._writer.execute(last).fetchone()
            self._reader = _connect(path)
        except BaseException:
            self._writer.close()
            raise

    # ---- batches

    def next_seq(self) -> int:
        """The sequence number of the next batch."""
        return int(self._last_seq) + 1

    def add_batch(self, batch: NewBatch) -> None:
        """Accept a batch, in one transaction with what it means for closed steps and the run."""
        row = (
            batch.seq, batch.run, batch.batch_id, batch.digest, batch.kind, batch.step, batch.file,
            batch.bytes, batch.received_at, json.dumps(batch.receipt.as_json()),
            pack_settled(batch.settled, batch.receipt.samples), batch.done,
        )  # fmt: skip
        with self._transaction() as db:
            db.execute(f"INSERT INTO batches ({BATCH_COLUMNS}) VALUES ({','.join('?' * 12)})", row)
            _touch(db, batch.run, batch.received_at)
            for step, (late, duplicates) in batch.after_close.items():
                db.execute(
                    "UPDATE steps SET late = late + ?, duplicates = duplicates + ? "
                    "WHERE run = ? AND step = ?",
                    (late, duplicates, batch.run, step),
                )
        self._last_seq = batch.seq

    def find_batch(self, run: str, batch_id: str) -> StoredBatch | None:
        """An accepted batch."""
        rows = self._read("SELECT * FROM batches WHERE run = ? AND batch_id = ?", run, batch_id)
        return stored_batch(rows[0]) if rows else None

    def open_batches(self) -> list[StoredBatch]:
        """Batches whose bodies are needed, in the order of acceptance."""
        return [
            stored_batch(row)
            for row in self._read("SELECT * FROM batches WHERE done = 0 ORDER BY seq")
        ]

    def settle(self, settled: Iterable[Settled]) -> list[str]:
        """Note samples that need no body any more; returns files that nobody needs."""
        with self._transaction() as db:
            return apply_settled(db, settled)

    def abandon(self, seq: int) -> None:
        """A body that cannot be read back."""
        with self._transaction() as db:
            db.execute("UPDATE batches SET done = 1, file = '' WHERE seq = ?", (seq,))

    # ---- steps

    def close_step(self, closed: ClosedStep) -> list[str]:
        """Keep a closed step; returns files that nobody needs any more."""
        view = closed.view
        document = view.as_json()
        for kept_elsewhere in ("scalars", "waiting"):
            document.pop(kept_elsewhere)
        row = (view.run, view.step, view.closed_at, view.verdict, _dump(document))
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO steps (run, step, closed_at, verdict, view) "
                "VALUES (?,?,?,?,?)",
                row,
            )
            for kind, data in closed.blobs.items():
                blob = (view.run, view.step, kind, data)
                db.execute("INSERT OR REPLACE INTO blobs VALUES (?,?,?,?)", blob)
            files = apply_settled(db, closed.settled)
            files += _finish(db, closed.finished_summaries)
            if closed.detector_state is not None:
                state = (view.run, _dump(closed.detector_state))
                db.execute("INSERT OR REPLACE INTO detector_state VALUES (?,?)", state)
            record_alerts(
                db, view.run, closed.alerts,
                diagnosis=view.diagnosis, targets=self.targets, at=view.closed_at or 0.0,
            )  # fmt: skip
        return files

    def closed_steps(self, run: str) -> list[int]:
        """All closed steps, ascending, but those that a restart of the trainer opened again."""
        query = (
            "SELECT step FROM steps AS s WHERE run = ? AND NOT EXISTS (SELECT 1 FROM events AS e "
            "WHERE e.run = s.run AND e.kind = ? AND e.step <= s.step AND e.at >= s.closed_at) "
            "ORDER BY step"
        )
        return [row["step"] for row in self._read(query, run, RESTART)]

    def count_steps(self, run: str) -> int:
        """How many closed steps are known."""
        return int(self._read("SELECT count(*) AS n FROM steps WHERE run = ?", run)[0]["n"])

    def count_tokens(self, run: str) -> dict[str, int]:
        """Tokens of all closed steps by what became of them."""
        sums = ", ".join(f"sum(json_extract(view, '$.coverage.{name}'))" for name in COVERAGE)
        row = self._read(f"SELECT {sums} FROM steps WHERE run = ?", run)[0]
        return {name: int(row[i]) for i, name in enumerate(COVERAGE) if row[i]}

    def step(self, run: str, step: int) -> StepView | None:
        """One closed step."""
        rows = self._read("SELECT * FROM steps WHERE run = ? AND step = ?", run, step)
        return closed_view(rows[0], self.scalars(run, step)) if rows else None

    def steps(self, run: str, *, after: int | None, limit: int) -> list[StepView]:
        """Closed steps in ascending order."""
        query = "SELECT * FROM steps WHERE run = ? AND step > ? ORDER BY step LIMIT ?"
        rows = self._read(query, run, -1 if after is None else after, limit)
        return [closed_view(row, self.scalars(run, row["step"])) for row in rows]

    def last_steps(self, run: str, *, limit: int) -> list[StepView]:
        """The latest closed steps, ascending."""
        query = "SELECT * FROM steps WHERE run = ? ORDER BY step DESC LIMIT ?"
        rows = reversed(self._read(query, run, limit))
        return [closed_view(row, self.scalars(run, row["step"])) for row in rows]

    def timeline(
        self, run: str, *, metrics: Sequence[str], limit: int, until: int | None = None
    ) -> list[TimelineRow]:
        """Closed steps as columns are drawn from them; the database reads the JSON, not Python."""
        paths = [f'$.metrics."{name}"' for name in metrics]
        query = (
            "SELECT step, verdict, closed_at, json_extract(view, '$.coverage.counted') AS counted, "
            "json_extract(view, '$.diagnosis[0].cause') AS cause, "
            f"json_extract(view, '$.step'{', ?' * len(paths)}) AS picked "
            "FROM steps WHERE run = ? AND step <= ? ORDER BY step DESC LIMIT ?"
        )
        last = STEP_END if until is None else until
        rows = self._read(query, *paths, run, last, limit)[::-1]
        query = "SELECT step, name, value FROM scalars WHERE run = ? AND step BETWEEN ? AND ?"
        scalars: dict[int, dict[str, float]] = {}
        for found in self._read(query, run, rows[0]["step"], rows[-1]["step"]) if rows else ():
            scalars.setdefault(found["step"], {})[found["name"]] = found["value"]
        return [timeline_row(row, metrics, scalars.get(row["step"], {})) for row in rows]

    def blob(self, run: str, step: int, kind: BlobKind) -> bytes | None:
        """A blob of a closed step."""
        query = "SELECT data FROM blobs WHERE run = ? AND step = ? AND kind = ?"
        rows = self._read(query, run, step, kind)
        return rows[0]["data"] if rows else None

    # ---- runs and what belongs to them

    def runs(self) -> dict[str, tuple[float, float]]:
        """Run -> (first seen, last seen)."""
        rows = self._read("SELECT * FROM runs ORDER BY run")
        return {row["run"]: (row["first_seen"], row["last_seen"]) for row in rows}

    def run(self, run: str) -> tuple[float, float] | None:
        """(first seen, last seen) of one run."""
        rows = self._read("SELECT * FROM runs WHERE run = ?", run)
        return (rows[0]["first_seen"], rows[0]["last_seen"]) if rows else None

    def touch_run(self, run: str, at: float) -> None:
        """Something of a run has come."""
        with self._transaction() as db:
            _touch(db, run, at)

    def add_scalars(self, run: str, step: int, values: Mapping[str, float], *, at: float) -> None:
        """Keep scalars; the last value of a name wins."""
        rows = [(run, step, name, value) for name, value in values.items()]
        with self._transaction() as db:
            db.executemany("INSERT OR REPLACE INTO scalars VALUES (?,?,?,?)", rows)
            _touch(db, run, at)

    def scalars(self, run: str, step: int) -> dict[str, float]:
        """The scalars of a step."""
        query = "SELECT name, value FROM scalars WHERE run = ? AND step = ? ORDER BY name"
        return {row["name"]: row["value"] for row in self._read(query, run, step)}

    def add_event(
        self, run: str, *, step: int | None, kind: str, fields: Mapping[str, Any], at: float
    ) -> None:
        """Keep an event."""
        row = (run, step, kind, _dump(fields), at)
        with self._transaction() as db:
            columns = "(run, step, kind, fields, at)"
            db.execute(f"INSERT INTO events {columns} VALUES (?,?,?,?,?)", row)
            _touch(db, run, at)

    def events(self, run: str, *, limit: int) -> list[tuple[int | None, str, dict[str, Any]]]:
        """The latest events, oldest first."""
        rows = self._read("SELECT * FROM events WHERE run = ? ORDER BY id DESC LIMIT ?", run, limit)
        return [(row["step"], row["kind"], json.loads(row["fields"])) for row in reversed(rows)]

    def add_alerts(
        self, run: str, alerts: Sequence[AlertView], *, state: Mapping[str, Any], at: float
    ) -> None:
        """Alerts that no step brought, with the detector state that goes with them."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO detector_state VALUES (?,?)", (run, _dump(state)))
            record_alerts(db, run, alerts, diagnosis=(), targets=self.targets, at=at)

    def alerts(self, run: str, *, limit: int) -> list[AlertView]:
        """Alerts, newest first."""
        rows = self._read("SELECT * FROM alerts WHERE run = ? ORDER BY id DESC LIMIT ?", run, limit)
        return [alert_view(row) for row in rows]

    def detector_state(self, run: str) -> dict[str, Any] | None:
        """What the detectors of a run carry from step to step."""
        rows = self._read("SELECT state FROM detector_state WHERE run = ?", run)
        return json.loads(rows[0]["state"]) if rows else None

    # ---- housekeeping

    def retain(self, retention_policy: Retention, *, now: float) -> None:
        """Remove what is past its time, a bounded amount per call."""
        with self._transaction() as db:
            retention.drop_old(db, retention_policy, now=now)
            retention.drop_beyond_counts(db, retention_policy)
            retention.drop_beyond_size(db, retention_policy)
        with self._write_lock, _translated():
            # Not execute(): it would step once, which frees one page.
            self._writer.executescript(f"PRAGMA incremental_vacuum({retention.VACUUM_PAGES})")

    def bytes(self) -> int:
        """Size of what the database holds."""
        with self._read_lock, _translated():
            return retention.live_bytes(self._reader)

    def close(self) -> None:
        """Release the files."""
        with self._write_lock, self._read_lock:
            self._reader.close()
            self._writer.close()

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """For the outbox, which has its own queries."""
        return self._transaction()

    def read(self, query: str, *values: object) -> list[sqlite3.Row]:
        """For the outbox, which has its own queries."""
        return self._read(query, *values)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; failures of the disk become StoreError."""
        with self._write_lock, _translated():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:  # a full disk may have rolled back already
                    self._writer.execute("ROLLBACK")
                raise

    def _read(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._read_lock, _translated():
            return self._reader.execute(query, values).fetchall()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    return connection


def _touch(db: sqlite3.Connection, run: str, at: float) -> None:
    db.execute(
        "INSERT INTO runs VALUES (?,?,?) "
        "ON CONFLICT (run) DO UPDATE SET last_seen = excluded.last_seen",
        (run, at, at),
    )


def _finish(db: sqlite3.Connection, seqs: Iterable[int]) -> list[str]:
    """Summaries that went into a closed step: their bodies are not needed any more."""
    files = []
    for seq in seqs:
        query = "SELECT file FROM batches WHERE seq = ? AND done = 0"
        files += [row["file"] for row in db.execute(query, (seq,))]
        db.execute("UPDATE batches SET done = 1, file = '' WHERE seq = ?", (seq,))
    return files


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(
            f"the database failed: {error}",
            field="data_dir",
            fix="free space in the data directory and check its disk, then retry",
        ) from error
