"""A real service on a free port, and raw requests that a client library would not send."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from twinscope import wire


def pytest_configure() -> None:
    """One thread for torch: on a shared machine its threads wait for each other in every layer."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


try:
    from hypothesis import settings
except ImportError:  # the environment of the real engines has none
    pass
else:
    # A deadline is a timed assertion, and machines are shared. The same examples every time, so
    # that a failure belongs to the change that brought it; TWINSCOPE_FUZZ=1 looks for new ones.
    fuzz = os.environ.get("TWINSCOPE_FUZZ", "") not in ("", "0")
    settings.register_profile("steady", deadline=None, derandomize=not fuzz)
    settings.load_profile("steady")

BINARY = "application/x-safetensors"
START_S = 180.0  # the first start of an installation compiles, beside whatever else runs


@dataclass(frozen=True)
class Service:
    """A running service. `url` for a client library, `port` for sockets."""

    port: int

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        """GET, over a new connection."""
        return httpx.get(self.url + path, timeout=120, **arguments)

    def post(self, path: str, **arguments: Any) -> httpx.Response:
        """POST, over a new connection."""
        return httpx.post(self.url + path, timeout=120, **arguments)

    def delete(self, path: str, **arguments: Any) -> httpx.Response:
        """DELETE, over a new connection."""
        return httpx.delete(self.url + path, timeout=120, **arguments)

    def send(self, body: bytes, **headers: str) -> httpx.Response:
        """Post a binary batch. Underscores in header names become dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.post("/v1/batches", content=body, headers={"content-type": BINARY, **named})

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def metric(self, name: str) -> float:
        """The value of one sample of /metrics; `name` includes its labels."""
        lines = self.get("/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


@contextmanager
def _running(data_dir: Path, **settings: Any) -> Iterator[Service]:
    # Here and not above: the engines' environment runs tests too, and has no service.
    from twinscope_service.app import build_server
    from twinscope_service.config import load_settings

    server = build_server(load_settings(port=0, data_dir=data_dir, **settings))
    thread = threading.Thread(target=server.run, name="service")
    thread.start()
    try:
        deadline = time.monotonic() + START_S
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        service = Service(server.servers[0].sockets[0].getsockname()[1])
        while service.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield service
    finally:
        server.should_exit = True
        thread.join(START_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Start a service with settings of its own; it stops with the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(_running(tmp_path / "data", **settings))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for the tests of a module, with small limits."""
    limits = {"max_body_bytes": 1 << 20, "max_json_bytes": 1 << 16, "max_inflight_bytes": 4 << 20}
    with _running(tmp_path_factory.mktemp("service") / "data", body_timeout_s=1.0, **limits) as it:
        yield it


@pytest.fixture
def batch() -> Callable[..., bytes]:
    """A small body. `header` fields replace its own; `q`, `p`: the two sides, None: absent."""

    def build(q: list[float] | None = None, p: list[float] | None = None, **header: Any) -> bytes:
        values = next(x for x in (q, p) if x is not None)
        tensors: dict[str, Any] = {
            "offsets": np.array([0, len(values)]),
            "token_ids": np.arange(len(values), dtype=np.int32),
        }
        if q is not None:
            tensors["rollout_logprobs"] = np.array(q, np.float32)
        if p is not None:
            tensors["train_logprobs"] = np.array(p, np.float32)
        fields = {"run": "r", "step": 0, "sample_ids": ["a"], **header}
        return b"".join(wire.encode(fields, {name: (a, a.shape) for name, a in tensors.items()}))

    return build


@pytest.fixture
def exchange() -> Callable[..., tuple[int, dict[str, str], bytes]]:
    """Send raw bytes, read one answer: status, headers, body."""

    def talk(connection: socket.socket, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
        for piece in pieces:
            connection.sendall(piece)
        return read_answer(connection)

    return talk


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One HTTP answer with a Content-Length."""
    with connection.makefile("rb") as file:
        status = int(file.readline().split()[1])
        headers: dict[str, str] = {}
        while line := file.readline().strip().decode():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, file.read(int(headers.get("content-length", 0)))


@pytest.fixture
def problem() -> Callable[[bytes], dict[str, Any]]:
    """The problem document of an answer's body."""

    def read(body: bytes) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(body)
        assert {"type", "title", "status", "detail"} <= set(document)
        return document

    return read
