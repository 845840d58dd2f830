"""The one seam for hardware: an engine turns a PairBlock into a Summary."""

from __future__ import annotations

from typing import Protocol

from twinscope_service.measure.records import MeasureOptions, PairBlock, Summary


class MeasureEngine(Protocol):
    """Implementations: cpu (fused, numba), torch and cuda (torch), reference (float64 numpy, slow),
    fpga and fpga-emulator (twinscope_fpga). All pass the same tests."""

    name: str

    def measure(self, block: PairBlock, options: MeasureOptions) -> Summary:
        """Measure every pair of `block` in one pass. Pure: no I/O, no state in the result."""
        ...
