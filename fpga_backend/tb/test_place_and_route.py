"""One lane through synthesis, placement and routing for the ECP5-85F, held to its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SEED = 1  # the tools are pinned and deterministic: a seed is a result


def test_one_lane_keeps_clock_and_area(tmp_path: Path) -> None:
    """nextpnr's own report; the figures include the shell that stands for the pins."""
    command = [sys.executable, "-m", "syn.run", "--lanes", "1", "--seeds", str(SEED)]
    subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, check=True)
    report = json.loads((tmp_path / "l1-5g-8" / "layouts.json").read_text())
    (layout,) = report["layouts"]
    print(f"one lane: {layout['fmax_mhz']} MHz, {layout['cells']}")
    assert layout["fmax_mhz"] >= 200
    assert layout["cells"]["MULT18X18D"] == 7
    assert layout["cells"]["TRELLIS_FF"] <= 9000
    assert layout["cells"]["TRELLIS_COMB"] <= 7500
    assert layout["cells"]["DP16KD"] <= 14
