"""The database: migrations, one transaction per fact, retention."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from twinscope_service.errors import StoreError
from twinscope_service.join.records import Outcome, Settled
from twinscope_service.store import migrations
from twinscope_service.store.base import ClosedStep, NewBatch, Retention
from twinscope_service.store.sqlite import FILE, SqliteStore, open_store
from twinscope_service.views import AlertView, Receipt, StepView

VECTORS = Path(__file__).resolve().parents[1] / "vectors/store"
KEEP_ALL = Retention(1e9, 1 << 40, 10**6, 10**6, 10**6, 1e9)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """An empty store."""
    store, _ = open_store(tmp_path, power_safe=False)
    yield store
    store.close()


def _batch(seq: int, **changes: object) -> NewBatch:
    receipt = Receipt(f"b{seq}", "r", None, "rollout", samples=4, tokens=40, waiting=4)
    batch = NewBatch(
        seq=seq, run="r", batch_id=f"b{seq}", digest=bytes(16), kind="batch", step=None,
        file=f"{seq}.safetensors", bytes=100, received_at=float(seq), receipt=receipt,
        settled={}, done=False,
    )  # fmt: skip
    return replace(batch, **changes)  # type: ignore[arg-type]


def _view(step: int, *, run: str = "r", closed_at: float | None = None) -> StepView:
    return StepView(
        run=run, step=step, state="closed", sides={}, tokens=1, samples=1, coverage={},
        metrics={"k3_mean": 0.5}, verdict="ok", reasons=(), diagnosis=(), opened_at=0.0,
        closed_at=float(step) if closed_at is None else closed_at, closed_by="call",
    )  # fmt: skip


def _closed(step: int, *, run: str = "r", size: int = 10, **arguments: object) -> ClosedStep:
    blobs = {"summary": b"s" * 10, "rows": b"r" * size, "evidence": b"e" * size, "memory": b"m"}
    view = _view(step, run=run)
    return replace(ClosedStep(view, blobs, (), ()), **arguments)  # type: ignore[arg-type]


def test_sequence_numbers_go_on_after_a_restart(store: SqliteStore, tmp_path: Path) -> None:
    """Even when the last batch has been removed: a number is never used twice."""
    store.add_batch(_batch(store.next_seq(), done=True))
    store.add_batch(_batch(store.next_seq(), done=True))
    store.retain(replace(KEEP_ALL, resend_s=0), now=100.0)
    store.close()
    again, _ = open_store(tmp_path, power_safe=False)
    assert again.next_seq() == 3
    assert again.find_batch("r", "b2") is None
    again.close()


def test_settled_samples_are_kept_until_the_batch_is_finished(store: SqliteStore) -> None:
    """Then its file is given back for removal, once."""
    store.add_batch(_batch(1, settled={3: 3}))
    assert store.settle([Settled(1, ((0, Outcome.JOINED),), finished=False)]) == []
    (found,) = store.open_batches()
    assert found.settled == {0: Outcome.JOINED, 3: Outcome.DUPLICATE}
    done = Settled(1, ((1, Outcome.EVICTED), (2, Outcome.JOINED)), finished=True)
    assert store.settle([done]) == ["1.safetensors"]
    assert store.settle([done]) == []
    assert store.open_batches() == []
    again = store.find_batch("r", "b1")
    assert again is not None
    assert again.receipt.waiting == 4


def test_a_close_is_one_transaction(store: SqliteStore) -> None:
    """If any part of it fails, no part of it is there."""
    store.add_batch(_batch(1))
    settled = (Settled(1, ((0, Outcome.JOINED),), finished=True),)
    broken = _closed(0, settled=settled, detector_state={"a": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        store.close_step(broken)
    assert store.step("r", 0) is None
    assert store.blob("r", 0, "summary") is None
    assert len(store.open_batches()) == 1

    whole = replace(broken, detector_state={"a": 1})
    assert store.close_step(whole) == ["1.safetensors"]
    assert store.step("r", 0) == _view(0)
    assert store.detector_state("r") == {"a": 1}


def test_an_alert_is_one_row_until_it_is_resolved(store: SqliteStore) -> None:
    """Per run, kind and series; afterwards the next one is new."""
    alert = AlertView(0, "spike", "provisional", "k3_mean", 4, None, 0.1, 0.9, 9.0, "up", ("a",))
    for step, state in enumerate(("provisional", "firing", "resolved", "firing")):
        store.close_step(_closed(step, alerts=(replace(alert, step=step, state=state),)))
    assert [(a.state, a.step) for a in store.alerts("r", limit=9)] == [
        ("firing", 3),
        ("resolved", 2),
    ]
    assert store.alerts("r", limit=1)[0].causes == ("a",)


def test_old_steps_go_with_all_that_belongs_to_them(store: SqliteStore) -> None:
    """By age; the latest stay."""
    for step in range(5):
        store.close_step(_closed(step))
        store.add_scalars("r", step, {"lr": 1.0}, at=float(step))
    store.retain(replace(KEEP_ALL, age_s=2.5), now=5.0)
    assert store.closed_steps("r") == [3, 4]
    assert store.blob("r", 2, "rows") is None
    assert store.scalars("r", 2) == {}
    assert store.scalars("r", 4) == {"lr": 1.0}


def test_rows_and_evidence_have_their_own_number_of_steps(store: SqliteStore) -> None:
    """Per run; the summary stays as long as the step."""
    for run in ("r", "other"):
        store.touch_run(run, 0.0)
        for step in range(6):
            store.close_step(_closed(step, run=run))
    store.retain(replace(KEEP_ALL, rows_steps=4, evidence_steps=2, memory_steps=1), now=6.0)
    for run in ("r", "other"):
        kept = {
            kind: [step for step in range(6) if store.blob(run, step, kind) is not None]  # type: ignore[arg-type]
            for kind in ("summary", "rows", "evidence", "memory")
        }
        assert kept == {
            "summary": [0, 1, 2, 3, 4, 5], "rows": [2, 3, 4, 5], "evidence": [4, 5], "memory": [5],
        }  # fmt: skip


def _file_bytes(store: SqliteStore) -> int:
    """Size of the database file once its log is written back."""
    pages, page = (store.read(f"PRAGMA {name}")[0][0] for name in ("page_count", "page_size"))
    return int(pages * page)


def test_the_size_limit_takes_evidence_first_then_rows_then_steps(store: SqliteStore) -> None:
    """And the file shrinks."""
    for step in range(200):
        store.close_step(_closed(step, size=4000))
    full = store.bytes()
    store.retain(replace(KEEP_ALL, size_bytes=full * 3 // 4), now=0.0)
    assert store.blob("r", 0, "evidence") is None
    assert store.blob("r", 199, "evidence") is not None
    assert store.blob("r", 0, "rows") is not None
    store.retain(replace(KEEP_ALL, size_bytes=full // 4), now=0.0)
    assert store.blob("r", 0, "rows") is None
    assert len(store.closed_steps("r")) == 200
    store.retain(replace(KEEP_ALL, size_bytes=1), now=0.0)
    assert store.closed_steps("r") == []
    assert store.bytes() < full // 4
    assert _file_bytes(store) < full // 4  # pages that hold nothing are given back


def test_the_size_limit_takes_no_more_than_it_must(store: SqliteStore) -> None:
    """A few large steps, a little too much: the latest keep everything, and no step is lost."""
    nothing = store.bytes()
    for step in range(30):
        store.close_step(_closed(step, size=100_000))
    limit = store.bytes() - 250_000
    store.retain(replace(KEEP_ALL, size_bytes=limit), now=0.0)

    kept = [step for step in range(30) if store.blob("r", step, "evidence") is not None]
    assert kept == list(range(3, 30))
    assert store.bytes() <= limit
    store.retain(replace(KEEP_ALL, size_bytes=nothing + 10_000), now=0.0)
    left = store.closed_steps("r")
    assert left == list(range(left[0], 30))
    assert left[0] > 0
    assert store.bytes() <= nothing + 10_000


def test_a_directory_of_the_first_schema_is_brought_forward(tmp_path: Path) -> None:
    """The recorded database of schema 1 is readable for ever."""
    connection = sqlite3.connect(tmp_path / FILE)
    connection.executescript((VECTORS / "schema1.sql").read_text())
    connection.close()

    store, lost = open_store(tmp_path, power_safe=False)

    assert not lost
    view = store.step("recorded", 7)
    assert view is not None
    assert (view.verdict, view.late, view.scalars) == ("ok", 3, {"reward": 0.5})
    assert [batch.batch_id for batch in store.open_batches()] == ["waits"]
    assert store.events("recorded", limit=5) == [(7, "weight_sync", {"version": 8})]
    assert store.next_seq() == 3
    store.close()


def test_each_migration_is_applied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version adds to what is there."""
    store, _ = open_store(tmp_path, power_safe=False)
    store.close_step(_closed(0))
    store.close()
    more = (*migrations.MIGRATIONS, "ALTER TABLE runs ADD COLUMN note TEXT;")
    monkeypatch.setattr(migrations, "MIGRATIONS", more)
    for _ in range(2):
        later, _ = open_store(tmp_path, power_safe=False)
        assert later.step("r", 0) == _view(0)
        later.close()
    columns = sqlite3.connect(tmp_path / FILE).execute("SELECT note FROM runs").description
    assert columns[0][0] == "note"


def test_a_directory_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """Not damaged, not put aside: the message says what to do."""
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(StoreError, match="newer version"):
        open_store(tmp_path, power_safe=False)
    assert not (tmp_path / "quarantine").exists()


@pytest.mark.parametrize(("power_safe", "level"), [(False, 1), (True, 2)])
def test_durability_chooses_when_a_commit_reaches_the_disk(
    tmp_path: Path, power_safe: bool, level: int
) -> None:
    """NORMAL survives the death of the process, FULL that of the machine."""
    store, _ = open_store(tmp_path, power_safe=power_safe)
    assert store._writer.execute("PRAGMA synchronous").fetchone()[0] == level
    assert store._writer.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    store.close()
