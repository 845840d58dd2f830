"""Offline engines that cannot be had are named with their reason; a real one: tests/engines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from twinscope.errors import ConfigError
from twinscope_service.twin.offline import OfflineEngine


def _engine(python: str) -> OfflineEngine:
    return OfflineEngine(python, "/models/policy", {"temperature": 1.0}, 8, {})


def test_interpreter_that_is_absent_is_named() -> None:
    """The path that was given, and the option that gave it."""
    with pytest.raises(ConfigError, match=r"--engine-python /absent/python: .*No such file"):
        _engine("/absent/python").__enter__()


def test_interpreter_without_vllm_says_so_and_leaves_no_process() -> None:
    """The worker's own words come back over the pipe."""
    engine = _engine(sys.executable)

    with pytest.raises(ConfigError, match=r"/models/policy: start: ModuleNotFoundError.*vllm"):
        engine.__enter__()
    assert engine._process.poll() == 0


def test_engine_that_dies_is_not_waited_for(tmp_path: Path) -> None:
    """A crash in the engine ends the check with a line, not with a hanging pipe."""
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nexit 3\n")
    dying.chmod(0o755)

    with pytest.raises(ConfigError, match=r"ended during start \(status"):
        _engine(str(dying)).__enter__()
