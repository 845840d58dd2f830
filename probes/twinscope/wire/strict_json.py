"""JSON as TwinScope accepts it: UTF-8, finite numbers, int64 integers, unique keys, few levels."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from twinscope.errors import WireError

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def parse(text: bytes | memoryview | str, *, field: str, depth: int) -> Any:
    """The JSON value of `text`. `field` names the text in errors; `depth` bounds the nesting."""
    try:
        value = json.loads(
            text if isinstance(text, str) else str(text, "utf-8"),
            object_pairs_hook=_unique_pairs,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_int64,
        )
    except WireError as error:
        raise WireError(f"{field}: {error.field}", error.args[1], error.fix) from None
    except RecursionError:
        raise WireError(field, "deep nesting", f"nest at most {depth} levels") from None
    except UnicodeDecodeError as error:
        raise WireError(field, bytes(error.object[:40]), "send UTF-8 text") from None
    except ValueError as error:
        raise WireError(field, str(error), "send valid JSON") from None
    _check_depth(value, depth, field=field)
    return value


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of `pairs`; a key sent twice is refused: readers differ in which one wins."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise WireError("object key", key, "send each key once")
            seen.add(key)
    return found


def _refuse_constant(token: str) -> NoReturn:
    raise WireError("number", token, "JSON has no NaN or infinity: send finite numbers")


def _finite(token: str) -> float:
    """A finite float: `1e999` is a legal JSON number that Python reads as infinity."""
    value = float(token)
    if not math.isfinite(value):
        raise WireError("number", token, "send a number within the float64 range")
    return value


def _int64(token: str) -> int:
    """An int64: longer integers would overflow wherever they end."""
    value = int(token) if len(token) <= 20 else INT64_MAX + 1
    if not INT64_MIN <= value <= INT64_MAX:
        raise WireError("number", token, "send an integer within the int64 range")
    return value


def _check_depth(value: Any, depth: int, *, field: str) -> None:
    """Refuse nesting below `depth`; level by level, so the check itself cannot recurse."""
    level = [value]
    for _ in range(depth + 1):
        level = [child for parent in level for child in _containers(parent)]
        if not level:
            return
    raise WireError(field, "deep nesting", f"nest at most {depth} levels")


def _containers(value: Any) -> list[Any]:
    """The objects and arrays directly inside `value`."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return []
    return [child for child in value if isinstance(child, (dict, list))]
