"""Which processes of a run still speak, in its heading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from looking import Visit
from service_process import ServiceProcess

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.browser

NOW = 2_000_000_000.0


def _process(state: str, ago: float, *, rank: int | None = None) -> dict[str, Any]:
    """As the service lists it."""
    return {"process": "a", "pid": 77, "rank": rank, "state": state, "heartbeat_s": 60.0,
            "last_heard_at": NOW - ago, "last_heard_s": ago}  # fmt: skip


@pytest.mark.parametrize(
    ("processes", "told"),
    [
        ([], None),
        ([_process("quiet", 9.0), _process("closed", 9.0)], None),
        ([_process("alive", 600.0)], "1 process alive, last heard from 10 min ago"),
        (
            [_process("alive", 1200.0), _process("alive", 600.0), _process("lost", 7200.0, rank=5),
             _process("lost", 9000.0)],
            "2 processes alive, last heard from 10 min ago; "
            "2 without a sign of life (rank 5, pid 77), last heard from 2 h ago",
        ),
    ],
    ids=["none heard", "nothing to say", "one", "some fell silent"],
)  # fmt: skip
def test_the_heading_says_who_is_alive_and_who_fell_silent(
    processes: list[dict[str, Any]], told: str | None, visit: Visit, service: ServiceProcess
) -> None:
    """Idle is not dead; processes that give no sign, or said goodbye, are not counted."""
    view = service.get("/v1/runs/demo")
    assert view["processes"] == []  # these runs were written, not sent by probes

    def answer(route: Route) -> None:
        route.fulfill(json={**view, "processes": processes})

    visit.page.clock.install(time=NOW)
    visit.page.route("**/v1/runs/demo", answer)
    visit.open("#/runs/demo")
    visit.page.wait_for_selector(".heading")

    line = visit.page.locator(".heading .processes")
    assert (line.inner_text() if line.count() else None) == told


def test_health_says_why_batches_are_not_taken(visit: Visit) -> None:
    """A full disk: not ready, with the reason and what to do; to those without a token too."""
    why = {"ready": False, "reason": "No space left on device", "fix": "free space"}
    for full in (True, False):

        def answer(route: Route, full: bool = full) -> None:
            said = {**(route.fetch().json() if full else {}), **why}
            route.fulfill(status=503, json=said)

        visit.page.route("**/readyz", answer)
        page = visit.open("#/health")
        page.wait_for_selector("#view [role=alert]")
        told = page.locator("#view").inner_text().lower()
        assert "not ready" in told
        assert "no space left on device" in told
        assert "what to do: free space" in told
