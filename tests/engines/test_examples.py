"""The engine examples, run as a user runs them, on the tiny model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_process import ROOT, ServiceProcess, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One service for the module: every example has a run of its own."""
    with running_service(tmp_path_factory.mktemp("service")) as process:
        yield process


def _run(script: str, service: ServiceProcess, *arguments: str) -> str:
    """What the example prints; a failure shows the end of its log."""
    command = [sys.executable, str(ROOT / "examples" / script), "--url", service.url, *arguments]
    done = subprocess.run(
        command, env={**os.environ, "TWINSCOPE_RAISE": "1"},
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_offline_example_prints_the_verdict_of_each_step(
    tiny_llama: Path, service: ServiceProcess
) -> None:
    """One-sided temperature: every line says inconsistent, as the service does."""
    printed = _run(
        "vllm_offline.py", service, "--model", str(tiny_llama), "--run", "offline",
        "--steps", "2", "--temperature", "0.7", "--trainer-temperature", "1.0",
    )  # fmt: skip

    lines = [line for line in printed.splitlines() if line.startswith("step ")]
    assert len(lines) == 2
    assert all(": inconsistent, rollout_train_kl" in line for line in lines)


def test_grpo_run_syncs_real_weights_until_it_is_told_not_to(
    tiny_llama: Path, service: ServiceProcess
) -> None:
    """While weights reach the engine the policies agree, however far both move; then no more."""
    _run(
        "grpo_cpu.py", service, "--model", str(tiny_llama), "--run", "grpo",
        "--steps", "6", "--no-sync-from", "4", "--lr", "5e-4", "--max-tokens", "24",
    )  # fmt: skip

    steps = [service.get(f"/v1/runs/grpo/steps/{step}") for step in range(6)]
    assert [step["verdict"] for step in steps[:4]] == ["ok"] * 4
    healthy = max(step["metrics"]["k3_mean"] for step in steps[:4])
    assert steps[4]["metrics"]["k3_mean"] > 2 * healthy
    assert steps[5]["metrics"]["k3_mean"] > steps[4]["metrics"]["k3_mean"]
