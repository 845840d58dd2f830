"""TRL's GRPOTrainer with vLLM colocated on the CPU: our numbers against TRL's own metrics."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from service_process import ROOT, ServiceProcess, running_service

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="no TRL here: run `make test-engines`"
)
STEPS = 6  # of up to 384 tokens: a verdict needs 1000, of a step and those before it


@pytest.fixture(scope="module")
def run(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(the service, TRL's log of each step) after a run."""
    with running_service(tmp_path_factory.mktemp("service")) as service:
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests/engines/trl_run.py"), str(tiny_llama), str(STEPS)],
            env={**os.environ, "TWINSCOPE_URL": service.url, "TWINSCOPE_RUN": "trl"},
            capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        yield (
            service,
            [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')],
        )


def test_numbers_equal_those_that_trl_logs(
    run: tuple[ServiceProcess, list[dict[str, Any]]],
) -> None:
    """Mean and max |log ratio| of every step, of the same tokens, from the raw pairs."""
    service, logs = run

    steps = [service.get(f"/v1/runs/trl/steps/{step}") for step in range(STEPS)]

    assert len(logs) == STEPS
    for step, log in zip(steps, logs, strict=True):
        prefix = "sampling/sampling_logp_difference"
        assert step["metrics"]["abs_mean"] == pytest.approx(log[f"{prefix}/mean"], rel=1e-5)
        assert step["metrics"]["abs_max"] == pytest.approx(log[f"{prefix}/max"], rel=1e-6)
        assert step["coverage"]["counted"] == pytest.approx(16 * log["completions/mean_length"])


def test_healthy_steps_are_closed_without_an_accusation(
    run: tuple[ServiceProcess, list[dict[str, Any]]],
) -> None:
    """One rank closes its steps; too few tokens at first, then `ok` at temperature 0.8 on both."""
    service, _ = run

    steps = [service.get(f"/v1/runs/trl/steps/{step}") for step in range(STEPS)]

    verdicts = [step["verdict"] for step in steps]
    assert "ok" in verdicts
    judged = verdicts.index("ok")
    assert [step["state"] for step in steps] == ["closed"] * STEPS
    assert verdicts == ["unknown"] * judged + ["ok"] * (STEPS - judged)
    assert sum(step["coverage"]["counted"] for step in steps[: judged + 1]) >= 1000
