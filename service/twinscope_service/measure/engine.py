"""The one seam for hardware: an engine turns a PairBlock into a Summary."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from twinscope.errors import ConfigError
from twinscope_service.measure.records import MeasureOptions, PairBlock, Summary

ENGINES: tuple[str, ...] = ("cpu", "torch", "cuda", "reference", "fpga", "fpga-emulator")
_EXTRA = dict(zip(ENGINES, ("service", "torch", "torch", "service", "fpga", "fpga"), strict=True))


class MeasureEngine(Protocol):
    """Implementations: cpu (fused, numba), torch and cuda (torch), reference (float64 numpy, slow),
    fpga and fpga-emulator (twinscope_fpga). All pass the same tests."""

    name: str

    def measure(self, block: PairBlock, options: MeasureOptions) -> Summary:
        """Measure every pair of `block` in one pass. Pure: no I/O, no state in the result."""
        ...


def build_engine(name: str) -> MeasureEngine:
    """The engine called `name`, one of ENGINES; a ConfigError says what is missing."""
    if name not in ENGINES:
        raise ConfigError(f"engine: got {name!r}; use one of {', '.join(ENGINES)}")
    try:
        return _build(name)
    except ImportError as error:
        extra = {"torch": "torch", "cuda": "torch"}.get(
            name, "fpga" if "fpga" in name else "service"
        )
        raise ConfigError(
            f"engine: {name!r} needs {error.name or error}; install twinscope[{extra}]"
        ) from error


def _build(name: str) -> MeasureEngine:
    """Imports only what the engine needs: cpu and reference never load torch."""
    if name == "reference":
        from twinscope_service.measure.reference import ReferenceEngine

        return ReferenceEngine()
    if name == "cpu":
        from twinscope_service.measure.cpu_engine import CpuEngine

        return CpuEngine()
    if name in ("torch", "cuda"):
        from twinscope_service.measure.torch_engine import TorchEngine

        return TorchEngine(device="cpu" if name == "torch" else "cuda")
    engine: MeasureEngine = import_module("twinscope_fpga.engine").build_engine(name)
    return engine
