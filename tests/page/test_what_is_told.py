"""What a reader has to be told: signs, limits, what is not sent, shifted samples, late faults."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from looking import HEALTHY, HOSTILE, Visit
from service_process import ServiceProcess

from twinscope_service.views import AlertView

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.browser

LAST = 39
STEP = f"#/runs/demo/steps/{LAST}"


@pytest.mark.parametrize("address", ["#/runs/demo", STEP])
def test_the_signs_are_defined_where_they_are_first_read(address: str, visit: Visit) -> None:
    """One short line each, without a click, in the box at the top."""
    visit.open(address)
    lines = visit.page.locator(".situation .signs li").all_inner_texts()

    assert [line.partition(" = ")[0] for line in lines] == ["q", "p", "Δ", "ρ", "k3"]
    assert "rollout engine" in lines[0]
    assert "trainer" in lines[1]
    assert lines[2].startswith("Δ = p − q")
    assert lines[4].startswith("k3 = e^Δ − 1 − Δ")


def test_a_shifted_sample_is_marked_in_its_strip_and_at_the_lags(visit: Visit) -> None:
    """The lag of the API beside its name; the plot of all samples does not call it aligned."""
    page = visit.page

    def shift(route: Route) -> None:
        answer = route.fetch().json()
        answer["samples"][0]["lag"] = -1
        route.fulfill(json=answer)

    page.route("**/evidence", shift)
    visit.open(STEP)
    strips = page.locator(".strip-name").all_inner_texts()

    assert strips[0].startswith("lag −1 ")
    assert not any("lag" in name for name in strips[1:])
    assert "Shifted: q[t] fits p[t − 1]" in page.locator(".detail").inner_text()
    caption = page.locator("figcaption", has_text="Lags").inner_text()
    assert "the tokens are aligned" not in caption
    assert f"1 of the {len(strips)} kept ones are shifted" in caption


def test_an_aligned_sample_is_told_without_a_lag(visit: Visit) -> None:
    """Nothing is said of what is as it should be, and nothing called null."""
    page = visit.open(STEP)

    assert page.locator(".lag").count() == 0
    assert "null" not in page.locator(".detail").inner_text()
    assert "the tokens are aligned" in page.locator("figcaption", has_text="Lags").inner_text()


def test_a_late_fault_shows_in_the_comparison_of_runs(
    visit: Visit, service: ServiceProcess
) -> None:
    """The medians of all steps are alike; from the onset on, and in the last quarter, they part."""
    page = visit.open("#/compare/reference/demo")
    runs = [service.get(f"/v1/runs/{run}/timeline") for run in ("reference", "demo")]

    def told(title: str) -> list[float]:
        row = page.locator("[aria-label='Two runs'] tr", has_text=f"median rollout_train_kl{title}")
        return [
            float(one.get_attribute("value") or "nan") for one in row.first.locator("data").all()
        ]

    def expected(part: str) -> list[float]:
        found = []
        for run in runs:
            late = HEALTHY if part == "onset" else run["step"][0] + 0.75 * len(run["step"])
            levels = zip(run["step"], run["metrics"]["k3_mean"], strict=True)
            found.append(median(level for step, level in levels if step >= late))
        return found

    whole, since, quarter = told(""), told(f", from step {HEALTHY} on"), told(", last quarter")
    assert whole[1] / whole[0] < 1.2
    assert since == expected("onset")
    assert since[1] / since[0] > 20
    assert quarter == expected("quarter")
    assert quarter[1] / quarter[0] > 20
    onsets = page.locator("[data-role=onsets]").inner_text()
    assert f"demo changed at step {HEALTHY} (level shift)" in onsets
    assert "reference changed" not in onsets


HOSTILE_STEP = f"#/runs/{quote(HOSTILE, safe='')}/steps/0"  # it has groups, of long labels


@pytest.mark.parametrize(
    "address",
    [
        "#/runs/demo",
        STEP,
        HOSTILE_STEP,
        "#/runs/reference/steps/35",
        "#/runbooks/temperature_not_restored",
        "#/health",
    ],
)
def test_no_table_is_cut_on_a_phone(
    address: str, browser: Browser, service: ServiceProcess
) -> None:
    """At 390 pixels, everything unfolded, every cell is in sight without sideways scrolling."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    visit = Visit(context.new_page(), service.url)
    page = visit.open(address)
    visit.see_all()
    page.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.wait_for_function("() => !document.querySelector('main .state[role=status]')")
    cut = page.locator(".scroll").evaluate_all(
        """boxes => boxes.filter(box => box.scrollWidth > box.clientWidth)
            .map(box => [box.getAttribute('aria-label'), box.scrollWidth])"""
    )

    assert cut == []
    context.close()


