"""What a user installs: one wheel, four packages, no dependency for the probes."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"twinscope", "twinscope_service", "twinscope_fpga", "twinscope_dashboards"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), "."],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    return next(out.glob("*.whl"))


def test_the_wheel_holds_exactly_the_four_packages(wheel: Path) -> None:
    """A folder missing from the list would vanish silently: hatchling skips what it cannot find."""
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}

    assert top == PACKAGES


def test_the_wheel_holds_what_the_code_reads(wheel: Path) -> None:
    """Type markers, the page, and the recordings of the demonstration travel with the code."""
    names = set(zipfile.ZipFile(wheel).namelist())

    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert "twinscope_dashboards/web/index.html" in names
    assert "twinscope_service/recordings/temperature_0.7_restored.safetensors" in names
    assert "twinscope_service/recordings/runs/grpo_no_sync.safetensors" in names


def test_a_trainer_image_gets_the_probe_and_nothing_else(wheel: Path, tmp_path: Path) -> None:
    """pip install twinscope in an empty environment: no dependency, and the probe imports."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-index", str(wheel)],
        check=True, capture_output=True,
    )  # fmt: skip
    code = "import twinscope; twinscope.Probe().rollout(logprobs=[[-1.0]]); print('ok')"
    out = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )

    assert out.stdout.strip() == "ok"
