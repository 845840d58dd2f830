"""Where the tokens of each sample are in the arrays that the host passes.

Three forms, recognised by what is passed:

ragged   a list with one 1-D array per sample. Nothing is cut: a mask only marks tokens.
flat     one 1-D array and `offsets` [S+1]; without offsets it is one sample.
padded   one 2-D array [S,T] and `mask` [S,T]. `pad` says what is cut off:

    both   (auto, for 2-D arrays) the tokens from the first to the last column whose mask is not 0.
           Zeros between them (tool output inside an answer) stay, as tokens with mask 0. A row of
           zeros is a sample without tokens.
    right  the tokens from column 0 to the last one whose mask is not 0: leading zeros are real.
    left   the tokens from the first one whose mask is not 0 to the last column.
    none   every column is a token.

Without a mask every column is a token. Nested Python lists are ragged, unless `pad` names a side.
All arrays of a call go through the same layout, in any form: padded ones are cut like the mask.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, get_args

from twinscope.arrays import Array, Pad, is_list_of_arrays, recognise
from twinscope.errors import WireError


@dataclass(frozen=True)
class Layout:
    """Lengths of S samples; for padded arrays also the columns [starts[s], stops[s])."""

    lengths: list[int]
    width: int | None = None  # T; None: no padded array is expected
    starts: list[int] | None = None
    stops: list[int] | None = None

    @property
    def samples(self) -> int:
        """S."""
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """N."""
        return sum(self.lengths)

    def offsets(self) -> memoryview:
        """int64 [S+1], format q."""
        return memoryview(array("q", accumulate(self.lengths, initial=0)))


def find_layout(values: Array, *, field: str, mask: Array, offsets: Any, pad: Pad) -> Layout:
    """The layout of a call, from its first tensor (`field`), mask and offsets."""
    if pad not in get_args(Pad):
        raise WireError("pad", pad, f"use one of {', '.join(get_args(Pad))}")
    if offsets is not None:
        return _flat(values, field, read_offsets(offsets))
    named_side = pad in ("left", "right", "both")
    if is_list_of_arrays(values) and not named_side:
        return Layout([_length(part, field, s) for s, part in enumerate(values)])
    if isinstance(values, (list, tuple)) and not values:
        return Layout([])
    shape = _shape(values, field)
    if len(shape) == 1:
        return Layout([shape[0]])
    if len(shape) == 2:
        return _padded(shape, mask, "both" if pad == "auto" else pad, field)
    fix = "pass one 1-D array per sample, [S,T] with a mask, or [N] with offsets"
    raise WireError(field, f"shape {list(shape)}", fix)


def _flat(values: Array, field: str, bounds: list[int]) -> Layout:
    shape = _shape(values, field)
    if len(shape) != 1 or bounds[-1] != shape[0]:
        fix = f"offsets end at {bounds[-1]}: pass one flat array of that length"
        raise WireError(field, f"shape {list(shape)}", fix)
    return Layout([b - a for a, b in pairwise(bounds)])


def _padded(shape: tuple[int, ...], mask: Array, pad: Pad, field: str) -> Layout:
    samples, width = shape
    if mask is None or pad == "none" or not samples or not width:
        return Layout([width] * samples, width, [0] * samples, [width] * samples)
    dialect, native = recognise(as_rows(mask), field="mask")
    if dialect.shape(native) != shape:
        fix = f"pass the mask of the response tokens, with the shape of {field}, {list(shape)}"
        raise WireError("mask", f"shape {list(dialect.shape(native))}", fix)
    starts, stops = dialect.spans(native, pad)
    return Layout([b - a for a, b in zip(starts, stops, strict=True)], width, starts, stops)


def as_rows(value: Array) -> Array:
    """Padded rows given as a list of tensors become a list of lists; anything else stays."""
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "tolist"):
        return [row.tolist() for row in value]
    return value


def read_offsets(offsets: Any, *, field: str = "offsets") -> list[int]:
    """Offsets as integers from 0, never decreasing."""
    values = list(offsets.tolist() if hasattr(offsets, "tolist") else offsets)
    good = bool(values) and all(type(value) is int for value in values) and values[0] == 0
    if not good or any(b < a for a, b in pairwise(values)):
        raise WireError(field, values[:8], "pass S+1 integers from 0 to N that never decrease")
    return values


def arrange(value: Array, layout: Layout, *, field: str) -> list[Array]:
    """The tokens of `value` in the order of the layout, as parts of one flat array."""
    if is_list_of_arrays(value):
        if layout.width is not None and _are_rows(value, layout):
            return _cut(as_rows(value), layout, field)
        _check_lengths((_length(part, field, s) for s, part in enumerate(value)), layout, field)
        return list(value)
    shape = _shape(value, field)
    if len(shape) == 2:
        return _cut(value, layout, field)
    if shape != (layout.tokens,):
        fix = f"the call has {layout.samples} samples with {layout.tokens} tokens together"
        raise WireError(field, f"shape {list(shape)}", fix)
    return [value]


def _are_rows(value: Sequence[Any], layout: Layout) -> bool:
    """Lists in a padded call are rows of T columns, or already cut to their samples' lengths."""
    return all(len(row) == layout.width for row in value)


def _cut(value: Array, layout: Layout, field: str) -> list[Array]:
    dialect, native = recognise(value, field=field)
    shape = dialect.shape(native)
    if layout.starts is None or layout.stops is None or shape != (layout.samples, layout.width):
        wanted = "1-D arrays" if layout.width is None else [layout.samples, layout.width]
        raise WireError(field, f"shape {list(shape)}", f"this call's samples are {wanted}")
    if layout.samples and all(length == layout.width for length in layout.lengths):
        return list(native) if isinstance(native, (list, tuple)) else [native.reshape(-1)]
    return dialect.cut(native, layout.starts, layout.stops)


def _check_lengths(lengths: Iterable[int], layout: Layout, field: str) -> None:
    found = list(lengths)
    if len(found) != layout.samples:
        fix = f"the call has {layout.samples} samples: pass one array for each"
        raise WireError(field, f"{len(found)} arrays", fix)
    if found != layout.lengths:
        s = next(i for i, n in enumerate(found) if n != layout.lengths[i])
        fix = f"sample {s} has {layout.lengths[s]} tokens in this call"
        raise WireError(f"{field}[{s}]", f"{found[s]} tokens", fix)


def _length(part: Array, field: str, sample: int) -> int:
    """Tokens of one sample's array."""
    shape = getattr(part, "shape", None)
    if shape is not None and len(shape) != 1:
        raise WireError(f"{field}[{sample}]", f"shape {list(shape)}", "pass one 1-D array")
    if not hasattr(part, "__len__"):
        raise WireError(f"{field}[{sample}]", part, "pass one 1-D array per sample")
    return len(part)


def _shape(value: Array, field: str) -> tuple[int, ...]:
    dialect, native = recognise(as_rows(value), field=field)
    return dialect.shape(native)
