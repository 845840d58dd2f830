"""docs/hosts says what the code says."""

from __future__ import annotations

from pathlib import Path

from twinscope.hosts.known import ARRIVES, EVIDENCE, KNOWN, render_arrivals, render_table

PAGES = Path(__file__).resolve().parents[3] / "docs/hosts"


def test_the_table_of_hosts_is_the_rendered_one() -> None:
    """The page carries the table and the meaning of each way of checking."""
    text = (PAGES / "README.md").read_text(encoding="utf-8")

    assert render_table() in text
    assert all(f"`{word}`: {meaning}" in text for word, meaning in EVIDENCE.items())


def test_every_framework_has_a_page_or_a_section() -> None:
    """Each name of the table is found in one of the pages beside it."""
    others = "\n".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))

    assert all(known.name.split(",")[0] in others for known in KNOWN)


def test_what_arrives_is_said_of_every_trainer() -> None:
    """The second table is the rendered one, and every trainer of the first is in it."""
    text = (PAGES / "README.md").read_text(encoding="utf-8")
    named = " ".join(arrives.name for arrives in ARRIVES)

    assert render_arrivals() in text
    assert all(known.name in named for known in KNOWN if known.p)
