"""What people see is what the API says; in a real browser, from a cold start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from looking import HEALTHY, HOSTILE, LABEL, LONG, NOTE, ONSET, Visit, watch
from service_process import ServiceProcess, running_service

from twinscope_dashboards import web

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.browser

LAST = 39
VIEWS = {
    "runs": "#/",
    "run": "#/runs/demo",
    "long run": "#/runs/long",
    "run with reference": "#/runs/reference",
    "step": f"#/runs/demo/steps/{LAST}",
    "two steps": f"#/compare/demo/{HEALTHY - 1}/demo/{LAST}",
    "two runs": "#/compare/demo/long",
    "health": "#/health",
    "runbook": "#/runbooks/temperature_not_restored",
    "runbook of an alert": "#/runbooks/alerts/level_shift",
    "API": "docs",
    "hostile run": f"#/runs/{quote(HOSTILE, safe='')}",
    "hostile step": f"#/runs/{quote(HOSTILE, safe='')}/steps/0",
}


def shown(visit: Visit, selector: str) -> float:
    """The exact value behind a number in the document."""
    value = visit.page.locator(f"{selector} data").first.get_attribute("value")
    assert value is not None
    return float(value)


@pytest.mark.parametrize("address", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_opens_without_complaint_and_without_the_internet(
    address: str, visit: Visit
) -> None:
    """No error in the console, no request to another machine, every plot drawn."""
    visit.open(address)
    visit.see_all()

    assert visit.page.locator(".state.error").count() == 0
    assert visit.complaints == []
    assert visit.strangers == []


@pytest.mark.parametrize("address", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_view_has_no_serious_accessibility_finding(
    address: str, scheme: str, browser: Browser, service: ServiceProcess
) -> None:
    """axe-core finds nothing serious or critical, colours of both themes included."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    visit = Visit(context.new_page(), service.url)
    visit.open(address)
    visit.see_all()
    visit.page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
    visit.page.wait_for_function("() => !document.querySelector('main .state[role=status]')")

    found = axe.Axe().run(visit.page).response["violations"]

    grave = [finding for finding in found if finding["impact"] in ("serious", "critical")]
    assert [(finding["id"], finding["nodes"][0]["html"]) for finding in grave] == []
    context.close()


def test_the_overview_shows_the_last_level_of_each_run(
    visit: Visit, service: ServiceProcess
) -> None:
    """Number, verdict and cause of every run are those of GET /v1/runs."""
    visit.open("#/")
    for run in service.get("/v1/runs")["runs"]:
        row = visit.page.locator("tbody tr", has=visit.page.get_by_role("link", name=run["run"]))
        level = row.first.locator("data").first.get_attribute("value")
        assert float(level or "nan") == run["last"]["metrics"]["k3_mean"]
        assert run["last"]["verdict"] in row.first.inner_text()


def test_one_look_at_a_run_tells_onset_cause_and_fix(visit: Visit, service: ServiceProcess) -> None:
    """The box at the top has what the alert and the diagnosis say."""
    visit.open("#/runs/demo")
    box = visit.page.locator(".situation")
    step = service.get(f"/v1/runs/demo/steps/{LAST}")

    assert box.locator("[data-role=onset]").inner_text() == f"step {HEALTHY}"
    assert box.locator("[data-role=cause]").inner_text() == "temperature not restored"
    assert step["diagnosis"][0]["fix"] in box.inner_text()
    meaning = box.locator("[data-role=meaning]:not(:empty)")
    meaning.wait_for()
    assert meaning.inner_text().startswith(
        "In general: One side divides the logits by the sampling temperature"
    )
    assert f"a checkpoint from before step {HEALTHY}" in box.inner_text()
    assert "In all samples alike" in box.inner_text()
    assert ".." not in box.inner_text()
    assert shown(visit, ".situation") == step["metrics"]["k3_mean"]


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"verdict": "unknown", "metrics": {}, "reasons": ["the train side never came"]},
         "Not known: it could not be judged."),
        ({"verdict": "unknown", "metrics": {"k3_mean": 0, "abs_max": 0, "clip_fraction": 0}},
         "Nothing was compared: both sides are the same numbers."),
        ({"verdict": "ok", "metrics": {"k3_mean": 0.008}},
         "It changed; the level alone would not alarm."),
        ({"verdict": "inconsistent", "metrics": {"k3_mean": 0.008},
          "reasons": ["within the level bands, yet stale_weights: 24 samples were made by"]},
         "The level alone would not alarm; the cause does."),
    ],
    ids=["a side is missing", "bypass", "within the bands", "by its cause"],
)  # fmt: skip
def test_the_box_does_not_contradict_itself(step: dict[str, Any], told: str, visit: Visit) -> None:
    """Steps without a level, with equal sides, with an alarm below the bands; one stop each."""
    page = visit.open("#/health")
    text = page.evaluate(
        """async (step) => {
            const { situation } = await import("/causes.js");
            const alert = { series: "k3", state: "firing", kind: "level_shift", step: 9,
                            onset_step: 5, before: 0.002 };
            const about = { step: { step: 9, ...step }, alerts: [alert], href: () => "#/" };
            const box = situation(about);
            document.getElementById("view").replaceChildren(box);
            return box.innerText;
        }""",
        step,
    )

    assert told in text
    assert "No sign of trouble" not in text
    assert not re.search(r"\.\s*\.|\.\s*,", text)


