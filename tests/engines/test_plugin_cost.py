"""`twinscope bench probe --model`: the command runs on a real engine and weighs what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from service_process import ROOT

from twinscope.testing import SinkServer


def test_cost_of_the_plugin_is_measured_both_ways(tiny_llama: Path) -> None:
    """Every line of the tables is there and positive; how large it is, is the machine's affair.

    The books of both probes: everything arrives at the service that lives, nothing is lost without
    one, and no round waits for it.
    """
    with SinkServer() as sink:
        command = [sys.executable, "-m", "twinscope_service", "bench", "probe"]
        command += ["--model", str(tiny_llama), "--pairs", "2", "--samples", "8"]
        command += ["--max-tokens", "32", "--service", sink.url]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
        )
        arrived = sum(batch.tokens for batch in sink.batches())

    assert done.returncode in (0, 1), done.stderr[-3000:]
    found = dict(re.findall(r"^([a-zA-Z ,'/]+?)\s{2,}(\d[\d.]*)", done.stdout, re.MULTILINE))
    ratios = {
        f"{pair}, {of}"
        for pair in ("with / without", "service gone / without", "service gone / with")
        for of in ("wall time", "CPU, front end", "CPU, engine", "CPU, both")
    }
    assert set(found) >= ratios | {
        "engine, a request's share of it", "engine, a request's time in it",
        "hooks, on the engine's thread", "CPU of the plugin's threads",
    }  # fmt: skip
    assert all(float(value) > 0 for value in found.values())
    assert "of a request's engine time" in done.stdout
    assert re.search(r"^with - without, CPU of the front end per request -?\d", done.stdout, re.M)
    assert f"with: {arrived} tokens captured: {arrived} shipped, 0 waiting, lost: none" in (
        done.stdout
    )
    gone = re.search(
        r"^service gone: (\d+) tokens captured: 0 shipped, (\d+) waiting, lost: none$",
        done.stdout,
        re.MULTILINE,
    )
    assert gone is not None, done.stdout
    assert 0 < int(gone[1]) == int(gone[2])
