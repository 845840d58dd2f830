"""Blocks of pairs and the stand-in card."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope_fpga.device import Device
from twinscope_fpga.emulator import EmulatedDevice
from twinscope_fpga.selftest import self_test
from twinscope_service.measure.records import PairBlock


def _stand_in_class() -> Any:
    path = Path(__file__).with_name("stand_in.py")
    spec = importlib.util.spec_from_file_location("fpga_stand_in", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.StandInCard


@pytest.fixture
def card(tmp_path: Path) -> Iterator[Any]:
    """A running stand-in for a card; the emulator inside is compiled before the clock runs."""
    self_test(Device(EmulatedDevice()))
    with _stand_in_class()(tmp_path) as running:
        yield running


@pytest.fixture
def make_block() -> Callable[..., PairBlock]:
    """Random healthy pairs with a few of every bad value, masked here and there."""

    def build(samples: int = 40, seed: int = 1, noise: float = 5e-3) -> PairBlock:
        rng = np.random.default_rng(seed)
        lengths = rng.integers(0, 120, samples)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        q = -rng.exponential(1, offsets[-1]).astype(np.float32)
        p = np.minimum(q + rng.normal(0, noise, len(q)), 0).astype(np.float32)
        q[rng.integers(0, len(q), 8)] = [np.nan, -np.inf, -9999, 1e-3, 0, -0.0, -1000, -60]
        keys = rng.integers(0, 256, (samples, 16)).astype(np.uint8)
        keys[samples // 2] = keys[samples // 2 - 1]
        return PairBlock(
            offsets=offsets,
            rollout_logprobs=q,
            train_logprobs=p,
            sample_keys=keys,
            mask=(rng.random(len(q)) < 0.9).astype(np.uint8),
        )

    return build
