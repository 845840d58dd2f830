"""Unbounded proofs of the control logic, their covers, and mutants that the checker must find."""

from __future__ import annotations

import pytest

from formal.check import find_fault, prove
from formal.tops import TOPS

MUTANTS = [(name, mutant) for name, top in TOPS.items() for mutant in top.MUTANTS]


@pytest.mark.parametrize("name", TOPS)
def test_properties_hold_for_ever_and_covers_are_reached(name: str) -> None:
    """No counterexample from reset, induction closes, and the proof is not vacuous."""
    assert prove(name) == {"base": True, "step": True, "cover": True}


@pytest.mark.parametrize(("name", "mutant"), MUTANTS)
def test_a_small_fault_is_found(name: str, mutant: str) -> None:
    """The same properties fail for the mutant."""
    assert find_fault(name, mutant)
