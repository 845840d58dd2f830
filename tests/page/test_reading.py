"""What readers tripped on: a run that is silent, falls, spikes, the way back, what is missing."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from looking import HEALTHY, Visit
from service_process import ServiceProcess

from twinscope_service.views import AlertView

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.browser

LAST = 39
HOUR = 3600.0


@pytest.mark.parametrize(
    ("age", "pause", "events", "told"),
    [
        (59, 1, [], "live"),
        (149, 30, [], "live"),
        (61, 1, [], "quiet"),
        (151, 30, [], "quiet"),
        (2 * HOUR, 30, [], "silent"),
        (2 * HOUR, HOUR, [], "live"),
        (2 * HOUR, 30, [{"kind": "finished"}], "finished"),
        (59, 30, [{"kind": "finished"}, {"kind": "restart"}], "live"),
    ],
    ids=[
        "fresh",
        "five steps",
        "a minute at a second a step",
        "more than five steps",
        "two hours at half a minute a step",
        "slow steps",
        "ended",
        "begun again",
    ],
)
def test_a_run_lives_as_long_as_its_own_steps_say(
    age: float, pause: float, events: list[dict[str, str]], told: str, visit: Visit
) -> None:
    """Live for a minute or five step times, silent as the alarm says, finished if it said so."""
    page = visit.open("#/health")
    found = page.evaluate(
        """async ([age, pause, events]) => {
            const { pulse } = await import("/words.js");
            const last = Date.now() / 1000 - age;
            const closed = Array.from({ length: 20 }, (_, i) => last - (20 - i) * pause);
            return pulse(last, closed, events);
        }""",
        [age, pause, events],
    )

    assert found == told


def test_a_run_says_whether_it_lives(visit: Visit, service: ServiceProcess) -> None:
    """Ten seconds after its last data, and as the clock goes on: live, then quiet for so long."""
    page = visit.page
    page.clock.install(time=service.get("/v1/runs/demo")["last_seen"] + 10)
    visit.open("#/runs/demo")
    page.wait_for_selector("[data-pulse=live]")
    assert re.search(r"last data .* ago: live", page.locator(".heading").inner_text())
    page.clock.fast_forward("09:55")

    page.wait_for_selector("[data-pulse=quiet]")
    assert re.search(r"ago: quiet for 10 min", page.locator(".heading").inner_text())


def alert(**more: Any) -> dict[str, Any]:
    """A level shift that fires, or something like it, as the API tells it."""
    usual = AlertView(1, "level_shift", "firing", "k3", 9, 5, 0.002, 0.1, 50.0, "")
    return replace(usual, **more).as_json()


def test_what_rose_stands_first_what_fell_is_not_red_and_a_spike_is_over(visit: Visit) -> None:
    """Nobody resolved a spike; p exactly 0 on fewer tokens is no trouble; a group is."""
    page = visit.open("#/health")
    found = [
        alert(series="zero_train_share", before=0.003, after=0.0001),
        alert(series="k3{replica=3}", after=0.001),
        alert(),
        alert(kind="spike", state="resolved"),
        alert(series="abs_p99", state="resolved"),
    ]
    page.evaluate(
        """async (alerts) => {
            const { alertList, leading } = await import("/alerts.js");
            document.getElementById("view").replaceChildren(alertList("r", alerts, () => "#/"));
            window.lead = leading(alerts);
        }""",
        found,
    )

    rows = page.locator("[aria-label=Alerts] tbody tr")
    states = [re.sub(r"\s+", " ", row.inner_text()) for row in rows.all()]
    assert [" firing " in one for one in states] == [True, True, False]
    assert "rollout_train_kl firing" in states[0]
    assert "exactly 0 fell" in states[2]
    assert rows.nth(2).locator(".alert.firing").count() == 0
    page.locator("summary", has_text="1 spike, each of one step; 1 over").click()
    over = page.locator("[aria-label='Alerts that are over']").inner_text()
    assert "one step, over" in over
    assert "resolved" not in over
    assert page.evaluate("() => window.lead.series") == "k3"


def test_the_answer_is_there_before_the_curves(visit: Visit) -> None:
    """Verdict, onset and cause do not wait for 5 000 steps: the timeline is held back."""
    held: list[Route] = []
    page = visit.page
    page.route(re.compile(r"/demo/timeline\?"), lambda route: held.append(route))
    page.goto(f"{visit.url}/#/runs/demo")
    box = page.locator(".situation")
    box.wait_for()

    assert box.locator("[data-role=onset]").inner_text() == f"step {HEALTHY}"
    assert box.locator("[data-role=cause]").inner_text() == "temperature not restored"
    assert page.locator(".plot").count() == 0
    page.wait_for_function("() => document.querySelector('main .state[role=status]')")
    while not held:
        page.wait_for_timeout(20)
    held.pop().continue_()
    page.wait_for_selector(".plot[data-drawn]")
    assert f"step {HEALTHY - 1} beside step {HEALTHY}" in box.inner_text()


def test_a_runbook_leads_back_to_where_it_was_opened(visit: Visit) -> None:
    """By the crumbs, by the key, and on from one runbook to another."""
    page = visit.open(f"#/runs/demo/steps/{LAST}")
    page.locator(".situation").get_by_role("link", name="Runbook").click()
    page.wait_for_selector("article.runbook")
    crumbs = page.locator(".crumbs")
    assert crumbs.get_by_role("link", name=f"Step {LAST}").count() == 1
    page.locator("article.runbook a[href^='#/runbooks/']").first.click()
    page.wait_for_function("() => !location.hash.includes('temperature_not_restored')")
    page.wait_for_selector("main:not([aria-busy]) article.runbook")
    assert crumbs.get_by_role("link", name="demo").get_attribute("href") == "#/runs/demo"
    page.keyboard.press("u")

    page.wait_for_url(f"**/#/runs/demo/steps/{LAST}")


def test_the_step_page_says_the_fix_once_and_names_the_ratio(
    visit: Visit, service: ServiceProcess
) -> None:
    """The temperature of a pair alone is a ratio of the two sides, and is called so."""
    visit.open(f"#/runs/demo/steps/{LAST}")
    (cause, *_) = service.get(f"/v1/runs/demo/steps/{LAST}")["diagnosis"]
    text = visit.page.locator("main").inner_text()

    assert text.count(cause["fix"].rstrip(".")) == 1
    names = visit.page.locator(".cause .facts dt").all_inner_texts()
    assert "temperature, engine's over trainer's" in names
    assert "temperature" not in names


def test_ids_instead_of_text_say_how_to_get_text(visit: Visit) -> None:
    """No tokenizer is configured: the setting is named."""
    visit.open(f"#/runs/demo/steps/{LAST}")
    assert "TWINSCOPE_TOKENIZER=" in visit.page.locator("#tokens").inner_text()


def test_bars_by_position_carry_counts_and_errors(visit: Visit, service: ServiceProcess) -> None:
    """Tokens on every bar, two standard errors where the squares are known, worked out again."""
    page = visit.open(f"#/runs/demo/steps/{LAST}")
    visit.see_all()
    page.get_by_role("group", name="measure").get_by_role("button", name="mean |Δ|").click()
    bars = page.wait_for_function(
        """() => {
            const plots = [...document.querySelectorAll('.plot')].filter(plot => plot.data);
            const bar = plots.map(plot => plot.data[0]).find(one => one.error_y?.visible);
            return bar && { n: bar.customdata, y: bar.y, error: bar.error_y.array, text: bar.text };
        }"""
    ).json_value()
    statistics = service.get(f"/v1/runs/demo/steps/{LAST}/profiles")["statistics"]
    at = statistics["columns"].index
    rows = [row for row in statistics["profiles"]["position"] if row[0]]

    assert bars["n"] == [row[0] for row in rows]
    for row, mean, error in zip(rows, bars["y"], bars["error"], strict=True):
        n, total, squares = row[0], row[at("abs")], row[at("d2")]
        variance = (squares - total * total / n) / (n - 1)
        assert mean == pytest.approx(total / n, rel=1e-12)
        assert error == pytest.approx(2 * math.sqrt(variance / n), rel=1e-9)
    assert bars["text"][0] == str(int(rows[0][0]))


@pytest.mark.parametrize(
    ("steps", "second", "told"),
    [
        (("", ""), "demo", "the same run twice"),
        (("3", ""), "long", "Which step of long, the second one?"),
        (("", "3"), "long", "Which step of demo, the first one?"),
        (("3", "3"), "demo", "the same step twice"),
    ],
)
def test_the_compare_form_says_what_is_missing(
    steps: tuple[str, str], second: str, told: str, visit: Visit
) -> None:
    """Nothing is ignored, and the view stays."""
    page = visit.open("#/compare")
    assert (
        page.get_by_label("first run").input_value()
        != page.get_by_label("second run").input_value()
    )
    page.get_by_label("first run").select_option("demo")
    page.get_by_label("second run").select_option(second)
    page.get_by_label("first step").fill(steps[0])
    page.get_by_label("second step").fill(steps[1])
    page.get_by_role("button", name="Compare").click()

    assert told in page.locator(".compare-form [role=alert]").inner_text()
    assert page.url.endswith("#/compare")


@pytest.mark.parametrize(
    ("address", "same"),
    [
        ("#/compare/demo/demo", True),
        ("#/compare/demo/5/demo/5", True),
        ("#/compare/demo/5/demo/6", False),
        ("#/compare/demo/reference", False),
    ],
)
def test_equal_numbers_are_flagged(address: str, same: bool, visit: Visit) -> None:
    """One run sent under two names would look like a perfect match."""
    visit.open(address)
    assert visit.page.locator("[data-twins]").count() == int(same)


@pytest.mark.parametrize("pair", [f"demo/{HEALTHY - 1}/demo/{LAST}", "demo/reference"])
def test_both_sides_of_a_comparison_fit_a_phone(
    pair: str, browser: Browser, service: ServiceProcess
) -> None:
    """At 390 pixels every column of the numbers is in sight."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    visit = Visit(context.new_page(), service.url)
    visit.open(f"#/compare/{pair}")
    wide = visit.page.locator("[aria-label^='Two ']").evaluate(
        "box => [box.scrollWidth, box.clientWidth]"
    )

    assert wide[0] <= wide[1]
    context.close()


