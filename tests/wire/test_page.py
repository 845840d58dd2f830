"""docs/wire-format.md is the declaration, rendered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from twinscope import wire
from twinscope.wire.render import render

PAGE = Path(__file__).parents[2] / "docs" / "wire-format.md"


def test_the_format_page_is_current() -> None:
    """Renew it with `python -m twinscope.wire.render > docs/wire-format.md`."""
    assert PAGE.read_text(encoding="utf-8") == render()


def test_the_example_on_the_page_is_a_batch() -> None:
    """A newcomer's first post works as printed."""
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert json.loads(example)
    assert wire.decode_json(example).side == "paired"


def test_importing_the_wire_loads_no_numpy() -> None:
    """A probe encodes without numpy; only reading needs it."""
    code = "import twinscope.wire, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
