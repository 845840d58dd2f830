"""A batch as JSON, for hands and small tests: the same names as the tensors, as lists of numbers.

Header fields and tensors stand side by side in one object. A tensor along the token axis is either
flat, with `offsets`, or nested, one list per sample, and `offsets` then follow from the lengths
(prompts likewise). `ids_digest` is a list of S hexadecimal strings.
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from twinscope.errors import WireError
from twinscope.wire.batch import Batch
from twinscope.wire.header import check_header
from twinscope.wire.limits import Limits
from twinscope.wire.schema import CONTENT_TYPE, FIELD_BY_NAME, TENSOR_BY_NAME
from twinscope.wire.strict_json import INT64_MAX, INT64_MIN, parse
from twinscope.wire.tensors import build_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOAT32_MAX = 3.4028234663852886e38
NUMBER_RANGES: dict[str, tuple[float, float]] = {
    "I64": (INT64_MIN, INT64_MAX),
    "I32": (-(1 << 31), (1 << 31) - 1),
    "U8": (0, 255),
    "F32": (-FLOAT32_MAX, FLOAT32_MAX),
}
OFFSETS_OF_AXIS = {"N": "offsets", "M": "prompt_offsets"}


def decode_json(text: bytes | memoryview | str, *, limits: Limits | None = None) -> Batch:
    """The batch of a JSON body, with the same checks as `codec.decode`."""
    limits = limits or Limits()
    if len(text) > limits.json_bytes:
        fix = f"send at most {limits.json_bytes} bytes of JSON, or {CONTENT_TYPE}"
        raise WireError("body", f"{len(text)} bytes", fix)
    fields = parse(text, field="body", depth=limits.depth)
    if not isinstance(fields, dict):
        raise WireError("body", fields, "send a JSON object")
    known = {**FIELD_BY_NAME, **TENSOR_BY_NAME}
    for name in fields:
        if name not in known:
            raise WireError(f"field {name!r}", name, f"leave it out; fields are {', '.join(known)}")
    header = check_header({k: v for k, v in fields.items() if k in FIELD_BY_NAME}, limits)
    tensors = _read_tensors({k: v for k, v in fields.items() if k in TENSOR_BY_NAME})
    return build_batch(header, tensors, limits=limits)


def _read_tensors(fields: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Arrays of the declared dtypes; offsets derived from nested lists where they are absent."""
    lengths: dict[str, tuple[int, ...]] = {}  # offsets name -> length of each sample
    flat = {name: _flatten(name, value, lengths) for name, value in fields.items()}
    for name, sizes in lengths.items():
        derived = [0, *accumulate(sizes)]
        if flat.setdefault(name, derived) != derived:
            raise WireError(name, flat[name], f"the nested lists say {derived}: send one of them")
    return {name: _to_array(name, values) for name, values in flat.items()}


def _flatten(name: str, value: Any, lengths: dict[str, tuple[int, ...]]) -> list[Any]:
    """Rows without their nesting by sample; the sample lengths go into `lengths`."""
    axes = TENSOR_BY_NAME[name].shape
    if not isinstance(value, list):
        raise WireError(name, value, "send a JSON array")
    if axes == ("S", "16"):
        return [_digest_row(f"{name}[{s}]", text) for s, text in enumerate(value)]
    if axes == ("K", "N"):
        return [
            _flatten_row(f"{name}[{k}]", row, "offsets", lengths) for k, row in enumerate(value)
        ]
    if axes[0] in OFFSETS_OF_AXIS:
        return _flatten_row(name, value, OFFSETS_OF_AXIS[axes[0]], lengths)
    return value


def _flatten_row(
    field: str, row: Any, offsets: str, lengths: dict[str, tuple[int, ...]]
) -> list[Any]:
    """One row along the token axis, flat or one list per sample."""
    if not isinstance(row, list):
        raise WireError(field, row, "send a JSON array")
    if not row or not all(isinstance(item, list) for item in row):
        return row
    sizes = tuple(len(item) for item in row)
    if lengths.setdefault(offsets, sizes) != sizes:
        fix = f"another field has samples of lengths {list(lengths[offsets])}: they must agree"
        raise WireError(field, f"samples of lengths {list(sizes)}", fix)
    return list(chain.from_iterable(row))


def _digest_row(field: str, text: Any) -> list[int]:
    try:
        row = list(bytes.fromhex(text))
    except (TypeError, ValueError):
        row = []
    if len(row) != 16:
        raise WireError(field, text, "send 32 hexadecimal digits")
    return row


def _to_array(name: str, values: list[Any]) -> NDArray[Any]:
    """One tensor of the declared dtype; each number checked before numpy could round or wrap it."""
    import numpy as np

    spec = TENSOR_BY_NAME[name]
    rows = values if len(spec.shape) == 2 else [values]
    for row in rows:
        _check_numbers(name, row, spec.dtype)
    if len({len(row) for row in rows}) > 1:
        raise WireError(name, f"rows of lengths {[len(row) for row in rows]}", "send equal rows")
    dtype = {"I64": np.int64, "F32": np.float32, "I32": np.int32, "U8": np.uint8}[spec.dtype]
    array = np.array(values, dtype=dtype)
    array.flags.writeable = False
    return array


def _check_numbers(name: str, values: list[Any], dtype: str) -> None:
    low, high = NUMBER_RANGES[dtype]
    types = (int, float) if dtype == "F32" else (int,)
    for index, value in enumerate(values):
        if type(value) not in types or not low <= value <= high:
            noun = "a number" if dtype == "F32" else "an integer"
            fix = f"send {noun} from {low:g} to {high:g} ({dtype})"
            raise WireError(f"{name}[{index}]", value, fix)
