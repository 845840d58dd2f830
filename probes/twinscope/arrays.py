"""Arrays of whatever library the host uses: torch, numpy, or plain Python numbers.

Nothing is imported here: a host that passes a torch tensor has torch in `sys.modules` already.
CPU tensors of torch are read as numpy views (no copy) where numpy is loaded. Tensors on a device
come here only with a call that is too large to be copied twice: they are cast there and copied
once. Casting always happens in the source's library, so bf16 log-probs become float32 exactly as
they are.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, Protocol

from twinscope.errors import WireError

Array = Any  # a tensor, an ndarray or a sequence: libraries that may not be installed
DType = Literal["F32", "I32", "I64", "U8"]  # spelling of the wire declaration
Pad = Literal["auto", "none", "left", "right", "both"]
CODES: dict[str, Literal["f", "i", "q", "B"]] = {"F32": "f", "I32": "i", "I64": "q", "U8": "B"}
NO_FLAG = "a mask holds 0 and 1"
NUMPY_NAMES = {"F32": "float32", "I32": "int32", "I64": "int64", "U8": "uint8"}


class Dialect(Protocol):
    """What capture needs of an array library. Tensors are 1-D unless said otherwise."""

    def shape(self, value: Array) -> tuple[int, ...]:
        """Lengths of all axes."""
        ...

    def spans(self, mask: Array, pad: Pad) -> tuple[list[int], list[int]]:
        """Of each row of a [S,T] mask: the first kept column, and one past the last."""
        ...

    def cut(self, value: Array, starts: list[int], stops: list[int]) -> list[Array]:
        """Columns starts[s]:stops[s] of each row of a [S,T] array, as parts of one flat array."""
        ...

    def write(self, parts: Sequence[Array], dtype: DType, out: memoryview, *, field: str) -> None:
        """Concatenate, cast to `dtype` (U8: 1 where not zero) and copy into `out`.

        Raises WireError, or a ValueError, TypeError or OverflowError where a value does not fit.
        """
        ...


class NumpyDialect:
    """numpy arrays, and CPU tensors seen as such."""

    def shape(self, value: Array) -> tuple[int, ...]:
        """Lengths of all axes."""
        return tuple(value.shape)

    def spans(self, mask: Array, pad: Pad) -> tuple[list[int], list[int]]:
        """See `Dialect.spans`."""
        rows, width = mask.shape
        kept = (mask != 0).tobytes()  # searching bytes is several times faster than argmax
        starts, stops = [0] * rows, [0] * rows
        for s in range(rows):
            begin, end = s * width, (s + 1) * width
            first = kept.find(b"\x01", begin, end)
            if first >= 0:
                last = kept.rfind(b"\x01", begin, end) + 1 if pad in ("both", "right") else end
                starts[s] = first - begin if pad in ("both", "left") else 0
                stops[s] = last - begin
        return starts, stops

    def cut(self, value: Array, starts: list[int], stops: list[int]) -> list[Array]:
        """See `Dialect.cut`: row views, no copy."""
        return [row[a:b] for row, a, b in zip(value, starts, stops, strict=True)]

    def write(self, parts: Sequence[Array], dtype: DType, out: memoryview, *, field: str) -> None:
        """See `Dialect.write`: one pass over the source."""
        numpy = sys.modules["numpy"]
        for found in {part.dtype for part in parts}:
            _check_kind(field, dtype, kind=found.kind, found=found)
            if dtype in ("I32", "I64") and not numpy.can_cast(found, NUMPY_NAMES[dtype], "safe"):
                _check_range([part for part in parts if part.dtype == found], dtype)
        if dtype == "U8":
            for part in parts:
                if part.dtype.kind not in "iub" and ((part != 0) & (part != 1)).any():
                    raise ValueError(NO_FLAG)
            parts = [part if part.dtype.kind == "b" else part != 0 for part in parts]
        target = numpy.frombuffer(out, NUMPY_NAMES[dtype])
        flat = [part if part.ndim == 1 else part.reshape(-1) for part in parts]
        with numpy.errstate(all="ignore"):  # a float64 beyond float32 becomes inf, and is counted
            numpy.concatenate(flat, out=target, casting="unsafe")


class TorchDialect:
    """Tensors on a device, and CPU tensors where numpy is not installed."""

    def shape(self, value: Array) -> tuple[int, ...]:
        """Lengths of all axes."""
        return tuple(value.shape)

    def spans(self, mask: Array, pad: Pad) -> tuple[list[int], list[int]]:
        """See `Dialect.spans`: computed on the device, two short rows come to the host."""
        torch = sys.modules["torch"]
        kept = mask != 0
        width = kept.shape[1]
        some = kept.any(dim=1)
        zero = torch.zeros_like(some, dtype=torch.int64)
        first = kept.int().argmax(dim=1) if pad in ("both", "left") else zero
        trailing = kept.flip(1).int().argmax(dim=1) if pad in ("both", "right") else zero
        starts, stops = torch.stack([some * first, some * (width - trailing)]).tolist()
        return starts, stops

    def cut(self, value: Array, starts: list[int], stops: list[int]) -> list[Array]:
        """See `Dialect.cut`: row views, or one selection on the device, rows in order."""
        if value.device.type == "cpu":
            return [row[a:b] for row, a, b in zip(value.unbind(), starts, stops, strict=True)]
        return [self.select(value, starts, stops)]

    def select(self, value: Array, starts: list[int], stops: list[int]) -> Array:
        """`cut` in a few kernels, whatever the number of rows."""
        torch = sys.modules["torch"]
        columns = torch.arange(value.shape[1], device=value.device)
        first, last = torch.tensor([starts, stops], device=value.device).unsqueeze(2)
        return value[(columns >= first) & (columns < last)]

    def write(self, parts: Sequence[Array], dtype: DType, out: memoryview, *, field: str) -> None:
        """See `Dialect.write`: concatenated and cast on the device, then one copy to the host."""
        torch = sys.modules["torch"]
        for found in {part.dtype for part in parts}:
            kind = "c" if found.is_complex else "f" if found.is_floating_point else "i"
            _check_kind(field, dtype, kind=kind, found=found)
        wanted = getattr(torch, NUMPY_NAMES[dtype])
        with torch.no_grad():
            flat = [part if part.ndim == 1 else part.reshape(-1) for part in parts]
            target = torch.frombuffer(out, dtype=wanted)
            if dtype != "U8" and all(p.dtype == wanted and p.device.type == "cpu" for p in flat):
                torch.cat(flat, out=target)
                return
            source = flat[0] if len(flat) == 1 else torch.cat(flat)
            if dtype == "I32" and source.dtype == torch.int64 and source.numel():
                low, high = torch.stack(torch.aminmax(source)).tolist()
                _check_bounds(low, high, dtype)
            floats = dtype == "U8" and source.is_floating_point()
            if floats and bool(((source != 0) & (source != 1)).any()):
                raise ValueError(NO_FLAG)
            target.copy_((source != 0 if dtype == "U8" else source).to(wanted))


class ListDialect:
    """Lists, tuples and `array.array`s of Python numbers; slow, and needs nothing."""

    def shape(self, value: Array) -> tuple[int, ...]:
        """(S, T) for rows of equal length, (N,) for numbers. Raises WireError for ragged rows."""
        if not _is_nested(value):
            return (len(value),)
        widths = {len(row) for row in value}
        if len(widths) > 1:
            raise WireError("padded list", f"rows of {len(widths)} lengths", "pad to one length")
        return len(value), widths.pop()

    def spans(self, mask: Array, pad: Pad) -> tuple[list[int], list[int]]:
        """See `Dialect.spans`."""
        starts, stops = [], []
        for row in mask:
            kept = [column for column, value in enumerate(row) if value]
            first = kept[0] if kept and pad in ("both", "left") else 0
            last = kept[-1] + 1 if kept and pad in ("both", "right") else len(row)
            starts.append(first if kept else 0)
            stops.append(last if kept else 0)
        return starts, stops

    def cut(self, value: Array, starts: list[int], stops: list[int]) -> list[Array]:
        """See `Dialect.cut`."""
        return [row[a:b] for row, a, b in zip(value, starts, stops, strict=True)]

    def write(self, parts: Sequence[Array], dtype: DType, out: memoryview, *, field: str) -> None:
        """See `Dialect.write`. None among log-probs becomes NaN: counted as missing, never as 0."""
        numbers: array[Any] = array(CODES[dtype])
        for part in parts:
            if dtype == "U8":
                if not all(map(is_flag, set(part))):
                    raise ValueError(NO_FLAG)
                numbers.extend(1 if value else 0 for value in part)
            elif dtype == "F32":
                numbers.extend(float("nan") if value is None else value for value in part)
            else:
                numbers.extend(iter(part))  # an array of another type code is not taken as it is
        out[:] = memoryview(numbers).cast("B") if numbers else b""


NUMPY, TORCH, LISTS = NumpyDialect(), TorchDialect(), ListDialect()


def recognise(value: Array, *, field: str) -> tuple[Dialect, Array]:
    """The dialect of an array or of a list of numbers, and the array as that dialect reads it."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach()
        if numpy is None or value.device.type != "cpu" or value.dtype == torch.bfloat16:
            return TORCH, value  # numpy has no bfloat16
        return NUMPY, value.numpy()
    if isinstance(value, (list, tuple, array, range)):
        return LISTS, value
    if numpy is not None and hasattr(value, "__array__"):  # ndarrays, jax arrays, pandas columns
        return NUMPY, numpy.asarray(value)
    fix = "pass a tensor, an array or a list of numbers"
    raise WireError(field, type(value).__name__, fix)


