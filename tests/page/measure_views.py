"""`make page-speed`: how long each view takes from a cold start, in a real browser, and why.

Cold: a browser context that has cached nothing. A view is open when its text and every plot in the
window are drawn. `main thread` is the time that the page's own work took, whatever else the machine
was doing; the first number includes the service and the wait for a free core.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from looking import LONG, Visit, fill
from playwright.sync_api import Browser, sync_playwright
from service_process import running_service

VIEWS = {
    "runs": "#/",
    f"run of {LONG} steps": "#/runs/long",
    "run with reference": "#/runs/reference",
    "step": "#/runs/demo/steps/39",
    "two runs": "#/compare/demo/long",
    "two steps": "#/compare/demo/29/demo/39",
    "health": "#/health",
    "runbook": "#/runbooks/temperature_not_restored",
}
WINDOW = {"width": 1280, "height": 900}
IN_WINDOW_DRAWN = """() => [...document.querySelectorAll('.plot')]
    .filter(plot => plot.getBoundingClientRect().top < innerHeight)
    .every(plot => plot.dataset.drawn !== undefined)"""


@dataclass(frozen=True)
class Opening:
    """One cold start of one view; seconds, bytes as transferred."""

    wall: float
    main_thread: float
    transferred: int


def open_cold(browser: Browser, url: str, address: str) -> Opening:
    """In a context of its own."""
    context = browser.new_context(viewport=WINDOW)  # type: ignore[arg-type]  # a TypedDict
    visit = Visit(context.new_page(), url)
    session = context.new_cdp_session(visit.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    began = time.perf_counter()
    visit.open(address)
    visit.page.wait_for_function(IN_WINDOW_DRAWN)
    wall = time.perf_counter() - began
    work = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    size = "() => performance.getEntriesByType('resource').reduce((n, r) => n + r.transferSize, 0)"
    opening = Opening(wall, work["TaskDuration"], int(visit.page.evaluate(size)))
    context.close()
    return opening


def main(times: int) -> None:
    """One line per view: median and worst of `times` cold starts."""
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "data", hostile_too=False)
        with running_service(Path(folder)) as service, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            print(
                f"{'view':<22} {'median':>8} {'worst':>8} {'main thread':>12} {'transferred':>12}"
            )
            for name, address in VIEWS.items():
                seen = [open_cold(browser, service.url, address) for _ in range(times)]
                wall = [one.wall for one in seen]
                work = statistics.median(one.main_thread for one in seen)
                print(
                    f"{name:<22} {statistics.median(wall):>6.2f} s {max(wall):>6.2f} s "
                    f"{work:>10.2f} s {seen[-1].transferred / 1e6:>9.2f} MB",
                    flush=True,
                )
            browser.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
