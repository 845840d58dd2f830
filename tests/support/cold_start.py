"""One cold start of one view of the page, timed by marks that the page sets itself.

Cold: a browser context that has cached nothing, and no debugger that listens (bare_chromium says
why that matters).
"""

from __future__ import annotations

from dataclasses import dataclass

from bare_chromium import BareChromium
from looking import LONG

VIEWS = {
    "runs": "#/",
    f"run of {LONG} steps": "#/runs/long",
    "run with reference": "#/runs/reference",
    "step": "#/runs/demo/steps/39",
    "step and its plots": "#/runs/demo/steps/39",
    "two runs": "#/compare/demo/long",
    "two steps": "#/compare/demo/29/demo/39",
    "health": "#/health",
    "runbook": "#/runbooks/temperature_not_restored",
}
HIGH = {"step and its plots": 2400}  # pixels of the window; others: 1000
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


def open_cold(browser: BareChromium, url: str, *, height: int = 1000) -> Opening:
    """In a context of its own."""
    with browser.page(url, width=1280, height=height) as page:
        page.wait_until(READY)
        marks = page.value(MARKS)
        text = min(at for name, at in marks if name == "text")
        last = max(at for _, at in marks)
        work, size = page.main_thread_seconds(), int(page.value(TRANSFERRED))
    return Opening(text / 1e3, last / 1e3, work, size)