def is_flag(value: Any) -> bool:
    """Whether a mask may hold it: integers are 0 or not 0; 0.5 of a token is not to be had."""
    return isinstance(value, Integral) or bool(value in (0, 1))


def find_dtype(value: Array) -> Any:
    """The element type that the host used, as its library has it; None for Python numbers."""
    if isinstance(value, (list, tuple)):
        return find_dtype(value[0]) if value else None
    return getattr(value, "dtype", None)


def dtype_name(dtype: Any) -> str | None:
    """Its name, e.g. bfloat16."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def is_list_of_arrays(value: Array) -> bool:
    """Whether `value` is one array per sample, rather than one array."""
    return isinstance(value, (list, tuple)) and _is_nested(value)


def _is_nested(value: Sequence[Any]) -> bool:
    if not value:
        return False
    first = value[0]
    return getattr(first, "ndim", 1 if hasattr(first, "__len__") else 0) > 0


def write_parts(parts: Sequence[Array], dtype: DType, out: memoryview, *, field: str) -> None:
    """Concatenate `parts` of any dialects into `out`, the bytes of a little-endian `dtype`."""
    shared = _shared_dialect(parts)
    if shared is not None:
        shared.write(parts, dtype, out, field=field)
        return
    known = [recognise(part, field=field) for part in parts]
    if all(dialect is known[0][0] for dialect, _ in known):
        known[0][0].write([part for _, part in known], dtype, out, field=field)
        return
    item, at = array(CODES[dtype]).itemsize, 0
    for dialect, part in known:
        size = _size(part) * item
        if size:
            dialect.write([part], dtype, out[at : at + size], field=field)
        at += size


def _shared_dialect(parts: Sequence[Array]) -> Dialect | None:
    """The dialect that takes all parts as they are: looking at each can cost more than copying."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    kinds = {type(part) for part in parts}
    if numpy is not None and kinds == {numpy.ndarray}:
        return NUMPY
    if torch is not None and kinds and all(issubclass(kind, torch.Tensor) for kind in kinds):
        return TORCH
    return None


def _size(part: Array) -> int:
    return len(part.reshape(-1)) if hasattr(part, "reshape") else len(part)


def _check_range(parts: Sequence[Array], dtype: DType) -> None:
    """Raise ValueError where a numpy array of a wider type holds what `dtype` would wrap around."""
    numpy = sys.modules["numpy"]
    whole = parts[0] if len(parts) == 1 else numpy.concatenate([part.reshape(-1) for part in parts])
    if whole.size:
        _check_bounds(int(whole.min()), int(whole.max()), dtype)


def _check_bounds(low: int, high: int, dtype: DType) -> None:
    end = 1 << (8 * array(CODES[dtype]).itemsize - 1)
    if low < -end or high >= end:
        raise ValueError(f"from {low} to {high}")


def _check_kind(field: str, dtype: DType, *, kind: str, found: object) -> None:
    """Casting 0.5 or NaN to an integer, or a complex number to a real one, invents a value."""
    wanted = "iub" if dtype in ("I32", "I64") else "iubfV"  # V: numpy's view of ml_dtypes' bf16
    if kind not in wanted:
        what = "integers" if dtype in ("I32", "I64") else "real numbers"
        raise WireError(field, f"dtype {found}", f"pass {what}")
