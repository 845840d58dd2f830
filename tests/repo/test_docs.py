"""Docs that cannot rot: generated pages are fresh, links lead somewhere, Python snippets run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from twinscope.testing import SinkServer
from twinscope_service.docs import PAGES

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
READMES = ("README.md", "README.zh-CN.md")


def _pages() -> list[Path]:
    """Ours: not those of environments, caches and packages."""
    return [
        page
        for page in sorted(ROOT.rglob("*.md"))
        if not any(p.startswith(".") or p == "node_modules" for p in page.relative_to(ROOT).parts)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_generated_pages_are_fresh(page: str) -> None:
    """A metric, setting, endpoint or wire field that is not on its page fails here: make docs."""
    assert (ROOT / page).read_text(encoding="utf-8") == PAGES[page]()


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of every page names a file or folder that exists."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    relative = [target for target in targets if not target.startswith(("http://", "https://"))]

    assert [target for target in relative if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("readme", READMES)
def test_the_snippet_of_the_readme_runs_and_delivers(
    readme: str, server: SinkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ten lines, against a server that records: both sides of three steps arrive."""
    monkeypatch.setenv("TWINSCOPE_RAISE", "1")
    (snippet,) = PYTHON.findall((ROOT / readme).read_text(encoding="utf-8"))
    snippet = snippet.replace("http://127.0.0.1:8321", server.url)
    names = {
        "sample_from_engine": lambda: ([[5, 6, 7], [8, 9]], [[-0.1, -0.2, -0.3], [-1.0, -2.0]]),
        "recompute_old_logprobs": lambda responses: [[-0.1] * len(r) for r in responses],
    }
    exec(compile(snippet, readme, "exec"), names)
    probe = names["probe"]

    assert probe.flush(timeout=30)
    assert probe.stats().lost.batches == 0
    assert [batch.side for batch in server.batches()] == ["rollout", "train"] * 3


@pytest.fixture
def server() -> Iterator[SinkServer]:
    """A server on a free port that answers 202 and keeps what came."""
    with SinkServer() as recording:
        yield recording
