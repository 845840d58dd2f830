"""Peace from an alert, asked for on the page: what the API then holds, and nothing more."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from looking import Visit, watch
from service_process import ServiceProcess, running_service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

REASON = "<img src=x onerror=\"window.hit='silence'\"> known, new engine"
HOUR = 3600.0


def unfold(page: Page) -> None:
    """Open the form below the alerts."""
    page.locator("summary", has_text="Tell nobody for a while").click()


def test_a_silence_is_asked_for_shown_and_ended(visit: Visit, service: ServiceProcess) -> None:
    """Four hours of one kind with a reason; its text is text; ending it ends it for the service."""
    page = visit.open("#/runs/demo")
    unfold(page)
    page.get_by_label("for how long").select_option(label="4 hours")
    page.get_by_label("which alerts").select_option(label="only: level shift")
    page.get_by_label("reason").fill(REASON)
    page.get_by_role("button", name="Silence").click()
    page.wait_for_selector(".silence")

    (kept,) = service.get("/v1/silences?run=demo")
    assert kept["kinds"] == ["level_shift"]
    assert kept["reason"] == REASON
    assert kept["end"] - kept["start"] == 4 * HOUR
    assert abs(kept["start"] - time.time()) < HOUR
    assert REASON in page.locator(".silence").inner_text()
    assert page.locator("summary", has_text="Nobody is told until").count() == 1

    page.get_by_role("button", name="end it").click()
    page.wait_for_selector(".silence", state="detached")
    assert service.get("/v1/silences?run=demo") == []
    assert page.evaluate("() => window.hit") is None
    assert visit.complaints == []


@pytest.mark.parametrize(
    ("pattern", "run", "named"),
    [
        ("nightly-*", "nightly-7b", True),
        ("nightly-*", "my-nightly-7b", False),
        ("run?", "run1", True),
        ("a.b", "axb", False),
        ("(", "(", True),
        ("*", "", True),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-b-b", False),
        ("*a" * 90 + "b", "a" * 199, False),
    ],
)
def test_silences_of_many_runs_are_shown_on_those(
    pattern: str, run: str, named: bool, visit: Visit
) -> None:
    """A glob, as the service reads it; its other characters are only themselves."""
    page = visit.open("#/health")
    found = page.evaluate(
        """async ([runs, run]) => {
            const { names } = await import("/alerts.js");
            return names({ run: null, runs }, run);
        }""",
        [pattern, run],
    )

    assert found is named


def test_with_a_token_the_browser_asks_once_and_silences_too(
    browser: Browser, tmp_path: Path
) -> None:
    """The password that opened the page opens the call; without it nothing is silenced."""
    with running_service(tmp_path, settings={"TWINSCOPE_TOKEN": "secret-of-ours"}) as closed:
        context = browser.new_context(
            http_credentials={"username": "x", "password": "secret-of-ours"}
        )
        visit = Visit(context.new_page(), closed.url)
        page = visit.open("#/health")
        told = page.evaluate(
            """async () => {
                const { alertList } = await import("/alerts.js");
                document.getElementById("view").replaceChildren(alertList("r", [], () => "#/"));
            }"""
        )
        assert told is None
        unfold(page)
        page.get_by_role("button", name="Silence").click()
        page.wait_for_selector(".silence")
        context.close()

        stranger = browser.new_context()
        refused = stranger.request.post(
            f"{closed.url}/v1/silences", data={"run": "r", "seconds": HOUR}
        )
        assert refused.status == 401
        stranger.close()


def test_a_refused_silence_says_why(visit: Visit) -> None:
    """A reason that the service does not take: its words are shown, and nothing is listed."""
    page = visit.open("#/runs/demo")
    watch(visit)
    unfold(page)
    page.evaluate(
        "() => { document.querySelector('[aria-label=\"for how long\"] option').value = '1e9'; }"
    )
    page.get_by_role("button", name="Silence").click()
    page.wait_for_selector(".state.error")

    assert "seconds" in page.locator(".state.error").inner_text()
    assert page.locator(".silence").count() == 0
