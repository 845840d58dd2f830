"""The view of a run under hands and eyes: curves, ranges, keys, silences, what the box advises."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from looking import HEALTHY, Visit
from service_process import ServiceProcess

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.browser

LAST = 39
HASH = "() => location.hash"


def drawn(visit: Visit, address: str = "#/runs/demo") -> Page:
    """A run whose curves are there, in the middle of the window."""
    page = visit.open(address)
    visit.see_all()
    return page


def at(page: Page, across: float, up: float) -> tuple[float, float]:
    """A place in the plot: shares of its width and of the height of its lowest panel's box."""
    box = page.locator(".plot .nsewdrag").first.bounding_box()
    assert box is not None
    return box["x"] + across * box["width"], box["y"] + (1 - up) * box["height"]


def shown_range(page: Page) -> list[float]:
    """The steps at the ends of the axis."""
    found: list[float] = page.evaluate("() => document.querySelector('.plot').layout.xaxis.range")
    return found


def test_the_plot_is_as_high_as_its_card_however_fast_curves_come_and_go(visit: Visit) -> None:
    """Every curve ticked, then unticked at once: box, picture and panels agree both times."""
    page = drawn(visit)
    tall = """n => {
        const box = document.querySelector('.plot');
        const svg = box.querySelector('.main-svg').getBoundingClientRect().height;
        const panels = new Set(box.data.map(t => t.yaxis).filter(a => /^y([3-9]|1.)$/.test(a)));
        return box.offsetHeight === 320 + 92 * n && svg === box.offsetHeight && panels.size === n;
    }"""
    page.locator("summary", has_text="More curves").click()
    boxes = page.locator(".toggles input")
    toggle = """checked => document.querySelectorAll('.toggles input').forEach(
        box => box.checked !== checked && box.click())"""

    page.evaluate(toggle, True)
    page.wait_for_function(tall, arg=boxes.count())
    page.evaluate(toggle, False)
    page.wait_for_function(tall, arg=0)
    page.evaluate(toggle, True)
    page.evaluate(toggle, False)
    page.wait_for_function(tall, arg=0)
    assert visit.complaints == []


def test_a_double_click_shows_all_steps_again(visit: Visit) -> None:
    """The axis, the boxes and the address; and no step is opened by its first half."""
    page = drawn(visit, "#/runs/demo?from=10&to=20")
    assert shown_range(page) == [9.5, 20.5]
    page.mouse.dblclick(*at(page, 0.5, 0.3))
    page.wait_for_function("() => location.hash === '#/runs/demo'")
    page.wait_for_timeout(500)  # longer than a single press waits for a second one

    assert page.evaluate(HASH) == "#/runs/demo"
    assert shown_range(page) == [-0.5, LAST + 0.5]
    assert page.get_by_label("to step").input_value() == str(LAST)


@pytest.mark.parametrize("up", [0.1, 0.95])
def test_a_click_anywhere_above_a_step_opens_it(up: float, visit: Visit) -> None:
    """Near the axis and near the top of the panel, far from the point itself."""
    page = drawn(visit)
    page.mouse.click(*at(page, (12 + 0.5) / (LAST + 1), up))

    page.wait_for_function("() => location.hash === '#/runs/demo/steps/12'")


def test_a_range_that_ends_before_it_begins_is_told(visit: Visit) -> None:
    """Neither ignored in silence nor turned round while the other box is still to be typed in."""
    page = drawn(visit)
    page.get_by_label("to step").fill("3")
    page.get_by_label("from step").fill("38")
    page.get_by_label("from step").press("Tab")
    told = page.locator(".range-controls [role=status]")

    assert told.inner_text() == "step 38 is after step 3"
    assert page.get_by_label("from step").input_value() == "38"
    page.get_by_label("to step").fill("39")
    page.get_by_label("to step").press("Tab")
    page.wait_for_function("() => location.hash === '#/runs/demo?from=38&to=39'")
    assert told.inner_text() == ""


