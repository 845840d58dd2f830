"""The coefficient tables of the compute core, made with decimal arithmetic (no libm anywhere).

Four quarters of 512 straight segments, T(x) ~ c0 + c1·t on each:

    quarter 0   g(+x) = (e^x - 1 - x) / x²         0 <= x < 1     T in units of 2^-28
    quarter 1   g(-x)                              0 <= x < 1     T in units of 2^-28
    quarter 2   e^{+f}                             0 <= f < 1/2   T in units of 2^-27
    quarter 3   e^{-f}                             0 <= f < 1/2   T in units of 2^-27

and the powers e^{±n/2} that carry a large argument back: mantissa (28 bits) and exponent.
The golden model, the ROMs of the RTL and the TABLE_CRC register all come from here.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from twinscope_fpga.formats import DELTA_BITS, EXP_MANTISSA_BITS, SEGMENT_INDEX_BITS

SEGMENTS = 1 << SEGMENT_INDEX_BITS
POWERS = 128  # n of e^{-n/2}: 0..127; of e^{+n/2}: 0..47 (larger never happens, filled with 1)
POWERS_UP = 48
DIGITS = 60


@dataclass(frozen=True)
class Tables:
    """All int64. `value` c0 [2048] in units of 2 T; `slope` c1 [2048] in units of 2 T per segment;
    `mantissa` [256] in units of 2^-27; `exponent` [256]. Index of the last two: sign·128 + n,
    sign 1 meaning e^{-n/2}."""

    value: NDArray[np.int64]
    slope: NDArray[np.int64]
    mantissa: NDArray[np.int64]
    exponent: NDArray[np.int64]

    @property
    def crc(self) -> int:
        """CRC-32 of all coefficients: the driver refuses a device whose TABLE_CRC differs."""
        joined = np.concatenate([self.value, self.slope, self.mantissa, self.exponent])
        return zlib.crc32(joined.astype("<i8").tobytes())


def _g(x: Decimal) -> Decimal:
    """(e^x - 1 - x) / x² by its series, |x| <= 1: Σ x^k / (k+2)!"""
    total, term, k = Decimal(0), Decimal(1) / 2, 0
    while abs(term) > Decimal(10) ** -DIGITS:
        total += term
        k += 1
        term = term * x / (k + 2)
    return total


def _function(quarter: int, x: Decimal) -> Decimal:
    """The function of a quarter at x, in units of T."""
    if quarter == 0:
        return _g(x) * 2**28
    if quarter == 1:
        return _g(-x) * 2**28
    return (x if quarter == 2 else -x).exp() * 2**27


def _segment(quarter: int, index: int) -> tuple[int, int]:
    """(c0, c1) of one segment: the chord's slope, and the value that balances the error.

    The interpolator truncates the position t, which is half a position unit on average: c0 makes
    up for it, so that the mean error stays below the resolution.
    """
    span = Decimal(1) if quarter < 2 else Decimal(1) / 2
    width = span / SEGMENTS
    start, middle, end = (
        _function(quarter, (Decimal(index) + at) * width) for at in (0, Decimal("0.5"), 1)
    )
    slope = int(((end - start) / 2).to_integral_value())
    rise = Decimal(2 * slope)
    errors = (start, middle - rise / 2, end - rise)
    balanced = (max(errors) + min(errors)) / 2 + rise / 2 ** (DELTA_BITS + 1)
    return int((balanced / 2).to_integral_value()), slope


def _power(n: int, *, down: bool) -> tuple[int, int]:
    """e^{±n/2} = mantissa · 2^(exponent - 27) with 2^27 <= mantissa < 2^28."""
    value = (Decimal(-n if down else n) / 2).exp()
    exponent = 0
    while value >= 2:
        value, exponent = value / 2, exponent + 1
    while value < 1:
        value, exponent = value * 2, exponent - 1
    mantissa = int((value * 2 ** (EXP_MANTISSA_BITS - 1)).to_integral_value())
    return mantissa, exponent


@lru_cache(maxsize=1)
def coefficient_tables() -> Tables:
    """Compute all tables (about a second, once per process)."""
    with localcontext() as context:
        context.prec = DIGITS
        lines = [_segment(quarter, index) for quarter in range(4) for index in range(SEGMENTS)]
        ups = [_power(n, down=False) if n < POWERS_UP else (1 << 27, 0) for n in range(POWERS)]
        downs = [_power(n, down=True) for n in range(POWERS)]
    value, slope = np.array(lines, dtype=np.int64).T
    mantissa, exponent = np.array(ups + downs, dtype=np.int64).T
    return Tables(*(np.ascontiguousarray(a) for a in (value, slope, mantissa, exponent)))
