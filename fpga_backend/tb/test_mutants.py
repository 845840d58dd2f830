"""Small faults in the datapath that the suite must notice (credit mutants: test_proofs.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Value

from rtl import compute_core
from rtl.compute_core import LaneWithTables

from .test_benches import bench

SETTINGS = {"MODE": 0, "CLAMP": 20.0, "LANES": 1, "IDLE": 0, "STALL": 0}


def lane(flip: tuple[int, int] | None = None) -> Callable[[], tuple[Any, dict[str, Any]]]:
    """A lane, with one bit of its line table flipped."""

    def build() -> tuple[Any, dict[str, Any]]:
        design = LaneWithTables(flip=flip)
        return design, design.ports()

    return build


def test_the_unharmed_lane_passes(tmp_path: Path) -> None:
    """Else the mutants below prove nothing."""
    bench(tmp_path, "bench_core", lane(), **SETTINGS)


@pytest.mark.parametrize("bit", [0, 20, 30])
def test_a_flipped_table_bit_is_noticed(tmp_path: Path, bit: int) -> None:
    """One bit of the first segment of g(+x): lowest and higher bit of c0, low bit of c1."""
    with pytest.raises(SystemExit):
        bench(tmp_path, "bench_core", lane(flip=(0, bit)), **SETTINGS)


def test_a_dropped_carry_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The carry into e^Δ - (1 + Δ) and the one between its halves are left out."""

    def without_carry(a: Value, b: Value, _carry: Value) -> Value:
        return a + b

    monkeypatch.setattr(compute_core, "add_with_carry", without_carry)
    with pytest.raises(SystemExit):
        bench(tmp_path, "bench_core", lane(), **SETTINGS)
