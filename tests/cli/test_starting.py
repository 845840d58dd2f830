"""Commands that cannot start say so in one line, and leave other services alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import twinscope_service

RECORDINGS = Path(twinscope_service.__file__).parent / "recordings"
COMMAND = [sys.executable, "-m", "twinscope_service"]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120)


@pytest.fixture
def taken() -> Iterator[str]:
    """A port on which somebody else listens."""
    server = socket.create_server(("127.0.0.1", 0))
    yield str(server.getsockname()[1])
    server.close()


def test_a_taken_port_is_named_with_what_to_do(taken: str, tmp_path: Path) -> None:
    """One line on stderr, no traceback, status 2."""
    ended = _run("serve", "--port", taken, "--data-dir", str(tmp_path))

    assert ended.returncode == 2
    assert f"127.0.0.1:{taken}" in ended.stderr
    assert "--port" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    """One line that names the folder."""
    (tmp_path / "file").write_text("")
    ended = _run("serve", "--port", "0", "--data-dir", str(tmp_path / "file"))

    assert ended.returncode == 2
    assert str(tmp_path / "file") in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_demonstration_does_not_write_into_a_service_that_holds_the_port(taken: str) -> None:
    """It refuses before anything is sent."""
    ended = _run("demo", "--once", "--port", taken)

    assert ended.returncode == 2
    assert "port" in ended.stderr


def test_the_command_in_a_trainer_image_names_the_extra() -> None:
    """Only the probes are installed: the first missing library is named with the extra."""
    block = "import sys; sys.modules['pydantic'] = None; sys.argv = ['twinscope', 'serve'];"
    code = block + "from twinscope_service.cli import main; raise SystemExit(main())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert ended.returncode == 2
    assert "twinscope[service]" in ended.stderr


def test_the_demonstration_keeps_clear_of_the_users_own_settings() -> None:
    """A token, a switch and an address that are meant for other services; any free port."""
    mine = {
        "TWINSCOPE_TOKEN": "mine",
        "TWINSCOPE_DISABLED": "1",
        "TWINSCOPE_MIN_TOKENS": "100000000",
        "TWINSCOPE_URL": "http://127.0.0.1:9",
    }
    command = [*COMMAND, "demo", "--once", "--port", "0"]
    ended = subprocess.run(
        command, env={**os.environ, **mine}, capture_output=True, text=True, timeout=280
    )

    assert ended.returncode == 0, ended.stderr
    assert "the first start compiles" in ended.stdout
    assert "stale_weights" in ended.stdout


@pytest.mark.parametrize("form", [["--json"], []], ids=["long", "short"])
def test_output_that_nobody_reads_is_no_error(form: list[str]) -> None:
    """As in `| head`: the pipe is closed before anything is written."""
    trace = str(RECORDINGS / "healthy_bf16.safetensors")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        ended = subprocess.run(
            [*COMMAND, "analyze", *form, trace], stdout=closed, stderr=subprocess.PIPE, text=True
        )

    assert ended.stderr == ""
    assert ended.returncode == (141 if form else 1)  # rich, which writes the short one, says 1
