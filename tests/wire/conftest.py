"""Bodies for the wire tests: a good one, and ways to spoil it that the encoder would refuse."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

VECTORS = Path(__file__).parents[1] / "vectors" / "wire"


@pytest.fixture
def golden() -> Callable[[str], bytes]:
    """The committed bytes of one golden body."""
    return lambda name: (VECTORS / f"{name}_v1.safetensors").read_bytes()


@pytest.fixture
def good() -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and arrays of a small paired batch: 3 samples of 2, 0 and 3 tokens."""
    header = {"schema": 1, "run": "r", "step": 3, "side": "paired", "sample_ids": ["a", "b", "c"]}
    tensors = {
        "offsets": np.array([0, 2, 2, 5]),
        "token_ids": np.array([1, 2, 3, 4, 5], np.int32),
        "rollout_logprobs": np.array([-1, -2, -3, -4, -5], np.float32),
        "train_logprobs": np.array([-1, -2, -3, -4, -5.5], np.float32),
        "mask": np.array([1, 1, 0, 1, 1], np.uint8),
    }
    return header, tensors


@pytest.fixture
def spoil(good: tuple[dict[str, Any], dict[str, Any]]) -> Callable[..., bytes]:
    """A body made from the good batch with header fields, arrays or layout entries replaced.

    Written without the encoder, which would refuse most of them. A value of None removes.
    """

    def build(
        header: dict[str, Any] | None = None,
        tensors: dict[str, Any] | None = None,
        layout: Callable[[dict[str, Any]], None] = lambda entries: None,
        header_text: str | None = None,
    ) -> bytes:
        fields = _merged(good[0], header or {})
        arrays = _merged(good[1], tensors or {})
        text = json.dumps(fields) if header_text is None else header_text
        entries: dict[str, Any] = {"__metadata__": {"twinscope": text}}
        data = b""
        for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
            raw = array.tobytes()
            dtype = {"int64": "I64", "float32": "F32", "int32": "I32", "uint8": "U8"}
            entries[name] = {
                "dtype": dtype.get(array.dtype.name, array.dtype.name),
                "shape": list(array.shape),
                "data_offsets": [len(data), len(data) + len(raw)],
            }
            data += raw
        layout(entries)
        head = json.dumps(entries).encode()
        return len(head).to_bytes(8, "little") + head + data

    return build


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = {**copy.deepcopy(base), **changes}
    return {name: value for name, value in merged.items() if value is not None}