@pytest.mark.parametrize("focus", [".toggles input", "summary >> nth=0", ".range-controls button"])
def test_keys_work_wherever_the_focus_is_but_in_text(focus: str, visit: Visit) -> None:
    """Also after a zoom changed the address of the view without leaving it."""
    page = drawn(visit)
    page.get_by_label("to step").fill("20")
    page.get_by_label("to step").press("r")
    page.get_by_label("to step").press("Tab")
    page.wait_for_function("() => location.hash.includes('from=0&to=20')")
    page.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.locator(focus).first.focus()
    page.keyboard.press("r")

    page.wait_for_function("() => location.hash === '#/'")


def test_a_silence_stands_at_the_head_of_its_run_and_in_the_list(
    visit: Visit, service: ServiceProcess
) -> None:
    """For as long as it is open, with what is silent where it is not everything."""
    page = visit.open("#/runs/demo")
    page.get_by_text("Tell nobody for a while").click()
    page.get_by_label("which alerts").select_option(label="only: level shift")
    page.get_by_role("button", name="Silence").click()
    head = page.locator("h1 .silenced:not(:empty)")
    head.wait_for()
    said = head.inner_text()
    assert re.fullmatch(r"silenced \(level shift\) until .*\d:\d\d.*", said)

    visit.open("#/")
    row = page.locator("[aria-label=Runs] tbody tr")
    assert said in row.filter(has_text="demo").inner_text()
    assert "silenced" not in row.filter(has_text="reference").inner_text()

    visit.open("#/runs/demo")
    page.locator("summary", has_text="Nobody is told").click()
    page.get_by_role("button", name="end it").click()
    page.wait_for_selector(".silence", state="detached")
    assert service.get("/v1/silences?run=demo") == []
    assert page.locator("h1 .silenced").inner_text() == ""


def test_the_two_ratios_of_a_shift_have_names(visit: Visit, service: ServiceProcess) -> None:
    """The last step over the level before, and the median after over the median before."""
    page = drawn(visit)
    (lead,) = [
        alert
        for alert in service.get("/v1/runs/demo/alerts")
        if alert["series"] == "k3" and alert["kind"] == "level_shift"
    ]
    level = service.get(f"/v1/runs/demo/steps/{LAST}")["metrics"]["k3_mean"]
    text = page.locator(".situation").inner_text()

    assert f"the last step: {level / lead['before']:.3g} times this run's own level" in text
    assert f"(×{lead['ratio']:.3g} in the median)" in text
    assert f"×{lead['ratio']:.3g} in the median" in page.locator(".plot").inner_text()


def test_the_harm_is_told_before_and_after(visit: Visit, service: ServiceProcess) -> None:
    """The last healthy step before the onset beside the last one, on the run and on a step."""
    before = service.get(f"/v1/runs/demo/steps/{HEALTHY - 1}")["metrics"]
    for address in ("#/runs/demo", f"#/runs/demo/steps/{LAST}"):
        page = visit.open(address)
        for name in ("clip_fraction", "ess_ratio"):
            told = page.locator(f"[data-before={name}]:not(:empty)")
            told.wait_for()
            assert f"step {HEALTHY - 1}, before it began" in told.inner_text()
            assert told.locator("data").get_attribute("value") == str(before[name])
        assert re.search(r"\d:\d\d", page.locator("[data-role=when]").inner_text())


def box(visit: Visit, **more: Any) -> str:
    """The text of the box for a step whose level shifted at step 5."""
    usual = {"step": 9, "verdict": "inconsistent", "samples": 48, "joined": 48, "reasons": []}
    cause = {"cause": "stale_weights", "family": "weights", "confidence": 0.9, "share": 0.5,
             "evidence": "24 of 48 samples were made by weights 3 versions old", "fix": "Check it.",
             "estimate": {"version_lag": 3.0}, "group": [],
             "runbook": "causes/stale_weights.md"}  # fmt: skip
    cause |= more.pop("cause", {})
    text: str = visit.open("#/health").evaluate(
        """async (step) => {
            const { situation } = await import("/causes.js");
            const alert = { series: "k3", state: "firing", kind: "level_shift", step: 9,
                            onset_step: 5, before: 0.002, ratio: 3 };
            const box = situation({ step, alerts: [alert], href: () => "#/", place: { run: "r" } });
            document.getElementById("view").replaceChildren(box);
            return box.innerText;
        }""",
        {**usual, "diagnosis": [cause], "metrics": {"k3_mean": 0.008, **more.pop("metrics", {})}}
        | more,
    )
    return text


