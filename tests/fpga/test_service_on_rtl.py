"""The service's whole path with engine = fpga on the simulated RTL: same verdict, same cause."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from twinscope_fpga.simulation import build_library

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "traces"
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.rtl,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(shutil.which("verilator") is None, reason="no verilator: make rtl-env"),
    pytest.mark.skipif(not (ROOT / ".venv-rtl").exists(), reason="no .venv-rtl: make rtl-env"),
]


@pytest.fixture(scope="module", autouse=True)
def _device_is_built() -> None:
    """Compiling the device takes a while on a busy machine: not within a command's time."""
    build_library(4)


def analyse(trace: Path, engine: str) -> dict[str, Any]:
    """`twinscope analyze --json` in a process of its own."""
    command = [sys.executable, "-m", "twinscope_service", "analyze", str(trace), "--json"]
    done = subprocess.run(
        [*command, "--engine", engine], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.stdout, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("trace", ["healthy_bf16", "temperature_0.7_unrestored"])
def test_a_recorded_trace_gets_the_same_verdict_on_the_rtl(trace: str) -> None:
    """k3 within 1e-6, coverage, verdict and first cause equal to those of torch."""
    path = VECTORS / f"{trace}.safetensors"
    found, expected = analyse(path, "fpga"), analyse(path, "torch")
    assert found["verdict"] == expected["verdict"]
    assert found["diagnosis"][0]["cause"] == expected["diagnosis"][0]["cause"]
    assert found["metrics"]["k3_mean"] == pytest.approx(expected["metrics"]["k3_mean"], rel=1e-6)
    assert found["coverage"] == expected["coverage"]
