"""Bit-exact golden model of the compute core: one function per block of the pipeline, vectorised.

Everything is int64 or uint64 arithmetic with the truncations and roundings of the hardware spelled
out; numpy's float32 subtraction supplies the difference. Shapes are [N] tokens throughout.
Denormal float32 words are taken as zero, and a difference below 2^-126 is zero: the only departures
from IEEE 754.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinscope_fpga.formats import MASKED_WORD, MAX_CLAMP, SENTINEL_BITS
from twinscope_fpga.tables import coefficient_tables

U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Bools = NDArray[np.bool_]

ESTIMATORS, ROW_KL = 0, 1  # the two modes of the header
_HALF = 44  # an 88-bit value is carried as two 44-bit halves
_LOW44 = (1 << _HALF) - 1


@dataclass(frozen=True)
class TokenResults:
    """What a lane says about every token. Value = (value_high << 44 | value_low) · 2^-58."""

    counted: Bools
    masked: Bools
    nonfinite: Bools
    sentinel: Bools
    positive: Bools
    clamped: Bools
    zero_rollout: Bools
    zero_train: Bools
    delta_zero: Bools
    negative: Bools
    difference: U32  # float32 bits of the unclamped Δ
    fixed: I64  # |Δ| after the clamp in units of 2^-40; KL mode: |q|
    value_high: I64  # k3; KL mode: e^q
    value_low: I64
    square_high: I64  # Δ²; KL mode: e^q·|Δ|; high part in units of 2^(36-58)
    square_low: I64


def classify(rollout: U32, train: U32, masked: Bools) -> dict[str, Bools]:
    """One fate per token, in the order masked, nonfinite, sentinel, positive, counted."""
    nonfinite = ~masked & (_exponent_full(rollout) | _exponent_full(train))
    fate = masked | nonfinite
    sentinel = ~fate & (_is_sentinel(rollout) | _is_sentinel(train))
    fate = fate | sentinel
    positive = ~fate & (_is_positive(rollout) | _is_positive(train))
    counted = ~(fate | positive)
    return {
        "masked": masked,
        "nonfinite": nonfinite,
        "sentinel": sentinel,
        "positive": positive,
        "counted": counted,
        "zero_rollout": counted & ((rollout & 0x7FFFFFFF) == 0),
        "zero_train": counted & ((train & 0x7FFFFFFF) == 0),
    }


def _exponent_full(word: U32) -> Bools:
    found: Bools = (word & 0x7F800000) == 0x7F800000
    return found


def _is_sentinel(word: U32) -> Bools:
    found: Bools = ((word >> 31) == 1) & ((word & 0x7FFFFFFF) >= SENTINEL_BITS)
    return found


def _is_positive(word: U32) -> Bools:
    found: Bools = ((word >> 31) == 0) & ((word & 0x7FFFFFFF) != 0)
    return found


def subtract(rollout: U32, train: U32) -> U32:
    """float32 bits of Δ = p - q, round to nearest even, denormals flushed; zero is always +0."""
    q, p = _flush(rollout).view(np.float32), _flush(train).view(np.float32)
    with np.errstate(all="ignore"):
        difference = (p - q).view(np.uint32)
    return np.where((difference & 0x7F800000) == 0, np.uint32(0), difference)


def _flush(word: U32) -> U32:
    return np.where((word & 0x7F800000) == 0, np.uint32(0), word)


def to_fixed(magnitude: I64) -> I64:
    """float32 magnitude bits -> Q6.40, truncated; 0 from 64 upwards and below 2^-40."""
    exponent, mantissa = _unpack(magnitude)
    shift = 132 - exponent
    inside = (shift >= 0) & (shift < 64)
    shifted: I64 = (mantissa << 22) >> np.where(inside, shift, 0)
    return np.where(inside, shifted, 0)


def _unpack(magnitude: I64) -> tuple[I64, I64]:
    """(biased exponent, 24-bit mantissa with its hidden one; 0 for a zero)."""
    exponent = magnitude >> 23
    return exponent, np.where(exponent == 0, 0, (magnitude & 0x7FFFFF) | 0x800000)


def mul3(x: I64, y: I64) -> I64:
    """(32-bit x · 28-bit y) / 2^24 from three 18x18 products; the low·low product is left out."""
    x_high, x_low, y_high, y_low = x >> 14, x & 0x3FFF, y >> 10, y & 0x3FF
    product: I64 = x_high * y_high + (((x_high * y_low << 4) + x_low * y_high) >> 14)
    return product


def interpolate(address: I64, position: I64) -> I64:
    """T = 2·c0 + round(c1·t / 2^16), 28 bits; `address` is quarter·512 + segment."""
    tables = coefficient_tables()
    rise = tables.slope[address] * position
    value: I64 = 2 * tables.value[address] + (rise >> 16) + ((rise >> 15) & 1)
    return value


def shift_value(product: I64, shift: I64) -> tuple[I64, I64]:
    """(product << 52) >> shift as two 44-bit halves (high, low); zero from shift 88 upwards."""
    left = 52 - np.clip(shift, 0, 88)
    up, down = np.maximum(left, 0), np.maximum(-left, 0)
    wide = product.astype(np.uint64)
    low = ((wide << up.astype(np.uint64)) >> down.astype(np.uint64)).astype(np.int64) & _LOW44
    high = np.where(up <= _HALF, product >> np.maximum(_HALF - up, 0), product << (up - _HALF) % 64)
    return np.where(down > 0, 0, high), low


def shift_square(product: I64, shift: I64) -> tuple[I64, I64]:
    """(product << 34) >> shift as two 36-bit halves (high, low); zero from shift 70 upwards."""
    left = 34 - np.clip(shift, 0, 70)
    up, down = np.maximum(left, 0), np.maximum(-left, 0)
    low = ((product.astype(np.uint64) << up.astype(np.uint64)) >> down.astype(np.uint64)).astype(
        np.int64
    ) & ((1 << 36) - 1)
    return np.where(down > 0, 0, product >> (36 - up)), low


def compute(
    rollout: U32,
    train: U32,
    masked: Bools | None = None,
    *,
    mode: int = ESTIMATORS,
    clamp: float = MAX_CLAMP,
    inband_mask: bool = False,
) -> TokenResults:
    """Run every token through the core. `rollout`, `train`: float32 bit patterns, uint32 [N]."""
    masked = np.zeros(len(rollout), dtype=np.bool_) if masked is None else masked.astype(np.bool_)
    if inband_mask:
        masked = masked | (rollout == MASKED_WORD)
    fates = classify(rollout, train, masked)
    difference = subtract(rollout, train)
    magnitude = (difference & 0x7FFFFFFF).astype(np.int64)
    negative = (difference >> 31) == 1
    clamp_bits = int(np.float32(clamp).view(np.uint32))
    clamped = (magnitude > clamp_bits) & (mode == ESTIMATORS)
    used = np.where(clamped, clamp_bits, magnitude)
    core = _row_kl if mode == ROW_KL else _estimators
    weight = (rollout & 0x7FFFFFFF).astype(np.int64)
    fixed, value, square = core(used, weight, negative)
    keep = fates["counted"].astype(np.int64)
    return TokenResults(
        **fates,
        clamped=clamped & fates["counted"],
        delta_zero=fates["counted"] & (magnitude == 0),
        negative=fates["counted"] & negative,
        difference=difference,
        fixed=fixed * keep,
        value_high=value[0] * keep,
        value_low=value[1] * keep,
        square_high=square[0] * keep,
        square_low=square[1] * keep,
    )


def _estimators(
    magnitude: I64, _weight: I64, negative: Bools
) -> tuple[I64, tuple[I64, I64], tuple[I64, I64]]:
    """k3 = Δ²·g(Δ) below one, e^Δ - 1 - Δ from one upwards; and Δ². Values are clamped already."""
    magnitude = np.minimum(magnitude, int(np.float32(MAX_CLAMP).view(np.uint32)))
    exponent, mantissa = _unpack(magnitude)
    fixed = to_fixed(magnitude)
    square = mul3(mantissa << 8, mantissa << 4)
    large = exponent >= 127
    sign = negative.astype(np.int64)
    half_steps = fixed >> 39
    segment = np.where(large, (fixed >> 30) & 0x1FF, (fixed >> 31) & 0x1FF)
    position = np.where(large, (fixed >> 13) & 0x1FFFF, (fixed >> 14) & 0x1FFFF)
    t = interpolate((2 * large + sign) * 512 + segment, position)
    tables = coefficient_tables()
    power = sign * 128 + (half_steps & 127)
    first = np.where(large, tables.mantissa[power] << 4, square >> 4)
    product = mul3(first, t)
    shift = np.where(large, 28 - tables.exponent[power], 282 - 2 * exponent)
    high, low = shift_value(product, shift)
    value = _subtract_line(high, low, fixed, large=large, negative=negative)
    return fixed, value, shift_square(square, 264 - 2 * exponent)


def _subtract_line(
    high: I64, low: I64, fixed: I64, *, large: Bools, negative: Bools
) -> tuple[I64, I64]:
    """e^Δ - 1 - Δ for large |Δ|: adds -(1 + |Δ|) or |Δ| - 1 in units of 2^-58, carrying once."""
    line_low = (fixed & ((1 << 26) - 1)) << 18
    line_high = fixed >> 26
    signed_low = np.where(negative, low + line_low, low - line_low)
    carry = signed_low >> _HALF  # -1, 0 or 1
    signed_high = np.where(negative, high + line_high, high - line_high) - (1 << 14) + carry
    return np.where(large, signed_high, high), np.where(large, signed_low & _LOW44, low)


def _row_kl(
    magnitude: I64, weight: I64, _negative: Bools
) -> tuple[I64, tuple[I64, I64], tuple[I64, I64]]:
    """e^q and e^q·|Δ|; q = -`weight`. From |q| = 64 upwards e^q counts as zero."""
    tables = coefficient_tables()
    fixed = to_fixed(weight)
    vanishes = (weight >> 23) > 132
    power = 128 + (fixed >> 39)
    t = interpolate(3 * 512 + ((fixed >> 30) & 0x1FF), (fixed >> 13) & 0x1FFFF)
    product = mul3(tables.mantissa[power] << 4, t)
    high, low = shift_value(product, 28 - tables.exponent[power])
    exponent, mantissa = _unpack(magnitude)
    square = mul3(product >> 4, mantissa << 4)
    square_high, square_low = shift_square(square, 136 - tables.exponent[power] - exponent)
    keep = (~vanishes).astype(np.int64)
    return fixed, (high * keep, low * keep), (square_high * keep, square_low * keep)


def sum_tokens(results: TokenResults, *, mode: int = ESTIMATORS) -> tuple[I64, I64, int]:
    """What the accumulators hold after these tokens: (sums [11], counts [10], max |Δ| bits)."""
    keep, minus = results.counted, results.negative
    low24, low22, low23 = (1 << 24) - 1, (1 << 22) - 1, (1 << 23) - 1
    square = (
        results.square_low & low24,
        (results.square_low >> 24) | ((results.square_high & 0xFFF) << 12),
        results.square_high >> 12,
    )
    flip = np.where(minus & (mode == ROW_KL), low24, 0)
    above, below = keep & ~minus, minus
    words = (
        results.value_low & low22,
        results.value_low >> 22,
        results.value_high & low22,
        results.value_high >> 22,
        *(((part ^ flip) * keep) for part in square),
        (results.fixed & low23) * above,
        (results.fixed >> 23) * above,
        (results.fixed & low23) * below,
        (results.fixed >> 23) * below,
    )
    sums = np.array([int(word.sum()) for word in words], dtype=np.int64)
    flags = (
        np.ones(len(keep), dtype=np.bool_),
        keep,
        results.nonfinite,
        results.sentinel,
        results.positive,
        results.clamped,
        results.zero_rollout,
        results.zero_train,
        results.delta_zero,
        minus,
    )
    counts = np.array([int(flag.sum()) for flag in flags], dtype=np.int64)
    sizes = (results.difference & 0x7FFFFFFF)[keep]
    return sums, counts, int(sizes.max()) if len(sizes) else 0
