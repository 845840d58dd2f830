"""The spool: nothing is lost while the service is away, nor when the process ends meanwhile."""

from __future__ import annotations

import builtins
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_services import faulty_service, free_port, never_answer
from waiting import eventually

from twinscope import Probe
from twinscope.books import Count
from twinscope.clock import SystemClock
from twinscope.guard import Guard
from twinscope.items import Message, Post, message, new_id
from twinscope.settings import resolve_settings
from twinscope.ship import Backoff, Shipper
from twinscope.sink import Answer
from twinscope.slabs import SlabPool
from twinscope.spool import Spool
from twinscope.testing import InMemorySink, SinkServer
from twinscope.wire import read_trace


def _logprobs(step: int, width: int = 50) -> np.ndarray:
    return np.full((2, width), -float(step + 1), np.float32)


def _answers(step: int, width: int = 50) -> dict[str, Any]:
    """Log-probs and ids: what one side must send."""
    return {"logprobs": _logprobs(step, width), "sample_ids": ["a", "b"]}


def _files(folder: Path, suffix: str = "safetensors") -> list[Path]:
    return sorted(folder.glob(f"*/*.{suffix}"))


def _fill(probe: Probe, steps: range) -> None:
    for step in steps:
        probe.train(step=step, **_answers(step))


def test_batches_wait_on_disk_and_arrive_in_order(tmp_path: Path) -> None:
    """Away, then back: everything, once, oldest first, messages in their place."""
    port = free_port()
    probe = Probe(f"http://127.0.0.1:{port}", spool_dir=tmp_path)
    _fill(probe, range(6))
    probe.close_step(5)
    assert eventually(lambda: probe.stats().spooled == Count(batches=6, tokens=600, messages=2))
    assert probe.stats().balanced
    assert probe.stats().buffer_bytes == 0
    assert read_trace(_files(tmp_path)[0]).step == 0
    with SinkServer(port=port) as server:
        assert eventually(lambda: probe.flush(0.5))
        _fill(probe, range(6, 8))
        probe.close()

    assert [batch.step for batch in server.batches()] == list(range(8))
    assert [post.path for post in server.posts][7] == "/v1/runs/default/steps/5/close"
    assert probe.stats().shipped.batches == 8
    assert probe.stats().spooled == Count()
    assert list(tmp_path.iterdir()) == []


def test_what_is_left_at_the_end_goes_to_the_next_process(tmp_path: Path) -> None:
    """Closed while the service is away; a new probe, perhaps days later, sends it first."""
    dead = f"http://127.0.0.1:{free_port()}"
    with Probe(dead, "yesterday", spool_dir=tmp_path) as first:
        _fill(first, range(4))
    assert first.stats().spooled.batches == 4
    assert not first.stats().dropped
    with SinkServer() as server, Probe(server.url, "today", spool_dir=tmp_path) as second:
        _fill(second, range(4, 6))
        assert second.flush(20)
        stats = second.stats()

    assert [batch.step for batch in server.batches()] == list(range(6))
    assert [batch.run for batch in server.batches()] == ["yesterday"] * 4 + ["today"] * 2
    assert stats.recovered.batches == 4
    assert stats.recovered.tokens == 400
    assert stats.captured.batches == stats.shipped.batches == 6
    assert list(tmp_path.iterdir()) == []


def test_a_hanging_service_at_the_end_costs_no_spooled_data(tmp_path: Path) -> None:
    """Also what is on its way is written when the time is over."""
    with faulty_service(never_answer) as url:
        probe = Probe(url, spool_dir=tmp_path, timeout_s=60)
        _fill(probe, range(5))
        assert eventually(lambda: probe.stats().captured.batches == 5)
        probe.close(timeout=1.0)
    stats = probe.stats()

    assert stats.spooled.batches == 5
    assert not stats.dropped
    assert [read_trace(path).step for path in _files(tmp_path)] == list(range(5))


