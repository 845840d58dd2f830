"""What `make page-speed` reads: marks of the page itself, in a browser that nobody debugs."""

from __future__ import annotations

import shutil

import pytest
from bare_chromium import bare_chromium
from cold_start import VIEWS, open_cold
from service_process import ServiceProcess

pytestmark = pytest.mark.browser

PACKED_LIBRARY = 1_000_000  # bytes; the plotting library is more than that, compressed


@pytest.mark.skipif(shutil.which("chromium") is None, reason="apt-get install chromium")
def test_text_stands_before_plots_and_a_view_without_plots_loads_no_library(
    service: ServiceProcess,
) -> None:
    """The long run: text first, then plots. Health: a tenth of the bytes."""
    with bare_chromium() as browser:
        run = open_cold(browser, f"{service.url}/#/runs/long")
        health = open_cold(browser, f"{service.url}/#/health")

    assert 0 < run.text < run.plots
    assert run.transferred > PACKED_LIBRARY > 10 * health.transferred
    assert health.text == health.plots
    assert 0 < health.main_thread < run.main_thread


def test_every_kind_of_view_is_measured() -> None:
    """None is left out because it is slow."""
    kinds = {address.split("/")[1] for address in VIEWS.values()}
    assert kinds == {"", "runs", "compare", "health", "runbooks"}
