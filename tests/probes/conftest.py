"""Every probe test runs with the guard re-raising, unless it tests what hosts see."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from twinscope import Probe


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No TWINSCOPE_* of the developer's shell; a mistake inside the probe fails the test."""
    for name in list(os.environ):
        if name.startswith("TWINSCOPE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TWINSCOPE_RAISE", "1")


@pytest.fixture
def as_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard as hosts have it: errors are counted, never raised."""
    monkeypatch.delenv("TWINSCOPE_RAISE")


@pytest.fixture
def closing() -> Iterator[list[Probe]]:
    """Probes put into this list are closed at the end of the test."""
    probes: list[Probe] = []
    yield probes
    for probe in probes:
        probe.close(timeout=1.0)
