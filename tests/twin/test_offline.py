"""Offline engines that cannot be had are named with their reason; a real one: tests/engines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from twinscope.errors import ConfigError
from twinscope_service.twin.offline import OfflineEngine


def _engine(python: str, kind: type[OfflineEngine] = OfflineEngine) -> OfflineEngine:
    return kind(python, "/models/policy", {"temperature": 1.0}, 8, {})


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


class _AskedWhenDead(OfflineEngine):
    """Writes to a pipe that nobody reads any more."""

    def _ask(self, operation: str, **arguments: Any) -> Any:
        self._process.wait()
        return super()._ask(operation, **arguments)


@pytest.mark.parametrize("engine", [OfflineEngine, _AskedWhenDead])
def test_engine_that_dies_is_not_waited_for(tmp_path: Path, engine: type[OfflineEngine]) -> None:
    """A crash ends the check with a line, whether the engine was asked before it or after."""
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nexit 3\n")
    dying.chmod(0o755)

    with pytest.raises(ConfigError, match=r"ended during start \(status"):
        _engine(str(dying), engine).__enter__()
