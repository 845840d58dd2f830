"""Checks of the JSON header: every field of `schema.FIELDS`, before any of it is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from twinscope.errors import WireError
from twinscope.wire.limits import Limits
from twinscope.wire.schema import FIELD_BY_NAME, FIELDS, SCHEMA_VERSION, SIDES
from twinscope.wire.strict_json import INT64_MIN, UINT64_MAX

STEP_END = 1 << 53  # steps and versions stay exact as JSON numbers and as float64
NAME_CHARACTERS = 200
_GROUP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# Not in free text, such as stop strings: controls (they steer terminals), lone surrogates (they
# have no UTF-8 form).
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

# Values of `sampling` that later stages compute with: (lowest, highest), null or absent is unknown.
SAMPLING_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e6),
    "top_p": (0.0, 1.0),
    "top_k": (-1, float(1 << 31)),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 1e6),
    "presence_penalty": (-1e6, 1e6),
    "frequency_penalty": (-1e6, 1e6),
}


def check_header(header: Any, limits: Limits) -> dict[str, Any]:
    """The header with every field checked on its own; absent fields stay absent."""
    if not isinstance(header, dict):
        raise WireError("header", header, "send a JSON object")
    for name in header:
        if name not in FIELD_BY_NAME:
            known = ", ".join(FIELD_BY_NAME)
            raise WireError(f"header field {name!r}", name, f"leave it out; fields are {known}")
    for spec in FIELDS:
        if spec.absent_means is None and spec.name not in header:
            raise WireError(spec.name, None, f"send it: {spec.meaning}")
    return {name: _CHECKS[name](value, limits) for name, value in header.items()}


def check_run(value: Any) -> str:
    """A run name: it appears in addresses, labels and logs."""
    run = check_name("run", value)
    if run in (".", ".."):
        raise WireError("run", run, "use a name that an address can carry")
    return run


def check_step(value: Any) -> int:
    """A trainer step, 0 <= step < 2^53."""
    return check_integer("step", value, 0, STEP_END)


def check_name(field: str, value: Any) -> str:
    """1 to 200 printable characters; also refuses lone surrogates, which no encoder accepts."""
    if not isinstance(value, str) or not 1 <= len(value) <= NAME_CHARACTERS:
        raise WireError(field, value, f"send a string of 1 to {NAME_CHARACTERS} characters")
    if not value.isprintable():
        raise WireError(field, value, "use printable characters only (no control characters)")
    return value


def check_integer(field: str, value: Any, low: int, high: int) -> int:
    """An integer, low <= value < high; true and 1.0 are not integers."""
    if type(value) is not int or not low <= value < high:
        raise WireError(field, value, f"send an integer from {low} to {high - 1}")
    return value


def _schema(value: Any, _: Limits) -> int:
    if type(value) is not int or value != SCHEMA_VERSION:
        raise WireError("schema", value, f"send schema {SCHEMA_VERSION}, the version read here")
    return value


def _side(value: Any, _: Limits) -> str:
    if not isinstance(value, str) or value not in SIDES:
        raise WireError("side", value, f"send one of {', '.join(SIDES)}")
    return value


def _sample_ids(value: Any, limits: Limits) -> tuple[str, ...]:
    ids = _array("sample_ids", value, limits.samples)
    seen: set[str] = set()
    for index, item in enumerate(ids):
        name = check_name(f"sample_ids[{index}]", item)
        if name in seen:
            raise WireError(f"sample_ids[{index}]", name, "send each sample once per batch")
        seen.add(name)
    return tuple(ids)


def _sampling(value: Any, limits: Limits) -> dict[str, Any]:
    sampling = _open_object("sampling", value, limits)
    for name, (low, high) in SAMPLING_RANGES.items():
        if sampling.get(name) is not None:
            _number(f"sampling.{name}", sampling[name], low, high)
    return sampling


def _expect(value: Any, limits: Limits) -> dict[str, int]:
    if not isinstance(value, dict):
        raise WireError("expect", value, 'send an object such as {"rollout": 512, "train": 512}')
    for side, count in value.items():
        if side not in SIDES:
            raise WireError("expect", side, f"use the sides {', '.join(SIDES)}")
        check_integer(f"expect.{side}", count, 0, 1 << 31)
    return value


def _temperatures(value: Any, limits: Limits) -> tuple[float, ...]:
    values = _array("temperatures", value, limits.temperatures)
    found = tuple(
        float(_number(f"temperatures[{k}]", item, 1e-6, 1e6)) for k, item in enumerate(values)
    )
    if len(set(found)) != len(found):
        raise WireError("temperatures", value, "send each temperature once")
    return found


def _groups(value: Any, limits: Limits) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or len(value) > limits.group_names:
        raise WireError("groups", value, f"send an object of at most {limits.group_names} names")
    return {_group_name(name): _labels(name, value[name], limits) for name in value}


def _group_name(name: str) -> str:
    if not _GROUP_NAME.fullmatch(name):
        raise WireError("groups", name, "name groups with 1 to 64 of A-Z a-z 0-9 _ . -")
    return name


def _labels(name: str, value: Any, limits: Limits) -> tuple[str, ...]:
    """S labels; few different ones, because each becomes a row of every summary."""
    labels = _array(f"groups.{name}", value, limits.samples)
    for index, label in enumerate(labels):
        if not isinstance(label, str) or len(label) > limits.label_characters:
            fix = f"send a string of at most {limits.label_characters} characters"
            raise WireError(f"groups.{name}[{index}]", label, fix)
    different = set(labels)
    if len(different) > limits.group_labels:
        fix = f"use at most {limits.group_labels} different labels"
        raise WireError(f"groups.{name}", f"{len(different)} different labels", fix)
    for label in different:
        if not label.isprintable():
            raise WireError(f"groups.{name}", label, "use printable characters only")
    return tuple(labels)


def _version_spans(value: Any, limits: Limits) -> tuple[tuple[int, int, int], ...]:
    spans = _array("version_spans", value, limits.tokens)
    return tuple(_span(f"version_spans[{i}]", span) for i, span in enumerate(spans))


def _span(field: str, span: Any) -> tuple[int, int, int]:
    if not isinstance(span, list) or len(span) != 3:
        raise WireError(field, span, "send [sample, first_token, version]")
    sample, first, version = (check_integer(field, item, 0, STEP_END) for item in span)
    return sample, first, version


def _array(field: str, value: Any, longest: int) -> list[Any]:
    if not isinstance(value, list):
        raise WireError(field, value, "send a JSON array")
    if len(value) > longest:
        raise WireError(field, f"{len(value)} entries", f"send at most {longest}")
    return value


def _number(field: str, value: Any, low: float, high: float) -> float:
    """A number, low <= value <= high; JSON true is not a number."""
    if type(value) not in (int, float) or not low <= value <= high:
        raise WireError(field, value, f"send a number from {low:g} to {high:g}")
    return float(value)


def _open_object(field: str, value: Any, limits: Limits) -> dict[str, Any]:
    """An object with free keys (fingerprints grow with the engines), bounded and encodable."""
    if not isinstance(value, dict):
        raise WireError(field, value, "send a JSON object")
    pending: list[Any] = [value]
    for count, item in enumerate(pending):  # grows while it is walked; bounded by the next line
        if count > limits.object_values or len(pending) > 4 * limits.object_values:
            fix = f"send at most {limits.object_values} values"
            raise WireError(field, "a large object", fix)
        if isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, str):
            _check_text(field, item, limits)
        elif type(item) is int and not INT64_MIN <= item <= UINT64_MAX:
            raise WireError(field, item, "send integers of 64 bits")
    return value


def _check_text(field: str, text: str, limits: Limits) -> None:
    if len(text) > limits.text_characters:
        fix = f"send strings of at most {limits.text_characters} characters"
        raise WireError(field, text[:40], fix)
    if _NO_TEXT.search(text):
        raise WireError(field, text, "use no control characters but newline and tab")


def _fingerprint(field: str) -> Callable[[Any, Limits], dict[str, Any]]:
    return lambda value, limits: _open_object(field, value, limits)


_CHECKS: Mapping[str, Callable[[Any, Limits], Any]] = {
    "schema": _schema,
    "run": lambda value, _: check_run(value),
    "step": lambda value, _: check_step(value),
    "side": _side,
    "sample_ids": _sample_ids,
    "sampling": _sampling,
    "rollout": _fingerprint("rollout"),
    "train": _fingerprint("train"),
    "expect": _expect,
    "temperatures": _temperatures,
    "groups": _groups,
    "version_spans": _version_spans,
    "part": _fingerprint("part"),
}
