"""docs/fpga.md follows the declarations."""

from __future__ import annotations

from pathlib import Path

from twinscope_fpga.document import PARTS, render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fpga.md"


def test_declared_parts_are_up_to_date() -> None:
    """Registers, header, record, token word, columns: as the renderer writes them."""
    text = PAGE.read_text()
    declared = {name: make for name, make in PARTS.items() if name != "errors"}
    assert render(text, declared) == text


def test_every_part_has_its_place() -> None:
    """No declaration is rendered into nothing."""
    text = PAGE.read_text()
    assert all(f"<!-- begin {name} -->" in text for name in PARTS)
