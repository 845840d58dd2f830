"""A batch as bytes: the safetensors layout, written in pieces and read without copying.

    8 bytes      length H of the header, little-endian
    H bytes      JSON: tensor name -> dtype, shape, data_offsets; `__metadata__.twinscope` is ours
    the rest     the tensors, back to back, widest dtype first, so that all are aligned

Nothing in a body is believed: each length, offset, dtype, shape and value is checked before it is
used, and whatever is wrong ends in a WireError that names the field, the value and the fix.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinscope.errors import WireError
from twinscope.wire.batch import Batch
from twinscope.wire.header import check_header
from twinscope.wire.json_form import decode_json
from twinscope.wire.limits import Limits
from twinscope.wire.schema import (
    FIELD_BY_NAME,
    HEADER_KEY,
    ITEM_BYTES,
    SCHEMA_VERSION,
    TENSOR_BY_NAME,
)
from twinscope.wire.strict_json import parse
from twinscope.wire.tensors import build_batch, measure_axes

__all__ = [
    "decode",
    "decode_json",
    "digest",
    "encode",
    "encode_batch",
    "read_trace",
    "write_trace",
]

if TYPE_CHECKING:
    from numpy.typing import NDArray

Buffer = Any  # whatever memoryview() takes: bytes, bytearray, array.array, numpy arrays
Shape = tuple[int, ...]

LENGTH_BYTES = 8
ALIGNMENT = 8
NUMPY_DTYPES = {"I64": "<i8", "F32": "<f4", "I32": "<i4", "U8": "|u1"}
METADATA = "__metadata__"


def encode(
    header: Mapping[str, Any], tensors: Mapping[str, tuple[Buffer, Shape]]
) -> list[bytes | memoryview]:
    """The pieces of a safetensors body; their concatenation is the body, buffers are not copied.

    `header` has the fields of `schema.FIELDS` (`schema` is filled in); `tensors` maps names to a
    C-contiguous little-endian buffer of the declared dtype and its shape.
    """
    names = sorted(tensors, key=_layout_order)
    layout: dict[str, Any] = {METADATA: {HEADER_KEY: _dump_header(header)}}
    pieces: list[bytes | memoryview] = []
    end = 0
    for name in names:
        buffer, shape = tensors[name]
        piece = _piece(name, buffer, tuple(shape))
        begin, end = end, end + len(piece)
        dtype = TENSOR_BY_NAME[name].dtype
        layout[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        pieces.append(piece)
    head = json.dumps(layout, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % ALIGNMENT)
    return [len(head).to_bytes(LENGTH_BYTES, "little") + head, *pieces]


def _layout_order(name: str) -> tuple[int, str, str]:
    """Widest items first keeps every tensor aligned; then dtype and name, for equal bytes."""
    spec = TENSOR_BY_NAME.get(name)
    if spec is None:
        raise WireError(f"tensor {name!r}", name, f"tensors are {', '.join(TENSOR_BY_NAME)}")
    return -ITEM_BYTES[spec.dtype], spec.dtype, name


def _dump_header(header: Mapping[str, Any]) -> str:
    """The JSON header: declared fields in declared order, absent ones left out."""
    for name in header:
        if name not in FIELD_BY_NAME:
            raise WireError(f"header field {name!r}", name, f"use {', '.join(FIELD_BY_NAME)}")
    found = {"schema": SCHEMA_VERSION, **header}
    ordered = {name: found[name] for name in FIELD_BY_NAME if found.get(name) is not None}
    try:
        text = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()  # a lone surrogate must fail here, as a WireError
    except (TypeError, ValueError) as error:
        raise WireError("header", str(error), "send finite JSON values") from None
    return text


def _piece(name: str, buffer: Buffer, shape: Shape) -> memoryview:
    """The bytes of one tensor, as a view."""
    view = memoryview(buffer)
    needed = prod(shape) * ITEM_BYTES[TENSOR_BY_NAME[name].dtype]
    if view.nbytes != needed:
        fix = f"shape {list(shape)} of {TENSOR_BY_NAME[name].dtype} has {needed} bytes"
        raise WireError(name, f"{view.nbytes} bytes", fix)
    if not view.c_contiguous:
        raise WireError(name, "strided buffer", "send a C-contiguous buffer")
    return view.cast("B") if needed else memoryview(b"")  # an empty view cannot be cast


def decode(body: Buffer, *, limits: Limits | None = None) -> Batch:
    """The batch of a safetensors body. Arrays are read-only views of it (copies if misaligned)."""
    limits = limits or Limits()
    view = memoryview(body).toreadonly().cast("B")
    if len(view) > limits.body_bytes:
        raise WireError("body", f"{len(view)} bytes", f"send at most {limits.body_bytes} bytes")
    layout, data = _split(view, limits)
    header = check_header(_take_header(layout, limits), limits)
    shapes = {name: _check_entry(name, entry) for name, entry in layout.items()}
    measure_axes(shapes, limits)
    _check_cover(layout, len(data))
    tensors = {name: _view(data, name, layout[name], shape) for name, shape in shapes.items()}
    return build_batch(header, tensors, limits=limits)


def _split(view: memoryview, limits: Limits) -> tuple[dict[str, Any], memoryview]:
    """The parsed layout and the data that follows it."""
    if len(view) < LENGTH_BYTES:
        raise WireError("body", f"{len(view)} bytes", "send 8 bytes of header length first")
    length = int.from_bytes(view[:LENGTH_BYTES], "little")
    if length > limits.header_bytes:
        at_most = f"send at most {limits.header_bytes} bytes"
        as_json = "this is JSON: post it as application/json, name a file of it .json"
        raise WireError("header length", length, as_json if view[0] == ord("{") else at_most)
    if length > len(view) - LENGTH_BYTES:
        have = len(view) - LENGTH_BYTES
        raise WireError("header length", length, f"only {have} bytes follow: the body is cut")
    end = LENGTH_BYTES + length
    layout = parse(view[LENGTH_BYTES:end], field="header", depth=limits.depth)
    if not isinstance(layout, dict):
        raise WireError("header", layout, "send a JSON object of tensor names")
    return layout, view[end:]


def _take_header(layout: dict[str, Any], limits: Limits) -> Any:
    """Our JSON header, removed from `layout`. Some writers add `format` beside it: ignored."""
    metadata = layout.pop(METADATA, None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get(HEADER_KEY), str):
        raise WireError(METADATA, metadata, f"send a string under the key {HEADER_KEY!r}")
    for name in metadata:
        if name not in (HEADER_KEY, "format"):
            raise WireError(f"{METADATA}.{name}", name, f"send only the key {HEADER_KEY!r}")
    return parse(metadata[HEADER_KEY], field=HEADER_KEY, depth=limits.depth)


def _check_entry(name: str, entry: Any) -> Shape:
    """The shape of one layout entry: known name, declared dtype, sane numbers, right byte count."""
    spec = TENSOR_BY_NAME.get(name)
    if spec is None:
        raise WireError(f"tensor {name!r}", name, f"tensors are {', '.join(TENSOR_BY_NAME)}")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise WireError(name, entry, "send dtype, shape and data_offsets")
    if entry["dtype"] != spec.dtype:
        raise WireError(f"{name}.dtype", entry["dtype"], f"send {spec.dtype}")
    shape = _counts(f"{name}.shape", entry["shape"], len(spec.shape))
    begin, end = _counts(f"{name}.data_offsets", entry["data_offsets"], 2)
    needed = prod(shape) * ITEM_BYTES[spec.dtype]
    if end - begin != needed:
        fix = f"shape {list(shape)} of {spec.dtype} takes {needed} bytes"
        raise WireError(f"{name}.data_offsets", [begin, end], fix)
    return shape


def _counts(field: str, value: Any, length: int) -> Shape:
    """`length` integers from 0 to 2^63-1 (Python integers: their products cannot overflow)."""
    good = isinstance(value, list) and len(value) == length
    if not good or not all(type(item) is int and item >= 0 for item in value):
        raise WireError(field, value, f"send {length} non-negative integers")
    return tuple(value)


def _check_cover(layout: Mapping[str, Any], size: int) -> None:
    """The tensors cover the data exactly: no gap, no overlap, nothing behind the last."""
    at = 0
    for (begin, end), name in sorted((tuple(e["data_offsets"]), n) for n, e in layout.items()):
        if begin != at:
            fix = f"tensors follow each other without gap or overlap: start at {at}"
            raise WireError(f"{name}.data_offsets", [begin, end], fix)
        at = end
    if at != size:
        fix = f"the tensors take {at} bytes: the body is cut or has bytes behind its end"
        raise WireError("body", f"{size} bytes of data", fix)


def _view(data: memoryview, name: str, entry: Mapping[str, Any], shape: Shape) -> NDArray[Any]:
    """One tensor as a read-only array; a copy only where the writer left it misaligned."""
    import numpy as np

    dtype = np.dtype(NUMPY_DTYPES[TENSOR_BY_NAME[name].dtype])
    begin = entry["data_offsets"][0]
    if not prod(shape):
        return np.zeros(shape, dtype)
    flat = np.frombuffer(data, dtype, count=prod(shape), offset=begin)
    if not flat.flags.aligned:
        flat = flat.copy()
        flat.flags.writeable = False
    return flat.reshape(shape)


def encode_batch(batch: Batch) -> list[bytes | memoryview]:
    """The pieces of a batch that is already decoded."""
    header = {name: getattr(batch, name) for name in FIELD_BY_NAME if name != "schema"}
    if not batch.groups:
        header.pop("groups")
    return encode(header, {name: (array, array.shape) for name, array in batch.tensors.items()})


def digest(ids: Buffer) -> bytes:
    """blake2b-128 of one sample's token ids as little-endian int32: a row of `ids_digest`.

    `ids` is an int32 buffer (or its bytes), or a list or tuple of integers.
    """
    view = memoryview(array("i", ids) if isinstance(ids, (list, tuple)) else ids)
    if view.itemsize != ITEM_BYTES["I32"] and view.format != "B":
        raise WireError("ids", f"items of {view.itemsize} bytes", "send int32 ids")
    return hashlib.blake2b(view, digest_size=16).digest()


def read_trace(path: str | os.PathLike[str], *, limits: Limits | None = None) -> Batch:
    """The batch in the file at `path`, checked like any other body."""
    limits = limits or Limits()
    size = Path(path).stat().st_size
    if size > limits.body_bytes:
        raise WireError(f"file {path}", f"{size} bytes", f"at most {limits.body_bytes} bytes")
    try:
        return decode(Path(path).read_bytes(), limits=limits)
    except WireError as error:
        raise WireError(f"{path}: {error.field}", error.args[1], error.fix) from None


def write_trace(
    path: str | os.PathLike[str],
    header: Mapping[str, Any],
    tensors: Mapping[str, tuple[Buffer, Shape]],
) -> None:
    """Write a trace file; a reader sees the old file or the whole new one, never half of it."""
    pieces = encode(header, tensors)
    draft = Path(f"{os.fspath(path)}.draft")
    try:
        with open(draft, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)  # still there only if writing failed
