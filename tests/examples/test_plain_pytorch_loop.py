"""The plain PyTorch example, run as a user runs it, against a service of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from service_process import ROOT, running_service

SCRIPT = ROOT / "examples/plain_pytorch_loop.py"


def _run(url: str, *, run: str, arguments: list[str]) -> None:
    environment = {**os.environ, "TWINSCOPE_URL": url, "TWINSCOPE_RUN": run, "TWINSCOPE_RAISE": "1"}
    subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=environment, check=True, capture_output=True, timeout=240,
    )  # fmt: skip


def test_loop_without_sync_drifts_and_the_service_shows_since_when(tmp_path: Path) -> None:
    """In step 12 the engine stops getting weights: ok before, and each later step is worse."""
    with running_service(tmp_path) as service:
        _run(service.url, run="stale", arguments=["--steps", "24", "--no-sync-from", "12"])

        steps = [service.get(f"/v1/runs/stale/steps/{step}") for step in range(24)]

    assert {step["state"] for step in steps} == {"closed"}
    assert {step["coverage"]["counted"] for step in steps} == {64 * 32}
    assert {step["verdict"] for step in steps[:12]} == {"ok"}
    healthy = max(step["metrics"]["k3_mean"] for step in steps[:12])
    assert steps[-1]["metrics"]["k3_mean"] > 10 * healthy
    assert steps[-1]["scalars"]["reward"] > 0


def test_loop_runs_as_before_where_nothing_is_configured() -> None:
    """Without an address the probe is off: the loop neither waits nor fails."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TWINSCOPE_")}

    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--steps", "2"],
        env=environment, check=True, capture_output=True, text=True, timeout=240,
    )  # fmt: skip

    assert "enabled=False" in done.stdout
