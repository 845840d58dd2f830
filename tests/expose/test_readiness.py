"""/readyz and /healthz answer while the pipeline is busy."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batches import body_of, make_samples

from twinscope_service.expose import surface
from twinscope_service.pipeline import Pipeline
from twinscope_service.store import inbox


def test_readiness_is_told_while_a_batch_is_measured(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline's lock is held: the last known state is told, and afterwards the new one."""
    service = start()
    busy, health = threading.Event(), Pipeline.health
    assert service.get("/readyz").json()["ready"] is True

    def wait_and_tell(pipeline: Pipeline) -> Any:
        assert busy.wait(60)
        return health(pipeline)

    monkeypatch.setattr(Pipeline, "health", wait_and_tell)
    try:
        assert service.get("/readyz").status_code == 200
        assert service.get("/healthz").status_code == 200
    finally:
        busy.set()
    assert service.get("/readyz").json()["ready"] is True


ONE, TWO = (body_of(make_samples(seed, 3), "rollout") for seed in (1, 2))
ANOTHER = body_of(make_samples(3, 1), "rollout", run="other")


class Disk:
    """What the operating system says of the data directory: full, or not."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.full = True
        patch.setattr(surface, "BUSY_S", 60.0)  # on a busy machine as well, the state of now
        write, look = inbox._write_all, os.statvfs
        patch.setattr(inbox, "_write_all", lambda *a: self._refuse() if self.full else write(*a))
        patch.setattr(os, "statvfs", lambda path: self._look(look(path)))

    def _refuse(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _look(self, real: os.statvfs_result) -> Any:
        found = list(real)
        found[4] = 0 if self.full else real.f_bavail  # blocks that are free for us
        return os.statvfs_result(found)


def test_a_full_disk_is_not_ready_until_there_is_room_again(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """503 with reason and fix, to strangers too; one warning per change; looked at, not waited."""
    caplog.set_level(logging.WARNING, "twinscope_service")
    service = start(token="secret")
    known = {"authorization": "Bearer secret"}
    disk = Disk(monkeypatch)
    for body in (ONE, TWO, ANOTHER):
        assert service.send(body, **known).status_code == 507
    answer = service.get("/readyz")
    assert answer.status_code == 503
    assert answer.json().keys() == {"ready", "reason", "fix"}
    assert "No space left" in answer.json()["reason"]
    assert "free space" in answer.json()["fix"]
    assert "twinscope_ready 0.0" in service.get("/metrics", headers=known).text

    disk.full = False
    assert service.get("/readyz").status_code == 200
    assert "twinscope_ready 1.0" in service.get("/metrics", headers=known).text
    told = [r.getMessage() for r in caplog.records if r.name.endswith("store.room")]
    assert len(told) == 2
    assert "No space left" in told[0]


def test_a_batch_that_is_taken_where_one_was_refused_makes_ready_again(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller one says nothing of the one that was refused."""
    service = start()
    disk = Disk(monkeypatch)
    assert service.send(ONE).status_code == 507
    monkeypatch.setattr(inbox.Inbox, "fits", lambda *_: False)
    disk.full = False
    assert service.send(ANOTHER).status_code == 202
    assert service.get("/readyz").status_code == 503
    assert service.send(ONE).status_code == 202
    assert service.get("/readyz").status_code == 200


def test_a_trial_for_room_leaves_nothing(tmp_path: Path) -> None:
    """What fits is told by the file system itself, for a real folder."""
    kept = inbox.Inbox(tmp_path, fsync=False)
    assert kept.fits(1 << 20)
    assert not kept.fits(1 << 60)
    assert list((tmp_path / "inbox").iterdir()) == []
