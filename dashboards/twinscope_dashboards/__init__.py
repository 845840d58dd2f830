"""What people look at, as files: `web` is the page that the service serves at `/`."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable


def web() -> Traversable:
    """The folder of the page."""
    return files("twinscope_dashboards") / "web"
