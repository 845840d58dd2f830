"""Released code of frameworks that cannot be installed here: unpacked wheels, parts of them run.

`make test-hosts` downloads and unpacks them (fetch_wheels.sh), and names the folder in
TWINSCOPE_WHEELS: then a wheel that is missing fails the test instead of skipping it. A part is
imported under its real name, with empty packages above it, so that the heavy `__init__` files of
the framework do not run.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Read once: tests of the probes run without any TWINSCOPE_* variable.
ASKED = os.environ.get("TWINSCOPE_WHEELS")
WHEELS = Path(ASKED or ".cache/wheels")


def unpacked(package: str) -> Path:
    """The package's folder in an unpacked wheel; skips, or fails, the test where there is none."""
    found = [path.parent for path in WHEELS.glob(f"**/{package}/__init__.py")]
    if not found:
        (pytest.fail if ASKED else pytest.skip)(f"no wheel of {package}: run make test-hosts")
    return min(found, key=lambda path: len(path.parts))


@contextmanager
def empty_packages(package: str, *names: str, **attributes: Any) -> Iterator[Path]:
    """`package` and its sub-packages `names` as empty packages over the unpacked wheel.

    `attributes` are set on the top package. Everything of it leaves `sys.modules` at the end.
    """
    root = unpacked(package)
    _forget(package)
    for name in (package, *(f"{package}.{name}" for name in names)):
        module = ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
    for name, value in attributes.items():
        setattr(sys.modules[package], name, value)
    try:
        yield root
    finally:
        _forget(package)


def stand_in(name: str, **attributes: Any) -> ModuleType:
    """A module with only these attributes, where the real one would pull in the world."""
    module = ModuleType(name)
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    sys.modules[name] = module
    return module


def _forget(package: str) -> None:
    """Its modules, and the hooks that still wait for one of them."""
    for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
        del sys.modules[name]
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if not str(getattr(finder, "_name", "")).startswith(f"{package}.")
    ]