@pytest.mark.parametrize(
    ("step", "back"),
    [
        ({"metrics": {"ess_ratio": 0.89, "clip_fraction": 0.01}}, True),
        ({"metrics": {"ess_ratio": 0.99, "clip_fraction": 0.11}}, True),
        ({"metrics": {"ess_ratio": 0.99, "clip_fraction": 0.09}}, False),
        ({"reasons": ["rollout_train_kl 0.02 is above 0.01 (an absolute level)"]}, True),
        ({"reasons": ["rollout_train_kl 0.003 is above 0.002, no more than worth a look"]}, False),
    ],
    ids=["batch worth little", "much is clipped", "little harm", "above its bound", "a look"],
)
def test_nobody_is_sent_back_to_a_checkpoint_for_little(
    step: dict[str, Any], back: bool, visit: Visit
) -> None:
    """The dearest advice needs damage: 90 % of the batch, 10 % clipped, or the level's bound."""
    text = box(visit, cause={"cause": "quantized_rollout", "estimate": {}}, **step)

    assert ("go back to a checkpoint from before step 5" in text) is back
    assert ("no step back is worth its price" in text) is not back


@pytest.mark.parametrize("known", [True, False])
def test_staleness_of_known_versions_may_be_meant(known: bool, visit: Visit) -> None:
    """Then the groups of the step say more than a checkpoint; else the damage decides."""
    harm = {"ess_ratio": 0.5, "clip_fraction": 0.3}
    text = box(visit, metrics=harm, cause={} if known else {"estimate": {"growth_per_step": 1.1}})

    assert ("this is staleness, not a fault: judge by k3 at lag 0" in text) is known
    assert ("go back to a checkpoint" in text) is not known
    link = visit.page.locator(".situation").get_by_role("link", name="By group")
    assert link.count() == int(known)
    if known:
        assert link.get_attribute("href") == "#/runs/r/steps/9?at=groups"
    assert "24 of 48 samples were made" in text


def test_a_rise_stands_beside_a_verdict_that_is_ok(visit: Visit) -> None:
    """In the list and at the head of the run, where green alone would end the reading."""
    page = visit.page

    def calm(route: Route) -> None:
        answer = route.fetch().json()
        for run in answer.get("runs", [answer]):
            if run["run"] == "demo":
                run["last"]["verdict"] = "ok"
        route.fulfill(json=answer)

    page.route(re.compile(r"/v1/runs(/demo)?(\?.*)?$"), calm)
    visit.open("#/")
    rows = page.locator("[aria-label=Runs] tbody tr")
    assert "ok ▲ level shift" in " ".join(rows.filter(has_text="demo").inner_text().split())
    assert "▲" not in rows.filter(has_text="reference").inner_text()

    visit.open("#/runs/demo")
    assert page.locator("h1").inner_text().split() == ["demo", "●", "ok", "▲", "level", "shift"]


def test_what_grew_more_stands_first_among_equals(visit: Visit) -> None:
    """`long` and `demo` are inconsistent; the ratios of their last steps decide, not the time."""
    page = visit.open("#/")
    rows = page.locator("[aria-label=Runs] tbody tr", has_text="inconsistent")
    ratios = [
        float(found[1])
        for row in rows.all()
        if (found := re.search(r"last step ×([\d.]+)", row.inner_text()))
    ]

    assert len(ratios) == 2
    assert ratios == sorted(ratios, reverse=True)
    assert "120" not in page.locator("[aria-label=Runs] thead").inner_text()


def test_a_step_that_nobody_sent_is_told_in_words(visit: Visit) -> None:
    """Its number, what there is instead, the way back; and nothing is said to have failed."""
    page = visit.page
    page.clock.install()
    visit.open("#/runs/demo/steps/999")
    main = page.locator("main")
    assert "There is no step 999" in main.inner_text()
    assert f"40 closed steps, the last is step {LAST}" in main.inner_text()
    assert "/v1/" not in main.inner_text()
    page.clock.run_for(12_000)  # two looks for something new
    page.wait_for_load_state("networkidle")

    assert "No fresh data" not in page.locator("#fresh").inner_text()
    main.get_by_role("link", name="Back to demo").click()
    page.wait_for_function("() => location.hash === '#/runs/demo'")
