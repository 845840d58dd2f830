"""Which value of a call cannot be sent: looked for only after the copy has failed."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from twinscope.arrays import CODES, Array, DType, is_flag
from twinscope.errors import WireError

FIXES: dict[DType, str] = {
    "F32": "pass numbers, and None where one is missing",
    "I32": f"pass integers from {-(1 << 31)} to {(1 << 31) - 1}",
    "I64": f"pass integers from {-(1 << 63)} to {(1 << 63) - 1}",
    "U8": "pass True and False, or 0 and 1",
}


def blame(
    parts: Sequence[Array], dtype: DType, *, field: str, lengths: Sequence[int] | None, why: str
) -> WireError:
    """The error that names the first value that does not fit.

    `parts`: parts of one flat array; `lengths`: tokens of each sample, None for one value a sample.
    `why`: what the library said, where no value is to blame.
    """
    found = _first_misfit(parts, dtype)
    if found is None:
        return WireError(field, type(parts[0]).__name__, f"{FIXES[dtype]} ({why})")
    index, value = found
    if lengths is None:
        return WireError(f"{field}[{index}]", value, FIXES[dtype])
    stops = list(accumulate(lengths))
    sample = bisect_right(stops, index)
    token = index - (stops[sample] - lengths[sample])
    return WireError(f"{field}[{sample}][{token}]", value, FIXES[dtype])


def _first_misfit(parts: Sequence[Array], dtype: DType) -> tuple[int, Any] | None:
    """Index in the flat array, and the value."""
    at = 0
    for part in parts:
        values = part.reshape(-1).tolist() if hasattr(part, "reshape") else part
        for index, value in enumerate(values):
            if not _fits(value, dtype):
                return at + index, value
        at += len(values)
    return None


def _fits(value: Any, dtype: DType) -> bool:
    try:
        if dtype == "U8":
            return is_flag(value)
        array(CODES[dtype], [0 if value is None and dtype == "F32" else value])
    except (TypeError, ValueError, OverflowError):
        return False
    return True