def test_noise_of_a_healthy_run_does_not_fill_the_plot(visit: Visit) -> None:
    """The axis spans a decade at least, and says which."""
    visit.open("#/runs/reference")
    visit.see_all()
    low, high = visit.page.evaluate("() => document.querySelector('.plot').layout.yaxis.range")

    assert high - low >= 1 - 1e-9
    assert visit.page.locator(".plot .ytick").count() >= 2


def test_a_step_shows_the_numbers_of_the_api(visit: Visit, service: ServiceProcess) -> None:
    """Tiles, coverage and the estimate of the cause."""
    visit.open(f"#/runs/demo/steps/{LAST}")
    step = service.get(f"/v1/runs/demo/steps/{LAST}")

    for name in ("k3_mean", "abs_mean", "abs_p99", "rho_mean", "ess_ratio", "clip_fraction"):
        assert shown(visit, f"[data-metric={name}]") == step["metrics"][name]
    for name, count in step["coverage"].items():
        assert shown(visit, f"[data-coverage={name}]") == count
    assert str(step["diagnosis"][0]["estimate"]["temperature"]) in {
        node.get_attribute("value") for node in visit.page.locator(".facts data").all()
    }


def test_the_heat_map_shows_the_tokens_of_the_evidence(
    visit: Visit, service: ServiceProcess
) -> None:
    """Moving with the arrow keys tells q, p and Δ of the next token."""
    visit.open(f"#/runs/demo/steps/{LAST}")
    sample = service.get(f"/v1/runs/demo/steps/{LAST}/evidence")["samples"][0]
    tokens = visit.page.locator(".tokens")
    tokens.focus()
    for _ in range(3):
        tokens.press("ArrowRight")

    assert tokens.locator("[data-i='2']").inner_text() == str(sample["token_ids"][2])
    said = visit.page.locator(".token-said").inner_text()
    assert said.startswith("token 2 ")
    assert f"q {sample['rollout_logprobs'][2]:.4g}".rstrip("0") in said


def test_a_run_with_a_reference_gets_advice(visit: Visit, service: ServiceProcess) -> None:
    """The advice of the API on the run; the same ruler by length on its steps."""
    visit.open("#/runs/reference")
    advice = service.get("/v1/runs/reference/timeline")["kl_advice"]
    assert advice["kind"] == "ratio_rising"  # the KL grows with the square of the step
    assert advice["text"] in visit.page.locator("[data-advice=ratio_rising]").inner_text()

    visit.open("#/runs/reference/steps/35")
    table = visit.page.locator("[aria-label='By length of the sample'] tbody tr")
    statistics = service.get("/v1/runs/reference/steps/35/profiles")["statistics"]
    assert table.count() == len(statistics["policy_ref_by_length"]) > 0


def test_five_thousand_steps_are_thinned_and_zoom_to_the_exact_ones(visit: Visit) -> None:
    """The plot holds a bounded number of points; a stretch in the address shows all of its own."""
    visit.open("#/runs/long")
    visit.see_all()
    count = "() => Math.max(...document.querySelector('.plot').data.map(t => t.x?.length ?? 0))"
    assert 500 < visit.page.evaluate(count) < LONG / 2

    visit.open(f"#/runs/long?from={ONSET - 20}&to={ONSET + 20}")
    visit.see_all()
    line = visit.page.evaluate(
        "() => document.querySelector('.plot').data.find(t => t.name === 'rollout_train_kl').x"
    )
    assert set(range(ONSET - 20, ONSET + 21)) <= set(line)


def test_the_plotting_library_does_not_wait_for_the_data(visit: Visit) -> None:
    """It is the larger half of a cold start: the timeline is held back until it was asked for."""
    page = visit.page

    def hold(route: Route) -> None:
        if not asked:
            held.append(route)
        else:
            route.continue_()

    def ask(route: Route) -> None:
        asked.append(route.request.url)
        route.continue_()
        while held:
            held.pop().continue_()

    held: list[Route] = []
    asked: list[str] = []
    page.route(re.compile(r"/timeline\?"), hold)
    page.route("**/plotly.min.js", ask)
    visit.open("#/runs/long")
    visit.see_all()

    assert len(asked) == 1


def test_every_module_of_the_page_is_announced_at_once() -> None:
    """What main.js leads to is in index.html, so that no module waits for another to be read."""
    folder = web()
    announced = set(
        re.findall(r'"modulepreload" href="(\w+\.js)"', (folder / "index.html").read_text())
    )
    reached, ahead = set(), ["main.js"]
    while ahead:
        found = re.findall(r'from "\./(\w+\.js)"', (folder / ahead.pop()).read_text())
        ahead += [name for name in found if name not in reached]
        reached |= set(found)

    assert announced == reached


