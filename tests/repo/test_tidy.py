"""The habits of the code base, as tests. Messages say what to do."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES, MODULE_LINES = 60, 700
BANNED_MODULE_NAMES = {"utils", "helpers", "common", "manager", "misc"}
REMINDER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")


def _tracked(suffix: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"*{suffix}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return [ROOT / name for name in listed if (ROOT / name).exists()]


PYTHON = _tracked(".py")
PRODUCT = [path for path in PYTHON if "tests" not in path.relative_to(ROOT).parts]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON, ids=_name)
def test_sizes_stay_readable(path: Path) -> None:
    """No function over 60 lines, no module over 700: split by what the parts are about."""
    text = path.read_text(encoding="utf-8")
    functions = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = [
        f"{_name(path)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in functions
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    ]

    assert not long
    assert text.count("\n") <= MODULE_LINES


@pytest.mark.parametrize("path", PRODUCT, ids=_name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    """Each product module has a docstring, a name that is a noun, and no reminder left behind."""
    text = path.read_text(encoding="utf-8")

    assert ast.get_docstring(ast.parse(text)), f"{_name(path)}: say what the module is for"
    assert path.stem not in BANNED_MODULE_NAMES, f"{_name(path)}: name what is inside"
    assert not REMINDER.search(text), f"{_name(path)}: do it now or give it an issue number"


@pytest.mark.parametrize("path", PRODUCT, ids=_name)
def test_no_stub_is_left(path: Path) -> None:
    """A function that only raises NotImplementedError is not a feature."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.exc is not None:
            assert "NotImplementedError" not in ast.unparse(node.exc), (
                f"{_name(path)}:{node.lineno}"
            )


def test_tests_mirror_the_stages_of_the_data_path() -> None:
    """Each stage folder of the service has a test folder of its name."""
    stages = {"receive", "join", "measure", "detect", "diagnose", "expose", "alert", "store"}
    service = {p.name for p in (ROOT / "service/twinscope_service").iterdir() if p.is_dir()}
    tested = {p.parent.name for p in PYTHON if p.name.startswith("test_")}

    assert stages <= service
    assert stages <= tested


def test_the_pipeline_can_be_read_in_one_sitting() -> None:
    """pipeline.py is the picture of the path: under 150 lines."""
    lines = (ROOT / "service/twinscope_service/pipeline.py").read_text().count("\n")

    assert lines < 150
