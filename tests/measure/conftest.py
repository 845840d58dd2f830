"""One fixture: each engine in turn."""

from __future__ import annotations

import pytest

from twinscope_service.measure.engine import MeasureEngine, build_engine


@pytest.fixture(params=["reference", "cpu", "torch", "cuda"], scope="session")
def engine(request: pytest.FixtureRequest) -> MeasureEngine:
    """A measure engine; torch and cuda as far as they exist on this machine."""
    if request.param in ("torch", "cuda"):
        torch = pytest.importorskip("torch")
        torch.set_num_threads(1)  # small tensors: threads only wait for one another
        if request.param == "cuda" and not torch.cuda.is_available():
            pytest.skip("no CUDA device")
    return build_engine(request.param)
