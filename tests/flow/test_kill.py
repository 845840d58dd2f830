"""kill -9 under load, again and again: what was acknowledged is there once."""

from __future__ import annotations

import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from batches import body_of, make_samples
from pipelines import Bench

KILLS, CLIENTS, STEPS, PER_STEP = 16, 4, 60, 24
SERVICE = Path(__file__).resolve().parents[1] / "support/acking_service.py"

Post = tuple[str, bytes]


def _steps() -> tuple[list[Post], dict[int, float]]:
    """Posts in a random order over STEPS steps, and Σ Δ of each step."""
    dice = random.Random(5)
    posts: list[Post] = []
    sums: dict[int, float] = {}
    for step in range(STEPS):
        samples = [replace(s, name=f"{step}/{s.name}") for s in make_samples(step, PER_STEP)]
        sums[step] = sum(float((s.p.astype(float) - s.q).sum()) for s in samples)
        expect = {"rollout": PER_STEP, "train": PER_STEP} if step % 3 else None
        header = {} if expect is None else {"expect": expect}
        for side in ("rollout", "train"):
            told = step if side == "train" else None
            shuffled = dice.sample(samples, PER_STEP)
            for part in np.array_split(np.arange(PER_STEP), 4):
                body = body_of([shuffled[i] for i in part], side, step=told, **header)
                posts.append((f"{step}-{side}-{part[0]}", body))
    window = [posts[i : i + 80] for i in range(0, len(posts), 80)]  # later steps come later
    return [post for some in window for post in dice.sample(some, len(some))], sums


class _Killed:
    """A service that comes back whenever it was killed."""

    def __init__(self, folder: Path) -> None:
        self.data_dir, self.path = folder / "data", folder / "socket"
        command = [sys.executable, str(SERVICE), str(self.data_dir), str(self.path)]
        self._parent = subprocess.Popen(
            command, env={"PYTHONPATH": ":".join(sys.path)}, stdout=subprocess.PIPE, text=True
        )
        self._child = self._next_child()

    def _next_child(self) -> int:
        assert self._parent.stdout is not None
        return int(self._parent.stdout.readline())

    def restart(self) -> None:
        """kill -9; the next one starts by itself."""
        os.kill(self._child, signal.SIGKILL)
        self._child = self._next_child()

    def stop(self) -> None:
        """kill -9 for good."""
        with self._parent:
            self._parent.kill()
            os.kill(self._child, signal.SIGKILL)
        while Path(f"/proc/{self._child}").exists():
            time.sleep(0.01)

    @contextmanager
    def connect(self, stop: threading.Event) -> Iterator[socket.socket]:
        """A connection; waits until the service is up."""
        while not stop.is_set():
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(30)
            try:
                connection.connect(str(self.path))
            except OSError:
                connection.close()
                time.sleep(0.02)
                continue
            with connection:
                yield connection
            return
        raise TimeoutError("stopped")


def _client(
    service: _Killed, posts: queue.Queue[Post], acked: list[str], stop: threading.Event
) -> None:
    """Send posts until none is left. One without an answer is sent again, as a probe does."""
    pending: Post | None = None
    while not stop.is_set():
        try:
            with service.connect(stop) as connection, connection.makefile("rb") as answers:
                while True:
                    pending = pending or posts.get_nowait()
                    name, body = pending
                    connection.sendall(f"{name} {len(body)}\n".encode() + body)
                    if answers.readline() != f"ok {name}\n".encode():
                        break  # killed meanwhile
                    acked.append(name)
                    pending = None
        except queue.Empty:
            return
        except OSError:
            continue


def test_nothing_acknowledged_is_lost_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    """Four clients, sixteen kills at random moments, then one look at everything."""
    made, sums = _steps()
    posts: queue.Queue[Post] = queue.Queue()
    for post in made:
        posts.put(post)
    acked: list[str] = []
    stop, service, dice = threading.Event(), _Killed(tmp_path), random.Random(1)
    arguments = (service, posts, acked, stop)
    clients = [threading.Thread(target=_client, args=arguments) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        for kill in range(KILLS):
            target = (kill + 1) * len(made) // (KILLS + 1) - dice.randrange(8)
            while len(acked) < target and any(client.is_alive() for client in clients):
                time.sleep(dice.random() * 0.01)
            service.restart()
        for client in clients:
            client.join(timeout=120)
    finally:
        stop.set()
        service.stop()

    assert sorted(acked) == sorted(name for name, _ in made)
    _assert_everything_counted_once(Bench(service.data_dir), sums)


def _assert_everything_counted_once(bench: Bench, sums: dict[int, float]) -> None:
    pipeline = bench.pipeline
    for step in range(STEPS):
        view = pipeline.close_step("r", step)
        assert (view.samples, view.joined, view.late, view.duplicates) == (PER_STEP, PER_STEP, 0, 0)
        assert view.metrics["k1_mean"] == pytest.approx(-sums[step] / view.tokens, rel=1e-9)
    health = pipeline.health()
    assert (health.waiting_samples, health.quarantined, health.errors) == (0, 0, {})
    assert bench.inbox() == []
    pipeline.close()
