"""Adding a cause is adding one function, one fixture and one page; none may be missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinscope_service.diagnose.cause import FAMILIES, FAMILY_OF
from twinscope_service.diagnose.fixes import FIXES
from twinscope_service.diagnose.rank import DIAGNOSTICS, TIER
from twinscope_service.lab.faults import FAULTS

PAGES = Path(__file__).resolve().parents[2] / "docs/causes"
FRAMEWORKS = ("verl", "TRL", "slime", "OpenRLHF", "NeMo-RL")
FAULTY = sorted(set(FAMILY_OF) - {"numerical_noise"})


@pytest.mark.parametrize("cause", FAULTY)
def test_every_cause_has_a_function_in_the_file_of_its_family(cause: str) -> None:
    """One function named like the cause, in diagnose/<family>.py, ranked by a tier."""
    modules = {f.__name__: f.__module__.rpartition(".")[2] for f in DIAGNOSTICS}

    assert modules[cause] == FAMILY_OF[cause]
    assert cause in TIER


@pytest.mark.parametrize("cause", FAULTY)
def test_every_cause_has_a_fault_to_test_it_with(cause: str) -> None:
    """The lab can make it, under its own name."""
    assert FAULTS[cause].cause == cause


@pytest.mark.parametrize("cause", sorted(FAMILY_OF))
def test_every_cause_has_a_page_and_a_fix(cause: str) -> None:
    """docs/causes/<cause>.md and its translation start with the cause's name."""
    first = (PAGES / f"{cause}.md").read_text(encoding="utf-8").splitlines()[0]

    translated = (PAGES / "zh-CN" / f"{cause}.md").read_text(encoding="utf-8").splitlines()[0]

    assert first == translated == f"# {cause}"
    assert FIXES[cause].endswith(".")


@pytest.mark.parametrize("folder", ["", "zh-CN"])
@pytest.mark.parametrize("cause", sorted(FAMILY_OF))
def test_every_page_says_how_to_fix_it_in_five_frameworks(cause: str, folder: str) -> None:
    """One table row each, with something in it."""
    page = (PAGES / folder / f"{cause}.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    said = {cells[0].strip(): cells[1].strip() for cells in rows}

    assert set(FRAMEWORKS) <= said.keys()
    assert all(len(said[name]) > 10 for name in FRAMEWORKS)


def test_no_function_page_or_fault_is_without_a_cause() -> None:
    """Nothing is left over from a cause that was renamed."""
    known = set(FAMILY_OF)

    assert {f.__name__ for f in DIAGNOSTICS} == known - {"numerical_noise"}
    assert {page.stem for page in PAGES.glob("*.md")} - {"README"} <= known
    assert {fault.cause for fault in FAULTS.values()} <= known
    assert sum(len(causes) for causes in FAMILIES.values()) == len(known)
