"""The emulator's inner loops: the golden model one token at a time, compiled by numba.

Same integers as `golden` (a test holds the two together bit for bit), some forty times faster
because nothing is written back per token. Sums come in the record's own segments: 4 of 22 bits
(k3), 3 of 24 (Δ²), 2 of 23 (Δ above zero), 2 of 23 (below).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from twinscope_fpga.formats import COUNTS, MASKED_WORD, MAX_CLAMP, SENTINEL_BITS, SUMS
from twinscope_fpga.tables import coefficient_tables

SUM_WORDS = sum(entry.segments for entry in SUMS)
_TOP = int(np.float32(MAX_CLAMP).view(np.uint32))
_LOW22, _LOW23, _LOW24 = (1 << 22) - 1, (1 << 23) - 1, (1 << 24) - 1
_LOW44 = (1 << 44) - 1
_MASKED, _SENTINEL = int(MASKED_WORD), int(SENTINEL_BITS)
COUNTED, MASKED, NONFINITE, SENTINEL, POSITIVE = 1, 0, 2, 3, 4  # columns of COUNTS; 0 is received

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a step; it is written into the loop that calls it."""
    return cast(F, numba.njit(cache=True, nogil=True, inline="always")(function))


def loop(function: F) -> F:
    """Compile a loop over tokens."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))


@jit
def fate(q: int, p: int) -> int:
    """Column of COUNTS this pair belongs to (mask already handled)."""
    q_size, p_size = q & 0x7FFFFFFF, p & 0x7FFFFFFF
    if q_size >= 0x7F800000 or p_size >= 0x7F800000:
        return NONFINITE
    if (q >> 31 and q_size >= _SENTINEL) or (p >> 31 and p_size >= _SENTINEL):
        return SENTINEL
    if (not q >> 31 and q_size) or (not p >> 31 and p_size):
        return POSITIVE
    return COUNTED


@jit
def product3(x: int, y: int) -> int:
    """See golden.mul3."""
    return (x >> 14) * (y >> 10) + (
        ((((x >> 14) * (y & 0x3FF)) << 4) + (x & 0x3FFF) * (y >> 10)) >> 14
    )


@jit
def fixed_point(size: int) -> int:
    """See golden.to_fixed."""
    shift = 132 - (size >> 23)
    if shift < 0 or shift > 63 or shift == 132:
        return 0
    return (((size & 0x7FFFFF) | 0x800000) << 22) >> shift


@jit
def line(value: NDArray[np.int64], slope: NDArray[np.int64], address: int, position: int) -> int:
    """See golden.interpolate."""
    rise = slope[address] * position
    return int(2 * value[address] + (rise >> 16) + ((rise >> 15) & 1))


@jit
def halves(product: int, shift: int) -> tuple[int, int]:
    """See golden.shift_value."""
    if shift >= 88:
        return 0, 0
    up = 52 - shift
    if up < 0:
        return 0, product >> -up
    if up <= 44:
        return product >> (44 - up), (product << up) & _LOW44 if up < 28 else (
            (product & ((1 << (44 - up)) - 1)) << up
        )
    return product << (up - 44), 0


@jit
def add_square(sums: NDArray[np.int64], product: int, shift: int, flip: int) -> None:
    """Add (product << 34) >> shift to words 4..6; `flip` takes the ones' complement."""
    low, middle, high = 0, 0, 0
    if shift < 34:
        up = 34 - shift
        above = product >> (36 - up)
        below = (product & ((1 << (36 - up)) - 1)) << up
        low, middle, high = below & _LOW24, ((above & 0xFFF) << 12) | (below >> 24), above >> 12
    elif shift < 70:
        rest = product >> (shift - 34)
        low, middle = rest & _LOW24, rest >> 24
    if flip:
        low, middle, high = low ^ _LOW24, middle ^ _LOW24, high ^ _LOW24
    sums[4] += low
    sums[5] += middle
    sums[6] += high


@jit
def add_value(sums: NDArray[np.int64], high: int, low: int) -> None:
    """Add an 88-bit value to words 0..3."""
    sums[0] += low & _LOW22
    sums[1] += low >> 22
    sums[2] += high & _LOW22
    sums[3] += high >> 22


