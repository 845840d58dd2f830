"""JSON as TwinScope accepts it: UTF-8, finite numbers, unique keys, bounded nesting."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from twinscope.errors import WireError

INT64_MIN, INT64_MAX, UINT64_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
MOST_CONTAINERS = 1 << 19  # an empty list costs 3 bytes of text and 64 of memory
LONGEST_INTEGER = 40  # digits; longer ones cost quadratic time to read, and fit nowhere


def parse(text: bytes | memoryview | str, *, field: str, depth: int) -> Any:
    """The JSON value of `text`. `field` names the text in errors; `depth` bounds the nesting."""
    infinite: list[str] = []  # number tokens that are no usable number, in order of appearance

    def read_float(token: str) -> float:
        value = float(token)  # `1e999` is legal JSON, and infinity in Python
        if not math.isfinite(value):
            infinite.append(token)
        return value

    def read_integer(token: str) -> float:
        if len(token) <= LONGEST_INTEGER:
            return int(token)
        infinite.append(token)
        return math.inf

    try:
        text = text if isinstance(text, str) else str(text, "utf-8")
        if text.count("[") + text.count("{") > MOST_CONTAINERS:
            fix = f"send at most {MOST_CONTAINERS} arrays and objects"
            raise WireError(field, "too many brackets", fix)
        value = json.loads(
            text,
            object_pairs_hook=_unique_pairs,
            parse_constant=read_float,
            parse_float=read_float,
            parse_int=read_integer,
        )
    except WireError:  # which is a ValueError: not to be taken for one below
        raise
    except RecursionError:
        raise WireError(field, "deep nesting", f"nest at most {depth} levels") from None
    except UnicodeDecodeError as error:
        raise WireError(field, bytes(error.object[:40]), "send UTF-8 text") from None
    except ValueError as error:
        raise WireError(field, str(error), "send valid JSON") from None
    _check_depth(value, depth, field=field)
    if infinite:
        fix = f"send finite numbers of at most {LONGEST_INTEGER} digits: no NaN, no infinity"
        raise WireError(_locate_infinite(value) or field, infinite[0], fix)
    return value


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of `pairs`; a key sent twice is refused: readers differ in which one wins."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise WireError(f"JSON key {key!r}", key, "send each key once")
            seen.add(key)
    return found


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


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """What is directly inside an object or array, with its piece of a path."""
    if isinstance(value, dict):
        return ((f".{key}", child) for key, child in value.items())
    if isinstance(value, list):
        return ((f"[{index}]", child) for index, child in enumerate(value))
    return iter(())


def _locate_infinite(value: Any) -> str:
    """The path of the first number that is not finite, such as `sampling.temperature`.

    Empty if it stands alone, or was dropped. The nesting is bounded by now: recursion is safe.
    """
    for piece, child in _children(value):
        if isinstance(child, float) and not math.isfinite(child):
            return piece.removeprefix(".")
        if deeper := _locate_infinite(child):
            dot = "" if deeper.startswith("[") else "."
            return f"{piece.removeprefix('.')}{dot}{deeper}"
    return ""
