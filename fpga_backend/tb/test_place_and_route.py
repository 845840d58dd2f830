"""One lane through synthesis, placement and routing for the ECP5-85F, held to its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SEED = 1  # the tools are pinned and deterministic: a seed is a result
COPIES = ("engine.accumulate.clear_", "engine.core0.lane_kill_", "engine.reset_")


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the tools left."""
    place = tmp_path_factory.mktemp("fpga")
    command = [sys.executable, "-m", "syn.run", "--lanes", "1", "--seeds", str(SEED)]
    subprocess.run([*command, "--out", str(place)], cwd=ROOT, check=True)
    return place / "l1-5g-8"


def test_one_lane_keeps_clock_and_area(routed: Path) -> None:
    """nextpnr's own report; the figures include the shell that stands for the pins."""
    report = json.loads((routed / "layouts.json").read_text())
    (layout,) = report["layouts"]
    print(f"one lane: {layout['fmax_mhz']} MHz, {layout['cells']}")
    assert layout["fmax_mhz"] >= 200
    assert layout["cells"]["MULT18X18D"] == 7
    assert layout["cells"]["TRELLIS_FF"] <= 9000
    assert layout["cells"]["TRELLIS_COMB"] <= 7500
    assert layout["cells"]["DP16KD"] <= 14


@pytest.mark.parametrize("copies", COPIES)
def test_copies_of_a_register_are_not_merged(routed: Path, copies: str) -> None:
    """Merged into one, a clear of four lanes has 1500 flip-flops to reach all over the chip."""
    nets = json.loads((routed / "shell.json").read_text())["modules"]["shell"]["netnames"]
    bits = [net["bits"][0] for name, net in nets.items() if name.startswith(copies)]
    assert len(bits) >= 3
    assert len(set(bits)) == len(bits)
