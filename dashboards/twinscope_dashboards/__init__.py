"""What people look at, as files: the page, its plotting library, and the runbooks it shows."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

__all__ = ["RUNBOOKS", "plotting_library", "runbooks", "web"]


def web() -> Traversable:
    """The folder of the page: `index.html` and what it loads, no sub-folders."""
    return files("twinscope_dashboards") / "web"


def plotting_library() -> Path | None:
    """plotly.min.js as the installed package `plotly` brings it; None: not installed."""
    found = find_spec("plotly")  # finds it without importing it
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return path if path.is_file() else None


RUNBOOKS = {"causes": "causes", "alerts": "runbooks"}  # kind -> folder below docs/


def runbooks(kind: str = "causes") -> Traversable:
    """Markdown pages, one per cause or per kind of alert: in the wheel, or docs/ of a checkout."""
    packed = files("twinscope_dashboards") / "runbooks" / kind
    return packed if packed.is_dir() else Path(__file__).parents[2] / "docs" / RUNBOOKS[kind]
