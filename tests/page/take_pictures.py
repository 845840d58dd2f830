"""`make pictures`: the pictures of docs/pictures, taken from the page as it is now."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from kl_picture import draw
from looking import Visit, fill
from playwright.sync_api import Browser, sync_playwright
from service_process import running_service

PHONE = (390, 844)
# name -> view, window, colour scheme, what to scroll to
PICTURES: dict[str, tuple[str, tuple[int, int], str, str]] = {
    "runs": ("#/", (1280, 420), "light", ""),
    "run": ("#/runs/demo", (1280, 1330), "light", ""),
    "run-dark": ("#/runs/demo", (1280, 1330), "dark", ""),
    "phone": ("#/runs/demo", PHONE, "light", ""),
    "long-run": ("#/runs/long", (1280, 1230), "light", ""),
    "step": ("#/runs/demo/steps/39", (1280, 1000), "light", ""),
    "shapes": ("#/runs/demo/steps/39", (1280, 1060), "light", "main > section:has(.plotbox)"),
    "tokens": ("#/runs/demo/steps/39", (1280, 820), "light", "#s-token-heat-map"),
    "reference": ("#/runs/reference", (1280, 620), "light", "#s-policy-against-reference"),
    "compare": ("#/compare/demo/29/demo/39", (1280, 1000), "light", ""),
}  # fmt: skip


def take(browser: Browser, url: str, name: str, *, into: Path) -> None:
    """One picture, of the window only."""
    address, (width, height), scheme, place = PICTURES[name]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    visit = Visit(context.new_page(), url)
    page = visit.open(address)
    visit.see_all()
    page.evaluate("scrollTo(0, 0)")
    if place:
        page.locator(place).evaluate("node => node.scrollIntoView()")
    page.mouse.move(2, 2)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 100)))")
    page.screenshot(path=into / f"{name}.png")
    context.close()


def main(into: Path) -> None:
    """Every picture of PICTURES."""
    into.mkdir(parents=True, exist_ok=True)
    (into / "kl-controller.svg").write_text(draw(), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "data", hostile_too=False)
        with running_service(Path(folder)) as service, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            for name in PICTURES:
                take(browser, service.url, name, into=into)
                print(into / f"{name}.png")
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
