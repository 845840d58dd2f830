"""Named float64, int64, int32 and uint8 arrays and one JSON object in a safetensors file.

The wire module does this for batches, whose tensors are declared; a Summary has its own. Nothing of
what is read is used before it was checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinscope.errors import WireError
from twinscope.wire.strict_json import parse

Arrays = Mapping[str, NDArray[Any]]

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in (("F64", "<f8"), ("I64", "<i8"), ("I32", "<i4"), ("U8", "u1"))
}
NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}
LENGTH_BYTES, ALIGNMENT = 8, 8
HEADER_BYTES = 32 << 20
DEPTH = 8
METADATA = "__metadata__"


def pack(key: str, header: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The file. `header` goes as JSON text under `key`, as safetensors wants it."""
    text = json.dumps(header, separators=(",", ":"), allow_nan=False)
    layout: dict[str, Any] = {METADATA: {key: text}}
    pieces, end = [], 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = np.ascontiguousarray(arrays[name])
        begin, end = end, end + array.nbytes
        layout[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        pieces.append(array.tobytes())
    head = json.dumps(layout, separators=(",", ":")).encode()
    head += b" " * (-len(head) % ALIGNMENT)
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *pieces])


def unpack(key: str, body: bytes | memoryview) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header under `key` and the arrays, read-only views of `body`."""
    view = memoryview(body).toreadonly().cast("B")
    layout, data = _split(view)
    header = _header(key, layout)
    at, arrays = 0, {}
    for name, entry in sorted(layout.items(), key=lambda item: _begin(*item)):
        dtype, shape, begin, end = _entry(name, entry)
        if begin != at:
            raise WireError(f"{name}.data_offsets", begin, f"start at {at}: no gap, no overlap")
        if end > len(data):
            raise WireError(f"{name}.data_offsets", end, f"only {len(data)} bytes of data follow")
        arrays[name] = _array(data[begin:end], dtype, shape)
        at = end
    if at != len(data):
        raise WireError("body", f"{len(data)} bytes of data", f"the tensors take {at} bytes")
    return header, arrays


def _split(view: memoryview) -> tuple[dict[str, Any], memoryview]:
    if len(view) < LENGTH_BYTES:
        raise WireError("body", f"{len(view)} bytes", "send 8 bytes of header length first")
    length = int.from_bytes(view[:LENGTH_BYTES], "little")
    if length > min(HEADER_BYTES, len(view) - LENGTH_BYTES):
        raise WireError("header length", length, "the body is shorter, or the header too long")
    end = LENGTH_BYTES + length
    layout = parse(view[LENGTH_BYTES:end], field="header", depth=DEPTH)
    if not isinstance(layout, dict):
        raise WireError("header", layout, "send a JSON object of tensor names")
    return layout, view[end:]


def _header(key: str, layout: dict[str, Any]) -> dict[str, Any]:
    metadata = layout.pop(METADATA, None)
    text = metadata.get(key) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise WireError(METADATA, metadata, f"send a string under the key {key!r}")
    header = parse(text, field=key, depth=DEPTH)
    if not isinstance(header, dict):
        raise WireError(key, header, "send a JSON object")
    return header


def _begin(name: str, entry: Any) -> int:
    return _entry(name, entry)[2]


def _entry(name: str, entry: Any) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """dtype, shape, begin, end of one layout entry, in agreement with one another."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise WireError(name, entry, "send dtype, shape and data_offsets")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise WireError(f"{name}.dtype", entry["dtype"], f"send one of {', '.join(DTYPES)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    for field, value in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
            raise WireError(f"{name}.{field}", value, "send non-negative integers")
    if len(shape) > 3 or len(offsets) != 2:
        raise WireError(name, entry, "send at most 3 axes and two offsets")
    needed = prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != needed:
        raise WireError(f"{name}.data_offsets", offsets, f"the shape takes {needed} bytes")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _array(data: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if not len(data):
        return np.zeros(shape, dtype)
    return np.frombuffer(data, dtype).reshape(shape)
