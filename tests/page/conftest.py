"""One service with the runs of `looking`, and a real Chromium that looks at its page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from looking import Visit, fill, watch
from service_process import ServiceProcess, running_service

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--no-first-run",
]  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    if CHROMIUM is None:
        pytest.skip("no chromium binary: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A real service on a directory that holds the runs demo, long, reference and a hostile one."""
    folder = tmp_path_factory.mktemp("page")
    fill(folder / "data")
    with running_service(folder) as process:
        yield process


@pytest.fixture
def visit(browser: Browser, service: ServiceProcess) -> Iterator[Visit]:
    """A fresh browser context of laptop size."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    seen = Visit(context.new_page(), service.url)
    watch(seen)
    yield seen
    context.close()