@jit
def add_estimators(
    sums: NDArray[np.int64], size: int, negative: int, tables: tuple[NDArray[np.int64], ...]
) -> None:
    """Add k3, Δ² and |Δ| of one counted token; `size` is the clamped float32 magnitude."""
    value, slope, mantissas, exponents = tables
    exponent = size >> 23
    if exponent == 0:
        return
    mantissa = (size & 0x7FFFFF) | 0x800000
    fixed = fixed_point(size)
    square = product3(mantissa << 8, mantissa << 4)
    add_square(sums, square, 264 - 2 * exponent, 0)
    side = 9 if negative else 7
    sums[side] += fixed & _LOW23
    sums[side + 1] += fixed >> 23
    if exponent < 127:
        t = line(value, slope, negative * 512 + (fixed >> 31), (fixed >> 14) & 0x1FFFF)
        high, low = halves(product3(square >> 4, t), 282 - 2 * exponent)
        add_value(sums, high, low)
        return
    address = (2 + negative) * 512 + ((fixed >> 30) & 0x1FF)
    t = line(value, slope, address, (fixed >> 13) & 0x1FFFF)
    power = negative * 128 + (fixed >> 39)
    high, low = halves(product3(mantissas[power] << 4, t), 28 - exponents[power])
    line_low, line_high = (fixed & 0x3FFFFFF) << 18, fixed >> 26
    if negative:
        low, high = low + line_low, high + line_high
    else:
        low, high = low - line_low, high - line_high
    add_value(sums, high - (1 << 14) + (low >> 44), low & _LOW44)


@jit
def add_row_kl(
    sums: NDArray[np.int64],
    size: int,
    negative: int,
    weight: int,
    tables: tuple[NDArray[np.int64], ...],
) -> None:
    """Add e^q, e^q·Δ and |q| of one counted entry; q = -weight (float32 magnitude bits)."""
    value, slope, mantissas, exponents = tables
    fixed = fixed_point(weight)
    side = 9 if negative else 7
    sums[side] += fixed & _LOW23
    sums[side + 1] += fixed >> 23
    product, squared, shift = 0, 0, 70
    if (weight >> 23) <= 132:
        power = 128 + (fixed >> 39)
        t = line(value, slope, 3 * 512 + ((fixed >> 30) & 0x1FF), (fixed >> 13) & 0x1FFFF)
        product = product3(mantissas[power] << 4, t)
        high, low = halves(product, 28 - exponents[power])
        add_value(sums, high, low)
        exponent = size >> 23
        if exponent:
            squared = product3(product >> 4, ((size & 0x7FFFFF) | 0x800000) << 4)
            shift = 136 - exponents[power] - exponent
    add_square(sums, squared, shift, negative)


@loop
def measure_chunk(
    pairs: NDArray[np.uint32],
    masked: NDArray[np.uint8],
    settings: tuple[int, int, int],
    tables: tuple[NDArray[np.int64], ...],
    sums: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> int:
    """Add every pair of one chunk to `sums` [11] and `counts` [10]; returns the largest |Δ| bits.

    pairs: [N,2] float32 words (q, p). masked: [N] or empty. settings: (mode, clamp bits, in-band
    mask). Differences are taken in float32, denormals as zero.
    """
    mode, clamp, inband = settings
    floats = pairs.view(np.float32)
    scratch = np.zeros(1, np.float32)
    bits = scratch.view(np.uint32)
    largest = 0
    for i in range(len(pairs)):
        q: Any = np.int64(pairs[i, 0])
        p: Any = np.int64(pairs[i, 1])
        counts[0] += 1
        if (len(masked) and masked[i]) or (inband and q == _MASKED):
            continue
        column = fate(q, p)
        counts[column] += 1
        if column != COUNTED:
            continue
        q_size, p_size = q & 0x7FFFFFFF, p & 0x7FFFFFFF
        left = floats[i, 1] if p_size >= 0x800000 else np.float32(0)
        right = floats[i, 0] if q_size >= 0x800000 else np.float32(0)
        scratch[0] = left - right
        word: Any = np.int64(bits[0])
        size = word & 0x7FFFFFFF
        if size < 0x800000:
            size = 0
        negative = (word >> 31) if size else 0
        largest = max(largest, size)
        counts[6] += q_size == 0
        counts[7] += p_size == 0
        counts[8] += size == 0
        counts[9] += negative
        if mode:
            add_row_kl(sums, size, negative, q_size, tables)
            continue
        if size > clamp:
            counts[5] += 1
            size = clamp
        add_estimators(sums, min(size, _TOP), negative, tables)
    return largest


def kernel_tables() -> tuple[NDArray[np.int64], ...]:
    """The coefficient tables as the tuple the loops take."""
    tables = coefficient_tables()
    return tables.value, tables.slope, tables.mantissa, tables.exponent


if len(COUNTS) != 10 or SUM_WORDS != 11:
    raise AssertionError("kernels.py is written for 10 counts and 11 sum words")