def test_a_sample_of_32000_tokens_is_windowed(visit: Visit) -> None:
    """Only what is near the window is in the document; the end is one key away."""
    page = visit.open("#/health")
    page.evaluate(
        """async () => {
            const { tokenMap } = await import("/tokens.js");
            const q = Array.from({ length: 32000 }, (_, i) => -1 - (i % 7) / 8);
            const sample = { sample_id: "long", chosen: "worst", first_token: 0, tokens: 32000,
                             rollout_logprobs: q, train_logprobs: q.map((x) => x - 0.1),
                             token_ids: q.map((_, i) => i) };
            document.getElementById("view").replaceChildren(await tokenMap({ samples: [sample] }));
        }"""
    )
    page.wait_for_selector(".tokens [data-i='0']")
    assert page.locator(".tokens [data-i]").count() < 4000
    page.locator(".tokens").focus()
    page.locator(".tokens").press("End")
    page.wait_for_selector(".tokens [data-i='31999'].current")

    assert page.locator(".tokens [data-i]").count() < 4000
    assert page.locator(".token-said").inner_text().startswith("token 31999 ")
    assert visit.complaints == []


def test_keys_walk_through_steps(visit: Visit) -> None:
    """k goes back, j forward, u up."""
    visit.open("#/runs/demo/steps/20")
    for key, address in (("k", "steps/19"), ("j", "steps/20"), ("u", "#/runs/demo")):
        visit.page.keyboard.press(key)
        visit.page.wait_for_url(f"**{address}")
        visit.page.wait_for_selector("main:not([aria-busy]) h1")


def test_keys_pressed_faster_than_views_load_are_all_answered(visit: Visit) -> None:
    """Three steps back and one forward, without waiting for a view."""
    visit.open("#/runs/demo/steps/20")
    for key in ("k", "k", "k", "j"):
        visit.page.keyboard.press(key)

    visit.page.wait_for_url("**steps/18")
    visit.page.locator("main:not([aria-busy]) h1", has_text="Step 18").wait_for()
    assert "18" in visit.page.locator("h1").inner_text()


def test_markup_of_strangers_is_shown_as_text(visit: Visit) -> None:
    """Run names, sample ids, group labels and notes are read, never run."""
    visit.open("#/")
    assert HOSTILE in visit.page.locator("main").inner_text()
    visit.open(VIEWS["hostile run"])
    visit.see_all()
    assert NOTE in visit.page.locator("main").inner_text()
    visit.open(VIEWS["hostile step"])
    visit.see_all()
    text = visit.page.locator("main").inner_text()
    assert LABEL in text
    assert "<b onclick=x>" in text
    assert visit.page.evaluate("() => window.hit") is None
    assert visit.page.locator("main img, main script, main [onload], main [onclick]").count() == 0


def test_markup_in_sampled_text_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    """A policy may write anything: with a tokenizer its words are on the page, read, never run."""
    pytest.importorskip("tokenizers")
    from hostile_words import RUN, service_of_hostile_words, word

    context = browser.new_context()
    with service_of_hostile_words(tmp_path) as service:
        visit = Visit(context.new_page(), service.url)
        watch(visit)
        visit.open(f"#/runs/{RUN}/steps/0?at=tokens")
        visit.see_all()
        for strip in visit.page.locator(".strips:not([hidden]) button").all()[:3]:
            strip.click()
        visit.page.locator(".detail .heat").first.hover()
        visit.page.evaluate(
            "() => document.querySelectorAll('details').forEach(d => d.open = true)"
        )
        token = service.get(f"/v1/runs/{RUN}/steps/0/evidence")["worst_tokens"][0]["token_id"]

        assert word(token) in visit.page.locator("main").inner_text()
        assert visit.page.locator(".detail").inner_text().count("onerror=") > 20
        assert visit.page.evaluate("() => window.hit") is None
        assert visit.page.locator("main img, main script, main [onerror]").count() == 0
        assert visit.complaints == []
    context.close()


@pytest.mark.parametrize("address", ["#/", "#/runs/demo", f"#/runs/demo/steps/{LAST}"])
def test_a_phone_needs_no_sideways_scrolling(
    address: str, browser: Browser, service: ServiceProcess
) -> None:
    """At 390 pixels the document is not wider than the window."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    visit = Visit(context.new_page(), service.url)
    visit.open(address)
    visit.see_all()

    assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= 390
    context.close()


def test_what_does_not_exist_says_so_and_offers_a_way_out(visit: Visit) -> None:
    """A run that nobody sent: the service's own words, and a way back."""
    page = visit.page
    page.goto(f"{visit.url}/#/runs/nobody")
    page.wait_for_selector(".state.error")

    assert "nobody" in page.locator(".state.error").inner_text()
    assert page.get_by_role("link", name="All runs").count() == 1


def test_an_empty_service_says_how_to_begin(browser: Browser, tmp_path: Path) -> None:
    """Before the first run: the lines to paste."""
    context = browser.new_context()
    with running_service(tmp_path) as empty:
        visit = Visit(context.new_page(), empty.url)
        watch(visit)
        visit.open("#/")
        assert "No run yet" in visit.page.locator("main").inner_text()
        assert empty.url in visit.page.locator("pre").inner_text()
        assert visit.complaints == []
    context.close()
