"""The one seam for hardware: an engine turns a PairBlock into a Summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol

import numpy as np

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


class DeviceState(Protocol):
    """What an engine that runs on a device says about it."""

    @property
    def kind(self) -> str:
        """board, simulation, emulator or none."""
        ...

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Cause -> blocks that were measured without the device."""
        ...


def device_state(engine: MeasureEngine) -> DeviceState | None:
    """The state of an engine's device; None for an engine that has none."""
    status: Callable[[], DeviceState] | None = getattr(engine, "status", None)
    return None if status is None else status()


def build_engine(name: str) -> MeasureEngine:
    """The engine called `name`, one of ENGINES; a ConfigError says what is missing."""
    if name not in ENGINES:
        raise ConfigError(f"engine: got {name!r}; use one of {', '.join(ENGINES)}")
    try:
        return _build(name)
    except RuntimeError as error:  # numba found no folder for its cache
        raise ConfigError(f"engine: {name!r}: {error}; set NUMBA_CACHE_DIR to a folder") from error
    except ImportError as error:
        extra = {"torch": "torch", "cuda": "torch"}.get(
            name, "fpga" if "fpga" in name else "service"
        )
        raise ConfigError(
            f"engine: {name!r} needs {error.name or error}; install twinscope[{extra}]"
        ) from error


def warm_up(engine: MeasureEngine) -> None:
    """Measure one pair with everything beside it, so that nothing is compiled under load.

    The cpu engine compiles for some ten seconds on first use of an installation, then loads from
    numba's cache (NUMBA_CACHE_DIR, else beside the modules, else in the user's cache folder).
    """
    one, whole = np.full(1, -1.0, np.float32), np.zeros(1, np.int32)
    block = PairBlock(
        offsets=np.array([0, 1]),
        rollout_logprobs=one,
        train_logprobs=one,
        sample_keys=np.zeros((1, 16), np.uint8),
        mask=np.ones(1, np.uint8),
        token_ids=whole,
        ref_logprobs=one,
        entropy=-one,
        kept_mass=-one,
        sampled_rank=whole,
        logsumexp_T=-one.reshape(1, 1),
        temperatures=(1.0,),
        rollout_version=np.zeros(1, np.int64),
        train_version=np.zeros(1, np.int64),
        version_spans=((0, 0, 0),),
    )
    engine.measure(block, MeasureOptions())


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
