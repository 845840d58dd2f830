"""Between database rows and records."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from twinscope_service.join.records import Settled
from twinscope_service.store.base import StoredBatch
from twinscope_service.views import AlertView, Receipt, StepView, TimelineRow

UNSETTLED = 255


def stored_batch(row: sqlite3.Row) -> StoredBatch:
    """One row of `batches`."""
    receipt = json.loads(row["receipt"])
    receipt["steps"] = tuple(receipt["steps"])
    return StoredBatch(
        seq=row["seq"],
        run=row["run"],
        batch_id=row["batch_id"],
        digest=row["digest"],
        kind=row["kind"],
        step=row["step"],
        file=row["file"],
        bytes=row["bytes"],
        receipt=Receipt(**receipt),
        settled=unpack_settled(row["settled"]),
        done=bool(row["done"]),
    )


def pack_settled(settled: Mapping[int, int], samples: int) -> bytes | None:
    """One byte per sample, None if no sample is settled."""
    if not settled:
        return None
    packed = bytearray([UNSETTLED]) * samples
    for index, outcome in settled.items():
        packed[index] = outcome
    return bytes(packed)


def unpack_settled(packed: bytes | None) -> dict[int, int]:
    """Sample -> outcome, of the settled ones."""
    return {i: value for i, value in enumerate(packed or b"") if value != UNSETTLED}


def apply_settled(db: sqlite3.Connection, settled: Iterable[Settled]) -> list[str]:
    """Write what became of samples; the files of batches of which no sample is left."""
    files = []
    for batch in settled:
        query = "SELECT file, settled, receipt FROM batches WHERE seq = ? AND done = 0"
        row = db.execute(query, (batch.batch,)).fetchone()
        if row is None:
            continue
        if batch.finished:
            files.append(row["file"])
            finish = "UPDATE batches SET done = 1, file = '', settled = NULL WHERE seq = ?"
            db.execute(finish, (batch.batch,))
            continue
        known = {**unpack_settled(row["settled"]), **dict(batch.samples)}
        packed = pack_settled(known, json.loads(row["receipt"])["samples"])
        db.execute("UPDATE batches SET settled = ? WHERE seq = ?", (packed, batch.batch))
    return files


def closed_view(row: sqlite3.Row, scalars: Mapping[str, float]) -> StepView:
    """One row of `steps`, with what came after the close."""
    view = StepView.from_json(json.loads(row["view"]))
    return replace(
        view,
        scalars=scalars,
        late=view.late + row["late"],
        duplicates=view.duplicates + row["duplicates"],
    )


def timeline_row(
    row: sqlite3.Row, metrics: Sequence[str], scalars: Mapping[str, float]
) -> TimelineRow:
    """One row of a timeline query. `picked`: [step, the metrics in order] as JSON."""
    picked = json.loads(row["picked"]) if metrics else [None]
    return TimelineRow(
        step=row["step"],
        verdict=row["verdict"],
        closed_at=row["closed_at"],
        counted=row["counted"] or 0,
        cause=row["cause"],
        metrics=dict(zip(metrics, picked[1:], strict=True)),
        scalars=scalars,
    )


def alert_view(row: sqlite3.Row) -> AlertView:
    """One row of `alerts`."""
    columns = ("id", "kind", "state", "series", "step", "onset_step", "before", "after", "ratio")
    values = {name: row[name] for name in columns}
    return AlertView(**values, message=row["message"], causes=tuple(json.loads(row["causes"])))


def upsert_alert(db: sqlite3.Connection, run: str, alert: AlertView, *, at: float) -> int:
    """One unresolved alert per (run, kind, series): a new one, or news of it. Returns its id."""
    values = (
        alert.state, alert.step, alert.onset_step, alert.before, alert.after, alert.ratio,
        alert.message, json.dumps(list(alert.causes)), at,
    )  # fmt: skip
    query = (
        "SELECT id FROM alerts WHERE run = ? AND kind = ? AND series = ? AND resolved_at IS NULL"
    )
    row = db.execute(query, (run, alert.kind, alert.series)).fetchone()
    if row is None:
        columns = (
            "run, kind, series, state, step, onset_step, before, after, ratio, message, causes, at"
        )
        cursor = db.execute(
            f"INSERT INTO alerts ({columns}) VALUES ({','.join('?' * 12)})",
            (run, alert.kind, alert.series, *values),
        )
        number = int(cursor.lastrowid or 0)
    else:
        number = int(row["id"])
        db.execute(
            "UPDATE alerts SET state = ?, step = ?, onset_step = ?, before = ?, after = ?, "
            "ratio = ?, message = ?, causes = ?, at = ? WHERE id = ?",
            (*values, number),
        )
    if alert.state == "resolved":
        db.execute("UPDATE alerts SET resolved_at = ? WHERE id = ?", (at, number))
    return number
