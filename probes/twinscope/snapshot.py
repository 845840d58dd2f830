"""Snapshot: the arguments of one call, copied as they are. What runs on the host's thread.

Every array is copied once, whole, in one go, and nothing is looked at that would cost more with
more samples: where the padding is, which values fit and what is wrong is found out later, on the
sending thread (capture.py). Lists of arrays become one array; lists of Python numbers are copied
as lists; what cannot change (numbers, strings, tuples of them) is kept. Tensors on a device are
copied to the host, which waits for the work queued before them, as `.cpu()` does.

Large masks become one byte on the way: fewer bytes to write pay for the look at each.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any

from twinscope.arrays import Array
from twinscope.errors import WireError
from twinscope.plain import plain_object
from twinscope.slabs import SMALLEST, Slab, SlabPool

IDS = frozenset({"token_ids", "prompt_ids"})
MASKS = frozenset({"mask", "prompt_mask"})
OBJECTS = frozenset({"sampling", "fingerprint", "rollout_fingerprint", "train_fingerprint"})
CONSTANTS = (type(None), bool, int, float, str, bytes, range)
I32_END = 1 << 31
NUMBER_BYTES = 32  # of a Python number that we keep alive, and its place in a list
DTYPE = attrgetter("dtype")
NOT_ARRAYS = "pass tensors in host or device memory, arrays or lists of numbers"


class Frozen(ABC):
    """A copy that is not kept in its own form. `thaw()`: the array, or the list of arrays."""

    __slots__ = ()

    @property
    @abstractmethod
    def elements(self) -> int:
        """Numbers in it."""

    @abstractmethod
    def thaw(self) -> Array:
        """What the capture reads, on the sending thread."""


@dataclass(frozen=True, slots=True)
class Bfloat16(Frozen):
    """bfloat16 values by their bits, int16. numpy has no bfloat16; torch would start threads."""

    bits: Array

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return int(self.bits.size)

    def thaw(self) -> Array:
        """float32, exact: a bfloat16 is the upper half of one."""
        numpy = sys.modules["numpy"]
        return (self.bits.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)


@dataclass(frozen=True, slots=True)
class Clipped(Frozen):
    """Integers that were clipped to int32 on their device: at a limit they may have been more."""

    values: Array  # int32

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return int(self.values.size)

    def thaw(self) -> Array:
        """As they are; with one at a limit int64, that one beyond it, for the capture to refuse."""
        numpy = sys.modules["numpy"]
        low, high = self.values == -I32_END, self.values == I32_END - 1
        if not (low.any() or high.any()):
            return self.values
        return self.values.astype(numpy.int64) - low + high


@dataclass(frozen=True, slots=True)
class Rows(Frozen):
    """One 1-D array per sample, concatenated."""

    flat: Array
    lengths: list[int]

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return sum(self.lengths)

    def thaw(self) -> list[Array]:
        """Views of the rows."""
        flat = thaw(self.flat)
        bounds = pairwise(accumulate(self.lengths, initial=0))
        return [flat[begin:end] for begin, end in bounds]


@dataclass(frozen=True, slots=True)
class Joined(Frozen):
    """One 1-D tensor per sample, concatenated. Their lengths are asked for later."""

    flat: Array
    rows: list[Any]  # the host's

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return count_elements(self.flat)

    def thaw(self) -> list[Array]:
        """Views of the rows."""
        return Rows(self.flat, list(map(sys.modules["torch"].Tensor.numel, self.rows))).thaw()


@dataclass(frozen=True, slots=True)
class Mixed(Frozen):
    """Rows that do not go together: of several libraries, types or shapes."""

    rows: list[Any]

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return sum(map(count_elements, self.rows))

    def thaw(self) -> list[Array]:
        """Each in its own way."""
        return [thaw(row) for row in self.rows]


def thaw(value: Any) -> Any:
    """The argument that `Copier.copy` was given, or one that reads the same."""
    if isinstance(value, Frozen):
        return value.thaw()
    if isinstance(value, dict):
        return {name: thaw(item) for name, item in value.items()}
    return value


def count_elements(value: Any) -> int:
    """Numbers in a copied argument; 0 for what holds none."""
    if isinstance(value, Frozen):
        return value.elements
    if isinstance(value, (list, tuple, array, range)):
        nested = bool(value) and isinstance(value[0], (list, tuple))
        return sum(map(len, value)) if nested else len(value)
    size = getattr(value, "size", 0)
    return size if isinstance(size, int) else 0  # torch without numpy has a method there


class Copier:
    """Copies the arguments of one call. `nbytes`: of the copies; `slabs`: where they are."""

    def __init__(self, pool: SlabPool) -> None:
        self._pool = pool
        self._numpy = sys.modules.get("numpy")
        self._torch = sys.modules.get("torch")
        self.slabs: list[Slab] = []
        self.nbytes = 0

    def copy(self, field: str, value: Any) -> Any:
        """The copy of one argument. Raises WireError for what no array can be made of."""
        if field in OBJECTS:
            return plain_object(field, value)
        try:
            return self._copy(field, value)
        except (TypeError, ValueError, RuntimeError) as error:  # sparse, meta, distributed ...
            if isinstance(error, WireError):
                raise
            raise WireError(field, type(value).__name__, f"{NOT_ARRAYS} ({error})") from error

    def _copy(self, field: str, value: Any) -> Any:
        if self._torch is not None and isinstance(value, self._torch.Tensor):
            return self._tensor(field, value)
        if self._numpy is not None and isinstance(value, self._numpy.ndarray):
            return self._ndarray(field, value)
        if isinstance(value, CONSTANTS):
            return value
        if isinstance(value, (list, tuple)):
            return self._sequence(field, value)
        if isinstance(value, Mapping):
            return {name: self._copy(field, item) for name, item in value.items()}
        if isinstance(value, array):
            self.nbytes += value.itemsize * len(value)
            return value[:]
        if self._numpy is not None and hasattr(value, "__array__"):
            return self._ndarray(field, self._numpy.asarray(value))
        if field == "sample_ids":  # any iterable of names
            return list(value)
        raise WireError(field, type(value).__name__, "pass a tensor, an array or a list of numbers")

    # ---- arrays ----

    def _ndarray(self, field: str, value: Array) -> Array:
        kind, dtype = value.dtype.kind, value.dtype
        # Small, or objects, text, complex numbers, which are kept for the refusal.
        if value.nbytes < SMALLEST or kind not in "iubf":
            self.nbytes += value.nbytes
            return self._numpy.array(value)  # type: ignore[union-attr]
        if field in MASKS and kind in "iu":
            target = self._empty(value.shape, bool)
            return self._numpy.not_equal(value, 0, out=target)  # type: ignore[union-attr]
        target = self._empty(value.shape, dtype)
        self._numpy.copyto(target, value)  # type: ignore[union-attr]
        return target

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Memory for a copy; large ones are warm (slabs.py)."""
        numpy: Any = self._numpy
        dtype = numpy.dtype(dtype)
        count = 1
        for length in shape:
            count *= length
        size = count * dtype.itemsize
        self.nbytes += size
        if size < SMALLEST:
            return numpy.empty(shape, dtype)
        slab = self._pool.take(size)
        self.slabs.append(slab)
        return numpy.frombuffer(slab.data, dtype, count).reshape(shape)

    def _tensor(self, field: str, value: Array) -> Array:
        torch: Any = self._torch
        if value.requires_grad:
            value = value.detach()
        if self._numpy is None:
            copied = value.to("cpu", copy=True)
            self.nbytes += copied.numel() * copied.element_size()
            return copied
        if not value.is_cpu:
            return self._device_tensor(field, value)
        if value.dtype == torch.bfloat16:
            return Bfloat16(self._ndarray("bits", value.view(torch.int16).numpy()))
        return self._ndarray(field, value.numpy())

    def _seen(self, value: Array) -> Array:
        """A tensor in the host's memory as numpy sees it, where it is loaded; no copy."""
        torch: Any = self._torch
        if self._numpy is None:
            return value
        if value.dtype == torch.bfloat16:
            return Bfloat16(value.view(torch.int16).numpy())
        return value.numpy()

    def _device_tensor(self, field: str, value: Array) -> Array:
        """Narrowed on the device, then one copy over the bus into warm memory."""
        torch: Any = self._torch
        if value.dtype == torch.bfloat16:
            return Bfloat16(self._fetch(value.view(torch.int16)))
        if field in IDS and value.dtype == torch.int64:
            return Clipped(self._fetch(value.clamp(-I32_END, I32_END - 1).to(torch.int32)))
        if field in MASKS and not value.is_floating_point() and not value.is_complex():
            value = value != 0
        return self._fetch(value)

    def _fetch(self, value: Array) -> Array:
        torch: Any = self._torch
        target = self._empty(tuple(value.shape), str(value.dtype).removeprefix("torch."))
        torch.from_numpy(target).copy_(value)
        return target

    # ---- sequences ----

    def _sequence(self, field: str, value: Sequence[Any]) -> Any:
        first = value[0] if value else None
        if isinstance(first, (list, tuple)):
            return self._nested(field, value)
        if self._torch is not None and isinstance(first, self._torch.Tensor):
            return self._tensor_rows(field, value)
        if self._numpy is not None and isinstance(first, self._numpy.ndarray):
            return self._ndarray_rows(field, value)
        if hasattr(first, "__len__") and not isinstance(first, (str, bytes)):
            return self._mixed(field, value)
        self.nbytes += NUMBER_BYTES * len(value)
        return list(value)

    def _nested(self, field: str, value: Sequence[Any]) -> Any:
        """Rows of Python numbers. Tuples are kept: their numbers cannot change."""
        if not set(map(type, value)) <= {list, tuple}:
            return self._mixed(field, value)
        self.nbytes += NUMBER_BYTES * sum(map(len, value))
        return [row[:] for row in value]

    def _mixed(self, field: str, value: Sequence[Any]) -> Mixed:
        return Mixed([self._copy(field, row) for row in value])

    def _ndarray_rows(self, field: str, value: Sequence[Any]) -> Frozen:
        """Concatenated in one pass; rows that cannot be are copied one by one."""
        numpy: Any = self._numpy
        dtype = value[0].dtype
        if set(map(type, value)) != {numpy.ndarray} or dtype.kind not in "iubf":
            return self._mixed(field, value)
        try:
            lengths = list(map(len, value))
            target = self._empty((sum(lengths),), dtype)
            numpy.concatenate(value, out=target, casting="safe")
        except (TypeError, ValueError):  # rows of wider types, or not 1-D
            return self._mixed(field, value)
        return Rows(target, lengths)

    def _tensor_rows(self, field: str, value: Sequence[Any]) -> Any:
        """As for arrays. Single numbers, one tensor each, become one array."""
        torch: Any = self._torch
        rows = list(value)
        dtype = rows[0].dtype
        widest = (torch.float32, torch.float64, torch.int64)  # what a copy loses, the wire does
        if dtype not in widest and len(set(map(DTYPE, rows))) > 1:
            return self._mixed(field, rows)
        with torch.no_grad():
            if rows[0].ndim == 0:
                return self._tensor(field, torch.stack(rows))
            try:
                flat = torch.cat(rows)
            except (TypeError, RuntimeError):  # of several devices, or not tensors
                return self._mixed(field, rows)
        if flat.ndim > 1:
            return self._mixed(field, rows)
        if flat.is_cpu:  # a copy already
            self.nbytes += flat.numel() * flat.element_size()
            return Joined(self._seen(flat), rows)
        return Joined(self._tensor(field, flat), rows)
