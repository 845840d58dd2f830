"""`twinscope bench probe --model`: the command runs on a real engine and weighs what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from service_process import ROOT


def test_cost_of_the_plugin_is_measured_both_ways(tiny_llama: Path) -> None:
    """Every line of the table is there and positive; how large it is, is the machine's affair."""
    command = [sys.executable, "-m", "twinscope_service", "bench", "probe"]
    command += ["--model", str(tiny_llama), "--pairs", "2", "--samples", "16"]

    done = subprocess.run(
        [*command, "--max-tokens", "32"], cwd=ROOT, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip

    assert done.returncode in (0, 1), done.stderr[-3000:]
    found = dict(re.findall(r"^([a-zA-Z ,'/]+?)\s{2,}(\d[\d.]*)", done.stdout, re.MULTILINE))
    assert set(found) >= {
        "engine, a request's share of it", "engine, a request's time in it",
        "hooks, on the engine's thread", "CPU of the plugin's threads", "wall time, ratio",
    }  # fmt: skip
    assert all(float(value) > 0 for value in found.values())
    assert "of a request's engine time" in done.stdout
