"""Ids that occurred before: what the window and the prompt window let in, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.support.pair_blocks import make_block

from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.layout import PROMPT_WINDOW
from twinscope_service.measure.records import SIDE_COLUMN, MeasureOptions


def seen_counts(engine: str, *, window: int) -> tuple[list[float], list[float], list[float]]:
    """ids_n, seen_n, resp_n per sample: two samples of ids 5 7 5 9 7, the third masked.

    The first prompt ends in 9, the second has its 9 just before the prompt window.
    """
    values = [-0.5] * 5
    tail = np.full(PROMPT_WINDOW - 1, 3, np.int32)
    prompts = [np.append(tail, np.int32(9)), np.append(np.int32(9), np.append(tail, np.int32(3)))]
    block = replace(
        make_block([values, values], [values, values]),
        sample_keys=np.repeat(np.arange(2, dtype=np.uint8)[:, None], 16, axis=1),
        mask=np.array([1, 1, 0, 1, 1] * 2, np.uint8),
        token_ids=np.array([5, 7, 5, 9, 7] * 2, np.int32),
        prompt_ids=np.concatenate(prompts).astype(np.int32),
        prompt_offsets=np.cumsum([0, *map(len, prompts)]).astype(np.int64),
    )
    side = build_engine(engine).measure(block, MeasureOptions(lag_window=window)).rows.side
    assert side is not None
    ids, seen, resp = (
        side[:, SIDE_COLUMN[name]].tolist() for name in ("ids_n", "seen_n", "resp_n")
    )
    return ids, seen, resp


@pytest.mark.parametrize("engine", ["reference", "cpu", "torch"])
def test_ids_are_looked_up_within_the_windows(engine: str) -> None:
    """7 repeats in both responses; 9 is in reach of one prompt; window 4 ends before 7."""
    if engine == "torch":
        pytest.importorskip("torch")
    assert seen_counts(engine, window=512) == ([4, 4], [2, 1], [1, 1])
    assert seen_counts(engine, window=4) == ([3, 3], [1, 0], [0, 0])
    assert seen_counts(engine, window=0) == ([0, 0], [0, 0], [0, 0])