def test_health_names_units(visit: Visit) -> None:
    """Seconds are headed seconds, and each stage says what it does."""
    visit.open("#/health")
    times = visit.page.locator("[aria-label='Where the time went since start-up']")

    assert times.locator("thead").inner_text().split() == ["work", "seconds"]
    assert "warm up: compile the measurement at start" in times.inner_text()


def test_a_phone_shows_a_run_as_a_card(browser: Browser, service: ServiceProcess) -> None:
    """Every cell is in sight beside its title, none by sideways scrolling."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    visit = Visit(context.new_page(), service.url)
    page = visit.open("#/")
    row = page.locator("[aria-label=Runs] tbody tr", has_text="demo")
    shown = row.locator("th, td").evaluate_all(
        """cells => cells.filter(cell => cell.offsetWidth)
            .map(cell => [cell.dataset.title, cell.getBoundingClientRect().right])"""
    )

    assert {title for title, _ in shown} >= {"run", "verdict", "since", "likely cause", "last data"}
    assert all(right <= 390 for _, right in shown)
    context.close()


def test_an_open_page_notices_that_a_run_went_silent(visit: Visit, service: ServiceProcess) -> None:
    """Nothing new comes, so the word changes by the clock alone: half an hour passes."""
    page = visit.page
    page.clock.install(time=service.get("/v1/runs/demo")["last_seen"])
    visit.open("#/runs/demo")
    page.wait_for_selector("[data-pulse=live]")
    page.clock.fast_forward("30:00")

    page.wait_for_selector("[data-pulse=silent]")
    assert re.search(r"last data 3\d min ago: silent", page.locator(".heading").inner_text())


def test_two_runs_are_compared_in_numbers_too(visit: Visit, service: ServiceProcess) -> None:
    """Medians over all steps of each, as the timelines give them, and their ratio."""
    visit.open("#/compare/reference/demo")
    exact = re.compile(r"^median rollout_train_kl$")
    head = visit.page.locator("th", has_text=exact)
    row = visit.page.locator("[aria-label='Two runs'] tr").filter(has=head)
    shown = [float(cell.get_attribute("value") or "nan") for cell in row.locator("data").all()]
    levels = [
        median(service.get(f"/v1/runs/{run}/timeline")["metrics"]["k3_mean"])
        for run in ("reference", "demo")
    ]

    assert shown == levels
    assert f"×{levels[1] / levels[0]:.3g}" in row.inner_text()


def test_a_step_without_a_pair_shows_no_empty_plots(visit: Visit) -> None:
    """One side never came: what was lost is told, and nothing is drawn of nothing."""
    page = visit.page
    empty = {"received": 0, "counted": 0}

    def cut(route: Route) -> None:
        step = route.fetch().json()
        lost = {"verdict": "unknown", "metrics": {}, "coverage": empty, "diagnosis": []}
        told = {"reasons": ["the train side never came"], "evicted": {"step_closed": 48}}
        route.fulfill(json={**step, **lost, **told})

    page.route(re.compile(rf"/demo/steps/{LAST}$"), cut)
    visit.open(f"#/runs/demo/steps/{LAST}")
    text = page.locator("main").inner_text()

    assert "the train side never came" in text
    assert "On which tokens?\nNot known: no token has both sides." in text
    assert "Look: samples given up" in text
    assert page.locator(".plot, #tokens, .tile").count() == 0
    assert visit.complaints == []
