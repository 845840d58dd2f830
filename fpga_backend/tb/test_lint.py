"""Lint of the exported Verilog: nothing but what a generator of plain Verilog always writes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from rtl.export import engine_verilog

# The generator declares every intermediate wire (UNUSEDSIGNAL), lets Verilog size sums (WIDTH),
# sets a default before each casez instead of a default branch (CASEINCOMPLETE, without LATCH),
# and keeps all modules in one file (DECLFILENAME).
ALLOWED = {"UNUSEDSIGNAL", "WIDTH", "CASEINCOMPLETE", "DECLFILENAME"}


def test_verilator_lint_finds_no_latch_no_loop_no_second_driver(tmp_path: Path) -> None:
    """verilator --lint-only -Wall: no error, no warning of another kind."""
    source = tmp_path / "twinscope_engine.v"
    source.write_text(engine_verilog(lanes=2))
    command = ["verilator", "--lint-only", "-Wall", "-Wno-fatal", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    kinds = set(re.findall(r"^%(?:Warning|Error)-?([A-Z]*)", done.stderr, re.MULTILINE))
    assert done.returncode == 0, done.stderr[-2000:]
    assert kinds <= ALLOWED
