"""Renders the parts of docs/fpga.md that follow from declarations.

    python -m twinscope_fpga.document docs/fpga.md

A part lies between `<!-- begin NAME -->` and `<!-- end NAME -->`; everything else is written by
hand and left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from twinscope_fpga.engine_columns import FROM_DEVICE
from twinscope_fpga.error_analysis import render_tables
from twinscope_fpga.formats import COUNTS, HEADER_FIELDS, SUMS, TOKEN_FLAGS, record_fields
from twinscope_fpga.registers import render_registers


def render_header() -> str:
    """The header word, lowest bit first."""
    lines = ["| bits | field | meaning |", "|---|---|---|"]
    at = 0
    for name, bits, means in HEADER_FIELDS:
        span = f"{at}" if bits == 1 else f"{at + bits - 1}..{at}"
        lines.append(f"| {span} | `{name}` | {means} |")
        at += bits
    return "\n".join(lines) + "\n"


def render_record() -> str:
    """The 128 bytes of a record, and what its sums are."""
    lines = ["| bytes | field |", "|---|---|"]
    lines += [f"| {at}..{at + size - 1} | `{name}` |" for name, at, size in record_fields()]
    lines += ["", "| sum | segments × bits | unit | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{s.name}` | {s.segments} × {s.bits} | 2^-{s.fraction} | {s.means} |" for s in SUMS
    ]
    counts = ", ".join(f"`{name}`" for name in COUNTS)
    return "\n".join([*lines, "", f"Counts, 24 bits each: {counts}."]) + "\n"


def render_token() -> str:
    """The token word."""
    flags = ", ".join(f"{120 + i} `{name}`" for i, name in enumerate(TOKEN_FLAGS))
    return (
        "Bits 0..87 the value (k3, KL mode e^q) in units of 2^-58; 88..119 Δ as float32 before "
        f"the clamp; flags {flags}.\n"
    )


def render_columns() -> str:
    """What of a Summary comes from the device."""
    return "From the device: " + ", ".join(f"`{name}`" for name in FROM_DEVICE) + ".\n"


PARTS: dict[str, Callable[[], str]] = {
    "registers": render_registers,
    "header": render_header,
    "record": render_record,
    "token": render_token,
    "columns": render_columns,
    "errors": render_tables,
}


def render(text: str, parts: dict[str, Callable[[], str]] | None = None) -> str:
    """`text` with every known part written anew."""
    for name, make in (PARTS if parts is None else parts).items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        if begin in text and end in text:
            before, rest = text.split(begin, 1)
            text = before + begin + make() + end + rest.split(end, 1)[1]
    return text


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(render(page.read_text()))