def test_the_link_to_the_worst_tokens_works_again_and_again(visit: Visit) -> None:
    """After the first time its address is the one that is shown; it scrolls all the same."""
    page = visit.open(STEP)
    link = page.locator(".situation").get_by_role("link", name="the worst tokens")
    there = """() => {
        const tokens = document.getElementById('tokens');
        return tokens && Math.abs(tokens.getBoundingClientRect().top) < 200;
    }"""
    for _ in range(2):
        page.evaluate("() => scrollTo(0, 0)")
        link.click()
        page.wait_for_function(there)

    assert page.url.endswith("?at=tokens")
    assert visit.complaints == []


def test_a_long_list_of_runs_says_what_it_shows_of_some_only(visit: Visit) -> None:
    """Beyond 60 runs, onset and curve are those of the first ones; few runs say nothing."""
    page = visit.page
    visit.open("#/")
    assert page.locator("[data-limit=runs]").count() == 0

    def many(route: Route) -> None:
        answer = route.fetch().json()
        first = answer["runs"][0]
        more = [{**first, "run": f"copy {i}", "active": False} for i in range(70)]
        route.fulfill(json={"runs": answer["runs"] + more, "next": None})

    page.route(re.compile(r"/v1/runs\?"), many)
    page.route(re.compile(r"/v1/runs/copy"), lambda route: route.fulfill(status=404, json={}))
    visit.open("#/")
    rows = page.locator("[aria-label=Runs] tbody tr").count()

    assert f"60 of these {rows} runs" in page.locator("[data-limit=runs]").inner_text()


def test_more_alerts_than_are_told_are_owned_up_to(visit: Visit) -> None:
    """The service tells the newest 1 000; 200 of those that are over are in the document."""
    page = visit.page
    spike = AlertView(1, "spike", "resolved", "k3", 9, 9, 0.002, 0.1, 50.0, "").as_json()
    page.route(re.compile(r"/demo/alerts\?"), lambda route: route.fulfill(json=[spike] * 1000))
    visit.open("#/runs/demo")
    assert "newest 1,000 alerts" in page.locator("[data-limit=alerts]").inner_text()
    page.locator("summary", has_text="1,000 spikes").click()
    assert page.locator("[aria-label='Alerts that are over'] tbody tr").count() == 200
    assert page.get_by_text("The newest 200 of these 1,000.").is_visible()

    visit.open("#/runs/reference")
    assert page.locator("[data-limit]").count() == 0


def test_code_in_descriptions_of_calls_is_code(visit: Visit) -> None:
    """No backtick is left, and what they enclosed stands in its own type."""
    page = visit.open("docs")
    page.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true; })")

    assert "`" not in page.locator("main").inner_text()
    assert page.locator(".call p code", has_text="X-TwinScope-Batch-Id").count() == 1


def test_a_run_without_a_reference_says_how_to_send_one(visit: Visit) -> None:
    """On the run and on its steps, where the numbers would stand; not where they do."""
    for address in ("#/runs/demo", STEP):
        visit.open(address)
        told = visit.page.locator("[data-absent]")
        told.wait_for()
        assert told.inner_text().startswith(
            "No reference log-probs are sent; pass ref_logprobs to train(...)"
        )
    for address in ("#/runs/reference", "#/runs/reference/steps/35"):
        visit.open(address)
        visit.page.locator("#s-policy-against-reference").wait_for()
        assert visit.page.locator("[data-absent]").count() == 0


def test_before_is_the_last_healthy_step_however_far_back(
    visit: Visit, service: ServiceProcess
) -> None:
    """Two steps before the onset were not judged: what was before it is read from the third."""
    page = visit.page

    def unsure(route: Route) -> None:
        answer = route.fetch().json()
        for i, step in enumerate(answer["step"]):
            if HEALTHY - 2 <= step < HEALTHY:
                answer["verdict"][i] = "unknown"
        route.fulfill(json=answer)

    page.route(re.compile(r"/demo/timeline\?"), unsure)
    before = HEALTHY - 3
    metrics = service.get(f"/v1/runs/demo/steps/{before}")["metrics"]
    for address, later in (("#/runs/demo", HEALTHY), (STEP, LAST)):
        visit.open(address)
        told = page.locator("[data-before=ess_ratio]:not(:empty)")
        told.wait_for()
        assert f"step {before}, before it began" in told.inner_text()
        assert told.locator("data").get_attribute("value") == str(metrics["ess_ratio"])
        box = page.locator(".situation")
        box.locator("[data-role=beside]").wait_for()
        assert f"step {before} beside step {later}" in box.inner_text()
        assert f"the last healthy step before it is {before}" in box.inner_text()


def test_the_page_calls_estimates_what_the_service_calls_them(visit: Visit) -> None:
    """A name that only the answer knows is shown, and nothing of the bare estimate is."""
    page = visit.page

    def rename(route: Route) -> None:
        step: dict[str, Any] = route.fetch().json()
        step["diagnosis"][0]["estimate_in_words"] = [{"title": "a new name", "value": 0.5}]
        route.fulfill(json=step)

    page.route(re.compile(rf"/demo/steps/{LAST}$"), rename)
    visit.open(STEP)

    assert page.locator(".cause .facts").first.locator("dt").all_inner_texts() == ["a new name"]
