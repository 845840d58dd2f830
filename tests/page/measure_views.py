"""`make page-speed`: how long each view takes from a cold start, in a real browser, and why.

Cold: a browser context that has cached nothing, and no debugger that listens (bare_chromium says
why that matters). `text`: verdict, numbers, causes are there. `plots`: those in the window are
drawn. Both count from the moment the address was asked for, and include the service. `main thread`
is the processor time of the page's own work, whatever else the machine was doing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bare_chromium import BareChromium, bare_chromium
from looking import LONG, fill
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
READY = """document.querySelector('main:not([aria-busy]) :is(h1, h3)') !== null
    && document.querySelector('main .state[role=status]') === null
    && [...document.querySelectorAll('.plot')]
        .filter(plot => plot.getBoundingClientRect().top < innerHeight)
        .every(plot => plot.dataset.drawn !== undefined)"""
MARKS = "performance.getEntriesByType('mark').map(mark => [mark.name, mark.startTime])"
TRANSFERRED = "performance.getEntriesByType('resource').reduce((n, r) => n + r.transferSize, 0)"


@dataclass(frozen=True)
class Opening:
    """One cold start of one view; seconds, bytes as transferred."""

    text: float
    plots: float  # as `text` where the window shows no plot
    main_thread: float
    transferred: int


def open_cold(browser: BareChromium, url: str) -> Opening:
    """In a context of its own."""
    with browser.page(url, width=1280, height=1000) as page:
        page.wait_until(READY)
        marks = page.value(MARKS)
        text = min(at for name, at in marks if name == "text")
        last = max(at for _, at in marks)
        work, size = page.main_thread_seconds(), int(page.value(TRANSFERRED))
    return Opening(text / 1e3, last / 1e3, work, size)


def main(times: int) -> None:
    """One line per view: medians and worst of `times` cold starts."""
    print(f"{'view':<20} {'text':>7} {'plots':>7} {'worst':>7} {'main thread':>12} {'sent':>9}")
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "data", hostile_too=False)
        with running_service(Path(folder)) as service, bare_chromium() as browser:
            open_cold(browser, f"{service.url}/#/")  # the browser's own start is not the page's
            for name, address in VIEWS.items():
                seen = [open_cold(browser, f"{service.url}/{address}") for _ in range(times)]
                text, plots, work = (
                    statistics.median(getattr(one, what) for one in seen)
                    for what in ("text", "plots", "main_thread")
                )
                print(
                    f"{name:<20} {text:>5.2f} s {plots:>5.2f} s "
                    f"{max(one.plots for one in seen):>5.2f} s {work:>10.2f} s "
                    f"{seen[-1].transferred / 1e6:>6.2f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
