"""`MeasureEngine` on the streaming device: engines `fpga` and `fpga-emulator`.

The device gives, per sample: counted tokens, Σ Δ, Σ |Δ|, Σ Δ², Σ k3, exact zeros, and the coverage
counts. Everything else of a Summary (profiles, lags, histogram, extremes, worst tokens, side
information) comes from the completing engine, which sees the same block. The device's sums are
exact over float32 differences; the completing engine's are float64.

When the device fails, the block is measured by the completing engine alone, the failure is counted
by cause, and the device is opened anew for the next block: nothing is lost.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinscope.errors import ConfigError
from twinscope_fpga.device import Device
from twinscope_fpga.discovery import Opener, choose_device
from twinscope_fpga.engine_columns import COVERAGE_FROM, FROM_DEVICE
from twinscope_fpga.errors import DeviceError
from twinscope_fpga.formats import MAX_CLAMP
from twinscope_fpga.packing import Records
from twinscope_service.measure import engine as seam
from twinscope_service.measure.layout import sample_order
from twinscope_service.measure.records import (
    COLUMN,
    COVERAGE,
    F64,
    I64,
    MeasureOptions,
    PairBlock,
    SampleRows,
    Summary,
)

logger = logging.getLogger("twinscope_fpga")


@dataclass(frozen=True)
class EngineStatus:
    """What the engine runs on and how it has fared. kind is `none` while no device is open."""

    kind: str  # board, simulation, emulator or none
    place: str
    blocks: int
    fallbacks: Mapping[str, int]  # cause -> blocks that the completing engine measured alone
    last_error: str  # "": none yet


class FpgaEngine:
    """See the module. `opener` gives a fresh device; `completing` does the rest and stands in."""

    def __init__(self, name: str, opener: Opener, completing: seam.MeasureEngine) -> None:
        self.name = name
        self._opener, self._completing = opener, completing
        self._device: Device | None = None
        self._blocks, self._fallbacks, self._last_error = 0, Counter[str](), ""

    def status(self) -> EngineStatus:
        """For the service's own metrics and for /healthz."""
        info = self._device.info if self._device else None
        return EngineStatus(
            info.kind if info else "none",
            info.place if info else "",
            self._blocks,
            dict(self._fallbacks),
            self._last_error,
        )

    def open(self) -> None:
        """Open the device now, so that a wrong setting is an error at start and not later."""
        if self._device is None:
            self._device = self._opener()

    def close(self) -> None:
        """Give the device back."""
        if self._device is not None:
            self._device.close()
            self._device = None

    def measure(self, block: PairBlock, options: MeasureOptions) -> Summary:
        """Measure every pair of `block`; see `MeasureEngine`."""
        if options.clamp > MAX_CLAMP:
            raise ConfigError(
                f"clamp: got {options.clamp}; the FPGA engine takes at most {MAX_CLAMP}"
            )
        completed = self._completing.measure(block, options)
        self._blocks += 1
        try:
            self.open()
            records = self._ask(block, options)
        except DeviceError as error:
            self._give_up(error)
            return completed
        return combine(completed, records, block)

    def _ask(self, block: PairBlock, options: MeasureOptions) -> Records:
        if self._device is None:
            raise ConfigError("engine: open() has not been called")
        return self._device.measure(
            block.rollout_logprobs.view(np.uint32),
            block.train_logprobs.view(np.uint32),
            block.offsets,
            mask=block.mask,
            clamp=options.clamp,
        )

    def _give_up(self, error: DeviceError) -> None:
        """Count the failure and forget the device; the next block opens it again."""
        self._fallbacks[error.cause] += 1
        self._last_error = str(error)
        logger.warning(
            "fpga device failed; the block was measured by the %s engine",
            self._completing.name,
            extra={"cause": error.cause, "error": str(error)},
        )
        device, self._device = self._device, None
        if device is not None:
            device.close()


def build_engine(name: str) -> FpgaEngine:
    """Engine `fpga` or `fpga-emulator` with the cpu engine beside it; the device is opened."""
    engine = FpgaEngine(name, choose_device(name), seam.build_engine("cpu"))
    engine.open()
    return engine


def combine(completed: Summary, records: Records, block: PairBlock) -> Summary:
    """`completed` with the device's sums and counts in place of its own."""
    columns = device_columns(records)
    rows = completed.rows.sums.copy()
    source = row_sources(completed.rows, columns, block)
    for name in FROM_DEVICE:
        rows[:, COLUMN[name]] = columns[name][source]
    sums = completed.sums.copy()
    for name in FROM_DEVICE:
        sums[COLUMN[name]] = columns[name].sum()
    return replace(
        completed,
        coverage=device_coverage(completed.coverage, records),
        sums=sums,
        rows=replace(completed.rows, sums=rows),
    )


def device_columns(records: Records) -> dict[str, F64]:
    """The device's columns, one value per sample of the block, in the block's order."""
    above, below = records.total("above"), records.total("below")
    return {
        "n": records.count("counted").astype(np.float64),
        "d": above - below,
        "abs": above + below,
        "d2": records.total("square"),
        "k3": records.total("value"),
        "zero_q": records.count("zero_rollout").astype(np.float64),
        "zero_p": records.count("zero_train").astype(np.float64),
        "zero_d": records.count("delta_zero").astype(np.float64),
    }


def device_coverage(completed: I64, records: Records) -> I64:
    """The coverage block from the device's counts; masked_out is what no other count explains."""
    coverage = completed.copy()
    totals = {name: int(records.count(source).sum()) for name, source in COVERAGE_FROM.items()}
    totals["masked_out"] = totals["received"] - sum(
        totals[name] for name in ("counted", "nonfinite", "sentinel", "positive")
    )
    for i, name in enumerate(COVERAGE):
        coverage[i] = totals.get(name, coverage[i])
    return coverage


def row_sources(rows: SampleRows, columns: Mapping[str, F64], block: PairBlock) -> I64:
    """For every row, the sample of the block it describes.

    Rows are sorted by key. Samples that share a key (the same response twice) are told apart by
    their Σ|Δ| and Σk3, which both engines agree on far more closely than two samples do.
    """
    order = sample_order(block)
    keys = np.ascontiguousarray(rows.keys).reshape(-1, 16)
    same = (keys[1:] == keys[:-1]).all(axis=1) if len(keys) > 1 else np.zeros(0, np.bool_)
    starts = np.flatnonzero(same & ~np.concatenate([[False], same[:-1]])) if len(same) else same
    for start in starts:
        stop = int(start) + 1
        while stop < len(keys) and (keys[stop] == keys[start]).all():
            stop += 1
        span = slice(int(start), stop)
        theirs = _rank(rows.sums[span, COLUMN["abs"]], rows.sums[span, COLUMN["k3"]])
        samples = order[span]
        mine = _rank(columns["abs"][samples], columns["k3"][samples])
        matched = np.empty_like(samples)
        matched[theirs] = samples[mine]
        order[span] = matched
    return order


def _rank(first: NDArray[np.float64], second: NDArray[np.float64]) -> I64:
    """Indices in ascending order of `first`, ties by `second`."""
    return np.lexsort((second, first)).astype(np.int64)
