"""Writes the clock and area table of docs/fpga.md from what `syn.run` left in its folder.

python -m syn.table --from ../build/fpga --page ../docs/fpga.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from syn.run import ROOT
from twinscope_fpga.document import render

CELLS = ("TRELLIS_COMB", "TRELLIS_FF", "DP16KD", "MULT18X18D")


def read_layouts(folder: Path) -> list[dict[str, Any]]:
    """All layouts of the default device, by lanes, then seed."""
    found: list[dict[str, Any]] = []
    for path in folder.glob("l*-5g-8/layouts.json"):
        found += json.loads(path.read_text())["layouts"]
    return sorted(found, key=lambda entry: (entry["lanes"], entry["seed"], entry["target_mhz"]))


def per_lane(layouts: list[dict[str, Any]], entry: dict[str, Any], cell: str) -> str:
    """What each lane after the first adds; the first row has nothing to compare with."""
    one = next((other for other in layouts if other["lanes"] == 1), None)
    if one is None or entry["lanes"] == 1:
        return ""
    added = (entry["cells"][cell] - one["cells"][cell]) / (entry["lanes"] - 1)
    return f" (+{added:.0f})" if added >= 10 else f" (+{added:.1f})"


def render_layouts(layouts: list[dict[str, Any]]) -> str:
    """One row per layout; in brackets, cells per lane beyond the first."""
    lines = ["| lanes | seed | constraint | clock | COMB | FF | DP16KD | MULT18X18D |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for entry in layouts:
        cells = " | ".join(f"{entry['cells'][c]}{per_lane(layouts, entry, c)}" for c in CELLS)
        lines.append(
            f"| {entry['lanes']} | {entry['seed']} | {entry['target_mhz']:.0f} MHz "
            f"| {entry['fmax_mhz']} MHz | {cells} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="folder", type=Path, default=ROOT.parent / "build" / "fpga")
    parser.add_argument("--page", type=Path, default=ROOT.parent / "docs" / "fpga.md")
    chosen = parser.parse_args()
    layouts = read_layouts(chosen.folder)
    chosen.page.write_text(
        render(chosen.page.read_text(), {"layouts": lambda: render_layouts(layouts)})
    )


if __name__ == "__main__":
    main()
