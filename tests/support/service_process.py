"""The service as users run it: its own process, its own environment, real HTTP on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 300.0  # the first start on a machine compiles the measure kernel; it may be busy
STOP_SECONDS = 20.0


@dataclass(frozen=True)
class ServiceProcess:
    """A service that answered /readyz."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def get(self, path: str) -> Any:
        """The JSON answer of GET `path`."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def text(self, path: str) -> str:
        """The body of GET `path` as text."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return str(answer.read().decode())


def service_python() -> str:
    """The interpreter that has the service: TWINSCOPE_SERVICE_PYTHON, else .venv, else this one."""
    chosen = os.environ.get("TWINSCOPE_SERVICE_PYTHON")
    usual = ROOT / ".venv/bin/python"
    return chosen or (str(usual) if usual.exists() else sys.executable)


def free_port() -> int:
    """A port on loopback that nobody listens on now.

    Below those that the system gives to outgoing connections: one of them may otherwise sit on the
    port while its server is down, or connect to itself there.
    """
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port from 20000 to 32000")


@contextmanager
def running_service(
    folder: Path, *, settings: Mapping[str, str] | None = None, port: int | None = None
) -> Iterator[ServiceProcess]:
    """Start `python -m twinscope_service serve` with its data in `folder`; stop it at the end.

    `settings`: extra environment, e.g. {"TWINSCOPE_ENGINE": "reference"}. `port`: None takes a
    free one; the same folder and port again are the same service, restarted.
    """
    port, log = port or free_port(), folder / "service.log"
    command = [service_python(), "-m", "twinscope_service", "serve"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--data-dir", str(folder / "data")]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TWINSCOPE_")}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env={**inherited, **(settings or {})},
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until_up(f"http://127.0.0.1:{port}/readyz", process, log=log, seconds=START_SECONDS)
        yield ServiceProcess(f"http://127.0.0.1:{port}", process, log)
    finally:
        stop(process)


def wait_until_up(url: str, process: subprocess.Popen[bytes], *, log: Path, seconds: float) -> None:
    """Return when `url` answers 200; fail with the log's end if the process dies or never does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    end = log.read_text(errors="replace")[-3000:]
    raise RuntimeError(f"{url} never answered; exit status {process.poll()}; log:\n{end}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask politely, then insist."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
