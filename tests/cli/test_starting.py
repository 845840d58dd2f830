"""Commands that cannot start say so in one line, and leave other services alone."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
