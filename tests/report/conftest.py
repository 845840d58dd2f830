"""A real service with a run that goes wrong, and one whose sender writes markup everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from looking import fill
from service_process import ServiceProcess, running_service

from twinscope_service.client import Client


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """The runs of `looking`."""
    folder = tmp_path_factory.mktemp("report")
    fill(folder / "data")
    with running_service(folder) as process:
        yield process


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[Client]:
    """A client of it."""
    with Client(service.url) as it:
        yield it