def test_what_the_host_s_thread_writes_at_the_end_is_not_given_up_meanwhile(
    tmp_path: Path,
) -> None:
    """A slow disk: close() writes the last item itself, and the sending thread ends before that."""
    shipper = Shipper(
        resolve_settings({"url": "http://127.0.0.1:1", "spool_dir": tmp_path}, {}),
        guard=Guard(raise_errors=True), clock=SystemClock(), make_sink=InMemorySink,
        backoff=Backoff(), pool=SlabPool(0), refuse=lambda _: None, identity=dict,
    )  # fmt: skip
    shipper.buffer.put(message("/v1/events", {}))
    shipper.close_soon(0.0)
    shipper._last_try = True
    item = shipper.buffer.steal()
    assert item is not None

    assert shipper._turn() is False  # the sending thread's last
    assert shipper.buffer.settle(item, "spooled")
    assert shipper.buffer.read(lambda ledger: ledger.dropped) == {}


def test_a_killed_process_leaves_whole_files_to_its_heir(tmp_path: Path) -> None:
    """SIGKILL in the middle: no half file, and the lock of the dead does not hold."""
    code = f"""
        import time
        from twinscope import Probe
        probe = Probe("http://127.0.0.1:{free_port()}", spool_dir={str(tmp_path)!r})
        step = 0
        while True:
            probe.train(step=step, logprobs=[[-1.0] * 100], sample_ids="a")
            step += 1
            time.sleep(0.001)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        assert eventually(lambda: len(_files(tmp_path)) > 20)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    steps = [read_trace(path).step for path in _files(tmp_path)]
    with SinkServer() as server, Probe(server.url, spool_dir=tmp_path) as probe:
        assert probe.flush(30)

    assert [batch.step for batch in server.batches()] == steps == list(range(len(steps)))
    assert list(tmp_path.iterdir()) == []


def test_a_living_neighbour_s_files_are_left_alone(tmp_path: Path) -> None:
    """Many ranks share one folder."""
    neighbour = Probe(f"http://127.0.0.1:{free_port()}", spool_dir=tmp_path)
    _fill(neighbour, range(3))
    assert eventually(lambda: neighbour.stats().spooled.batches == 3)
    with SinkServer() as server, Probe(server.url, spool_dir=tmp_path) as probe:
        _fill(probe, range(10, 11))
        assert probe.flush(20)
        assert [batch.step for batch in server.batches()] == [10]
    neighbour.close()

    assert neighbour.stats().spooled.batches == 3
    assert len(_files(tmp_path)) == 3


def test_the_spool_is_bounded_and_drops_the_oldest(tmp_path: Path) -> None:
    """Counted as spool_full; the disk never holds more than allowed."""
    probe = Probe(f"http://127.0.0.1:{free_port()}", spool_dir=tmp_path, spool_bytes=20_000)
    for step in range(20):
        probe.train(step=step, **_answers(step, 500))
    assert eventually(lambda: probe.stats().pending == Count())
    stats = probe.stats()
    probe.close()

    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= 20_000
    assert stats.spool_bytes <= 20_000
    assert stats.spooled.batches + stats.dropped["spool_full"].batches == 20
    assert stats.balanced
    assert read_trace(_files(tmp_path)[-1]).step == 19


@pytest.mark.usefixtures("as_in_a_run")
def test_a_full_disk_keeps_data_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC: counted, no half file, no error for the host; memory takes over."""
    real_open = builtins.open

    def full(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "w" in mode and str(path).startswith(str(tmp_path)):
            real_open(path, mode).close()
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_open(path, mode, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", full)
    port = free_port()
    probe = Probe(f"http://127.0.0.1:{port}", spool_dir=tmp_path)
    _fill(probe, range(5))
    assert eventually(lambda: "spool: OSError" in probe.stats().errors)
    assert probe.stats().pending.batches == 5
    assert list(tmp_path.glob("*/*.partial")) == []
    with SinkServer(port=port) as server:
        assert eventually(lambda: probe.flush(0.5))
        probe.close()

    assert [batch.step for batch in server.batches()] == list(range(5))
    assert probe.stats().balanced


@pytest.mark.usefixtures("as_in_a_run")
def test_a_folder_that_cannot_be_made_is_an_error_not_a_crash(tmp_path: Path) -> None:
    """A file where the folder should be: the probe works without the spool."""
    (tmp_path / "spool").write_text("occupied")
    with SinkServer() as server, Probe(server.url, spool_dir=tmp_path / "spool") as probe:
        _fill(probe, range(2))
        assert probe.flush(20)
        stats = probe.stats()

    assert len(server.batches()) == 2
    assert "spool: FileExistsError" in stats.errors


@pytest.mark.usefixtures("as_in_a_run")
def test_a_file_that_vanished_is_a_counted_loss(tmp_path: Path) -> None:
    """Someone cleans up the folder under a running job."""
    port = free_port()
    probe = Probe(f"http://127.0.0.1:{port}", spool_dir=tmp_path)
    _fill(probe, range(4))
    assert eventually(lambda: probe.stats().spooled.batches == 4)
    _files(tmp_path)[1].unlink()
    with SinkServer(port=port) as server:
        assert eventually(lambda: probe.flush(0.5))
        probe.close()

    assert [batch.step for batch in server.batches()] == [0, 2, 3]
    assert probe.stats().dropped["spool_lost"].batches == 1
    assert probe.stats().balanced


@pytest.mark.usefixtures("as_in_a_run")
def test_foreign_files_are_not_sent(tmp_path: Path) -> None:
    """Only names of ours are read, and only addresses of the service's interface are posted to."""
    folder = tmp_path / "00000000000001-1-abcdef01"
    folder.mkdir()
    (folder / "lock").touch()
    (folder / "notes.txt").write_text("keep me")
    (folder / f"000000000001-0-{new_id()}.partial").write_text("half")
    (folder / f"000000000002-0-{new_id()}.json").write_text('{"path":"/admin","body":{}}')
    with SinkServer() as server, Probe(server.url, spool_dir=tmp_path) as probe:
        assert probe.flush(20)
        stats = probe.stats()

    assert {post.path for post in server.posts} == {"/v1/events"}
    assert stats.dropped["spool_lost"].messages == 1
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_send_that_nothing_can_wake_costs_no_spooled_data(tmp_path: Path) -> None:
    """Connecting to a host that swallows packets cannot be aborted: closing writes the rest."""
    release = threading.Event()

    def hang(_: Post) -> Answer:
        release.wait()
        return Answer("unreachable")

    probe = Probe(sink=InMemorySink(hang), spool_dir=tmp_path)
    _fill(probe, range(3))
    assert eventually(lambda: probe.stats().captured.batches == 3)
    probe.close(timeout=0.5)
    stats = probe.stats()
    release.set()

    assert stats.spooled.batches == 3
    assert stats.balanced
    assert [read_trace(path).step for path in _files(tmp_path)] == [0, 1, 2]


@pytest.mark.usefixtures("as_in_a_run")
def test_what_cannot_be_encoded_does_not_block_the_spool(tmp_path: Path) -> None:
    """A lone surrogate in an id: that batch is invalid, the next ones are kept."""
    probe = Probe(f"http://127.0.0.1:{free_port()}", spool_dir=tmp_path)
    probe.rollout(logprobs=[[-1.0]], sample_ids=["\ud800"])
    _fill(probe, range(2))
    assert eventually(lambda: probe.stats().spooled.batches == 2)
    probe.close()

    assert probe.stats().dropped["invalid"].batches == 1
    assert probe.stats().balanced


def _spool(folder: Path, limit_bytes: int = 1 << 20) -> Spool:
    return Spool(folder, limit_bytes=limit_bytes, clock=SystemClock(), lose=lambda *_: None)


def test_a_message_comes_back_as_it_went(tmp_path: Path) -> None:
    """Address, body and batch id; non-ASCII text too."""
    spool = _spool(tmp_path)
    item = message("/v1/events", {"run": "été", "kind": "restart", "fields": {}})
    assert spool.write(item)
    kept = spool.oldest()

    assert kept is not None
    assert kept.post() == item.post()
    assert kept.count == item.count
    assert spool.remove(kept)
    assert not spool.remove(kept)
    spool.close()


def test_an_item_larger_than_the_spool_is_left_to_memory(tmp_path: Path) -> None:
    """It would evict everything and still not fit."""
    spool = _spool(tmp_path, 100)
    small = Message("/v1/events", b"{}", new_id())
    assert spool.write(small)

    assert not spool.write(Message("/v1/events", b"x" * 200, new_id()))
    kept = spool.oldest()
    assert kept is not None
    assert kept.batch_id == small.batch_id
    spool.close()
