"""A container engine to test with: the one that runs, or one that the test starts and ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE_BASE = "python:3.11.13-slim-bookworm"
STAND_IN = "twinscope-test-base:bookworm"


class NoEngineError(Exception):
    """Why nothing can be built here."""


@dataclass(frozen=True)
class Engine:
    """Docker's command line, pointed at one engine."""

    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *command: str, timeout: float = 300) -> str:
        """The standard output of a command; its standard error in the exception, if it fails."""
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **self.environment}, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            said = (done.stdout + done.stderr)[-2000:]
            raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{said}")
        return done.stdout

    def answers(self) -> bool:
        """Is there an engine behind the command line?"""
        try:
            self.run("docker", "info", timeout=30)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            return False
        return True

    def base(self) -> str:
        """TWINSCOPE_TEST_BASE, the image of the Dockerfile, or a stand-in made from Debian."""
        if chosen := os.environ.get("TWINSCOPE_TEST_BASE"):
            return chosen
        try:
            self.run("docker", "pull", DOCKERFILE_BASE, timeout=600)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            if shutil.which("debootstrap") is None or os.geteuid() != 0:
                raise NoEngineError(f"no image registry and no debootstrap: {error}") from error
            self.run("tests/deploy/base_image.sh", STAND_IN, timeout=1200)
            return STAND_IN
        return DOCKERFILE_BASE


@contextmanager
def container_engine() -> Iterator[Engine]:
    """The running engine, else one of our own that ends with the block."""
    if shutil.which("docker") is None:
        raise NoEngineError("no docker: apt-get install docker.io debootstrap")
    engine = Engine()
    if engine.answers():
        yield engine
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        raise NoEngineError("no docker daemon answers, and none can be started (dockerd, as root)")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        _daemon(Path(folder)) as own,
    ):
        yield own


@contextmanager
def _daemon(folder: Path) -> Iterator[Engine]:
    """A daemon with its own socket and folder, that leaves the machine's network rules alone."""
    socket = f"unix://{folder}/docker.sock"
    command = [
        "dockerd", "--host", socket, "--data-root", str(folder / "data"),
        "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"),
        "--bridge=none", "--iptables=false",
    ]  # fmt: skip
    log = (folder / "log").open("w+")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    engine = Engine({"DOCKER_HOST": socket})
    try:
        eventually(lambda: process.poll() is not None or engine.answers(), timeout_s=60)
        if process.poll() is not None:
            raise NoEngineError(f"dockerd does not run here: {(folder / 'log').read_text()[-500:]}")
        yield engine
    finally:
        process.terminate()
        process.wait(timeout=60)
        log.close()
        left = [str(path) for path in (folder / "exec/netns").glob("*")]  # mounts it does not undo
        subprocess.run(["umount", "--lazy", *left], check=False, capture_output=True)
