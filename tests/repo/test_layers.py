"""Arrows point one way: service -> probes; the middle stages know no I/O and no clock."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICE = ROOT / "service/twinscope_service"
PURE = ("join", "measure", "detect", "diagnose")
IMPURE = {
    "fastapi", "starlette", "uvicorn", "httpx", "sqlite3", "socket", "time", "threading",
    "asyncio", "subprocess", "prometheus_client", "requests", "logging",
}  # fmt: skip


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize(
    "path",
    [path for stage in PURE for path in sorted((SERVICE / stage).glob("*.py"))],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_the_middle_of_the_path_does_no_io(path: Path) -> None:
    """join, measure, detect and diagnose import nothing that reaches outside."""
    roots = {name.split(".")[0] for name in _imports(path)}
    ours = {name for name in _imports(path) if name.startswith("twinscope_service.")}
    forbidden = {"receive", "store", "expose", "alert", "app", "cli", "clock"}

    assert not roots & IMPURE
    assert not {name.split(".")[1] for name in ours} & forbidden


def test_probes_never_import_the_service() -> None:
    """The lighter side owns the wire; the service depends on it, never the reverse."""
    for path in (ROOT / "probes").rglob("*.py"):
        assert not any(
            name.startswith(("twinscope_service", "twinscope_fpga")) for name in _imports(path)
        ), path


def test_importing_the_probes_loads_the_standard_library_only() -> None:
    """`import twinscope` in a trainer adds no third-party module."""
    code = (
        "import sys; sys.path.insert(0, 'probes'); before = set(sys.modules); import twinscope; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'twinscope'}))"
    )
    out = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert out.stdout.strip() == "[]"
