"""Plain JSON values out of what hosts pass: configuration objects, numpy scalars, enums, dtypes."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

from twinscope.errors import WireError

STEP_END = 1 << 53  # steps and versions stay exact as JSON numbers and as float64
DEEPEST = 6  # levels of nesting that are kept; the service reads no more
LONGEST_TEXT = 2_000  # characters of one string


def plain_object(field: str, value: Any) -> dict[str, Any]:
    """A copy of a mapping, keys as strings, values as JSON values."""
    if not isinstance(value, Mapping):
        raise WireError(field, type(value).__name__, "pass a dict")
    return {str(key): plain_value(item) for key, item in value.items()}


def plain_value(value: Any, *, depth: int = 0) -> Any:
    """A JSON value for anything; what JSON cannot say (NaN, dtypes, objects) becomes its text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and depth < DEEPEST:
        return {str(key): plain_value(item, depth=depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) and depth < DEEPEST:
        return [plain_value(item, depth=depth + 1) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return plain_value(value.item(), depth=depth)
    text = str(value).removeprefix("torch.")[:LONGEST_TEXT]
    return text if text.replace("\n", "").replace("\t", "").isprintable() else repr(text)


def read_integer(field: str, value: Any) -> int:
    """An integer from 0 to 2^53-1; numpy and torch integers too, never booleans or floats."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < STEP_END:
        raise WireError(field, value, f"pass an integer from 0 to {STEP_END - 1}")
    return number


def read_step(value: Any) -> int:
    """A trainer step."""
    return read_integer("step", value)


def finite_scalars(values: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """Numbers by name, and the names of those that are not finite (JSON cannot carry them)."""
    finite: dict[str, float] = {}
    strange: list[str] = []
    for name, value in values.items():
        try:
            number = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError) as error:
            raise WireError(f"scalar {name!r}", value, "pass a number") from error
        if math.isfinite(number):
            finite[str(name)] = number
        else:
            strange.append(str(name))
    return finite, strange
