"""The files of the page: complete, tagged, compressed, under a strict policy."""

from __future__ import annotations

import re
from typing import Any

from twinscope_dashboards import plotting_library, runbooks, web
from twinscope_service.diagnose.fixes import FIXES
from twinscope_service.expose.page import COMPILE_AT_ONCE


def test_every_file_that_the_page_loads_is_served(service: Any) -> None:
    """index.html and the modules name no file that does not exist, and no other host."""
    names = {"index.html"}
    for entry in web().iterdir():
        text = entry.read_text(encoding="utf-8")
        assert not re.search(r"""(src|href|import|from)\s*=?\s*["'](https?:)?//""", text)
        names |= set(re.findall(r"""(?:from|src=|href=)\s*["'](?:\./)?([\w.-]+\.\w+)["']""", text))

    assert {"main.js", "style.css", "icon.svg", "plots.js"} <= names
    for name in names:
        assert service.get(f"/{name}").status_code == 200, name


def test_scripts_come_from_the_service_only(service: Any) -> None:
    """Inline styles are allowed (the plotting library writes them), inline scripts are not."""
    policy = service.get("/").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    assert rules["default-src"] == "'self'"
    assert "script-src" not in rules
    assert rules["style-src"] == "'self' 'unsafe-inline'"
    assert rules["object-src"] == "'none'"


def test_a_reload_transfers_nothing(service: Any) -> None:
    """The tag of the first answer gives 304 on the second."""
    first = service.get("/plotly.min.js")
    second = service.get("/plotly.min.js", headers={"if-none-match": first.headers["etag"]})

    assert first.status_code == 200
    assert (second.status_code, second.content) == (304, b"")


def test_the_library_is_the_installed_one_and_travels_compressed(service: Any) -> None:
    """A third of its size on the wire; the package's bytes behind a comment for the compiler."""
    library = plotting_library()
    assert library is not None
    plain = service.get("/plotly.min.js", headers={"accept-encoding": "identity"})
    packed = service.get("/plotly.min.js", headers={"accept-encoding": "gzip"})

    assert COMPILE_AT_ONCE.startswith(b"//")
    assert COMPILE_AT_ONCE.count(b"\n") == 1
    assert plain.content == packed.content == COMPILE_AT_ONCE + library.read_bytes()
    assert int(packed.headers["content-length"]) < len(plain.content) / 2


def test_every_cause_has_a_runbook_that_the_page_can_show(service: Any) -> None:
    """One Markdown page per cause id."""
    there = {entry.name for entry in runbooks().iterdir()}
    for cause in FIXES:
        assert f"{cause}.md" in there
    answer = service.get("/runbooks/causes/temperature_not_restored.md")
    assert answer.headers["content-type"].startswith("text/markdown")
    assert answer.text.startswith("# temperature_not_restored")


def test_every_kind_of_alert_has_a_runbook_that_the_page_can_show(service: Any) -> None:
    """The kinds of DESIGN.md §4."""
    for kind in ("spike", "level_shift", "growth", "silence", "bypass"):
        assert service.get(f"/runbooks/alerts/{kind}.md").text.startswith("# ")


def test_the_description_of_the_api_asks_no_other_host(service: Any) -> None:
    """/docs is this page, not one that loads scripts from elsewhere."""
    assert service.get("/docs").content == service.get("/").content
    assert service.get("/openapi.json").json()["openapi"].startswith("3.")
