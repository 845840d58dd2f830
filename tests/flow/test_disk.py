"""The data directory fails: full, damaged, taken. Nothing half-stored, nothing silent."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest
from batches import body_of, make_samples
from pipelines import Bench
from waiting import eventually

from twinscope.errors import ConfigError
from twinscope_service.config import load_settings
from twinscope_service.errors import StoreError
from twinscope_service.pipeline import open_pipeline

SAMPLES = make_samples(31, 20)


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_refuses_the_batch_and_keeps_nothing_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """507 with a time to come back; the same batch is welcome later."""
    body = body_of(SAMPLES, "rollout")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _full)
        with pytest.raises(StoreError, match="No space left") as refused:
            bench.send(body)
    assert (refused.value.status, refused.value.retry_after_s) == (507, 30.0)
    assert bench.inbox() == []
    assert bench.pipeline.health().waiting_samples == 0
    assert not bench.send(body).duplicate


def test_a_full_database_refuses_the_batch_and_keeps_nothing_of_it(bench: Bench) -> None:
    """The body was written already: it goes again; the join has not moved."""
    bench.send(body_of(SAMPLES[:1], "rollout"))
    _fill_database(bench)
    accepted = [1]
    with pytest.raises(StoreError, match="full"):
        _send_for_ever(bench, accepted)
    assert len(bench.inbox()) == len(accepted)
    waiting = bench.pipeline.health().waiting_samples
    assert waiting == sum(accepted)

    _empty_database(bench)
    assert bench.restart().health().waiting_samples == waiting


def test_a_step_that_cannot_be_saved_is_answered_and_saved_later(bench: Bench) -> None:
    """Its bodies stay on disk until then, so that nothing is lost if the process dies first."""
    bench.send(body_of(SAMPLES, "paired", step=0))
    _fill_database(bench)
    view = bench.pipeline.close_step("r", 0)
    assert (view.state, view.samples) == ("closed", 20)
    assert bench.pipeline.step("r", 0) == view
    assert len(bench.inbox()) == 1
    assert bench.pipeline.health().errors == {"save": 1}

    _empty_database(bench)
    bench.pipeline.tick()
    assert bench.inbox() == []
    assert bench.restart().step("r", 0) == view


def test_a_kill_before_the_save_opens_the_step_again(bench: Bench, tmp_path: Path) -> None:
    """The bodies are still there."""
    bench.send(body_of(SAMPLES, "paired", step=0))
    _fill_database(bench)
    closed = bench.pipeline.close_step("r", 0)
    _empty_database(bench)
    reopened = bench.restart().step("r", 0)
    assert (reopened.state, reopened.metrics) == ("open", closed.metrics)


@pytest.mark.parametrize("damage", ["cut", "garbage", "gone"])
def test_a_damaged_body_is_put_aside_and_counted(bench: Bench, damage: str) -> None:
    """The service starts with the rest."""
    bench.send(body_of(SAMPLES[:10], "rollout"))
    (name,) = bench.inbox()
    bench.send(body_of(SAMPLES[10:], "rollout"))
    bench.pipeline.close()
    path = bench.data_dir / "inbox" / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:50] if damage == "cut" else b"\xff" * 200)

    health = bench.open().health()

    assert health.waiting_samples == 10
    assert eventually(lambda: bench.pipeline.health().ready)
    assert health.quarantined == (damage != "gone")
    assert bench.restart().health().waiting_samples == 10


def test_a_body_damaged_while_it_waits_makes_its_step_unknown(bench: Bench) -> None:
    """What cannot be read back was not looked at."""
    bench.send(body_of(SAMPLES, "rollout", tokens="none"))
    (name,) = bench.inbox()
    (bench.data_dir / "inbox" / name).write_bytes(b"")
    try:
        bench.send(body_of(SAMPLES, "train", step=0))
    except StoreError:
        return  # refused: the trainer's side can be sent again after a restart
    assert bench.pipeline.close_step("r", 0).verdict == "unknown"


@pytest.mark.parametrize("damage", ["garbage", "cut"])
def test_a_damaged_database_is_put_aside_and_the_service_starts(bench: Bench, damage: str) -> None:
    """With an empty history; the bodies that nobody owns any more are put aside too."""
    bench.send(body_of(SAMPLES, "rollout"))
    bench.pipeline.close()
    path = bench.data_dir / "twinscope.sqlite"
    path.write_bytes(b"nonsense" * 1000 if damage == "garbage" else path.read_bytes()[:5000])

    pipeline = bench.open()

    assert eventually(lambda: pipeline.health().ready)
    assert pipeline.runs() == []
    assert pipeline.health().quarantined == 2
    assert bench.send(body_of(SAMPLES, "rollout")).waiting == 20


def test_files_of_an_unfinished_receive_are_swept(bench: Bench) -> None:
    """The process died between the body and the receipt: nobody was told that it is kept."""
    bench.send(body_of(SAMPLES, "rollout"))
    kept = bench.inbox()
    bench.pipeline.close()
    (bench.data_dir / "inbox" / "half.1234.tmp").write_bytes(b"half")
    (bench.data_dir / "inbox" / "whole.safetensors").write_bytes(body_of(SAMPLES, "rollout"))
    bench.open()
    assert bench.inbox() == kept


def test_a_directory_serves_one_service_at_a_time(bench: Bench) -> None:
    """The second is told so, and the first goes on."""
    with pytest.raises(StoreError, match="another service"):
        open_pipeline(bench.settings)
    assert bench.send(body_of(SAMPLES, "rollout")).waiting == 20


def test_a_directory_that_cannot_be_made_is_a_setting_to_change(tmp_path: Path) -> None:
    """Said at the start, with the reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="data_dir"):
        open_pipeline(load_settings(data_dir=tmp_path / "file" / "data", engine="reference"))


def _send_for_ever(bench: Bench, accepted: list[int]) -> None:
    """Until the last free page of the database is used."""
    for number in range(1000):
        body = body_of(SAMPLES[1:], "rollout", run=f"{number}{'x' * 150}")
        accepted.append(bench.send(body).waiting)


def _fill_database(bench: Bench) -> None:
    """No page more than there is: SQLite reports a full disk."""
    writer: sqlite3.Connection = bench.pipeline._data.store._writer
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")


def _empty_database(bench: Bench) -> None:
    bench.pipeline._data.store._writer.execute("PRAGMA max_page_count = 1000000")
