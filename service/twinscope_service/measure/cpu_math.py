"""Elementary functions over short float64 buffers, in forms that LLVM turns into vector code.

numba's math.exp is a scalar call; these loops are straight lines of multiply-adds, so a block of
tokens goes through them eight (AVX-512) or four (AVX2) at a time. Errors are relative and were
measured against float64 numpy; tests/measure/test_cpu_math.py keeps them.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from twinscope_service.measure.records import F64

# ln 2 in two parts: n·LN2_HIGH is exact for |n| < 2^20, so x − n ln 2 loses nothing
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
LOG2_E = 1.4426950408889634
ROUND = 6755399441055744.0  # 1.5 · 2^52: adding it rounds to a whole number, kept in the low bits
EXP_FLOOR = -700.0  # below, e^x is under 1e-304: the clamp keeps 2^n a normal number
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD  # √½ as float64 bits

# error_model numpy: no check for a zero divisor, which would keep a loop from being vectorised;
# `contract` allows fused multiply-add, nothing else: the rounding trick must stay as written
ELEMENTWISE = {"contract"}


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def exp_block(x: F64, n: int, out: F64) -> None:
    """out[:n] = e^x, for x <= 700; relative error < 1e-12."""
    for i in range(n):
        y = max(x[i], EXP_FLOOR)
        shifted = y * LOG2_E + ROUND
        whole = shifted - ROUND
        r = y - whole * LN2_HIGH
        r = r - whole * LN2_LOW
        scale = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
        c = r * (1 / 3628800.0) + 1 / 362880.0
        c = c * r + 1 / 40320.0
        c = c * r + 1 / 5040.0
        c = c * r + 1 / 720.0
        c = c * r + 1 / 120.0
        c = c * r + 1 / 24.0
        c = c * r + 1 / 6.0
        c = c * r + 0.5
        out[i] = scale * (1.0 + (r + r * r * c))


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def rho_block(d: F64, n: int, rho: F64, rho_m1: F64, k3: F64) -> None:
    """rho = e^Δ, rho_m1 = e^Δ − 1, k3 = e^Δ − 1 − Δ of d[:n], |Δ| <= 700; rel. errors < 1e-10.

    With Δ = whole · ln 2 + r and e^r = 1 + r + tail(r): where whole is 0, k3 is the tail itself and
    nothing cancels; elsewhere |Δ| > 0.34, k3 > 0.05, and the difference is harmless.
    """
    for i in range(n):
        x = d[i]
        shifted = x * LOG2_E + ROUND
        whole = shifted - ROUND
        r = x - whole * LN2_HIGH
        r = r - whole * LN2_LOW
        scale = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
        c = r * (1 / 3628800.0) + 1 / 362880.0
        c = c * r + 1 / 40320.0
        c = c * r + 1 / 5040.0
        c = c * r + 1 / 720.0
        c = c * r + 1 / 120.0
        c = c * r + 1 / 24.0
        c = c * r + 1 / 6.0
        c = c * r + 0.5
        tail = r * r * c
        y = scale * (r + tail) + (scale - 1.0)
        rho[i] = scale * (1.0 + (r + tail))
        rho_m1[i] = y
        k3[i] = tail if whole == 0.0 else y - x


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def log_block(x: F64, n: int, out: F64) -> None:
    """out[:n] = ln x for normal x > 0; absolute error < 1e-12.

    x = 2^e · m with m in [√½, √2): ln m = 2 artanh s, s = (m − 1)/(m + 1), |s| < 0.172.
    """
    for i in range(n):
        bits = np.float64(x[i]).view(np.int64)
        exponent = (bits - SQRT_HALF_BITS) >> 52
        m = np.int64(bits - (exponent << 52)).view(np.float64)
        s = (m - 1.0) / (m + 1.0)
        z = s * s
        c = z * (1 / 15.0) + 1 / 13.0
        c = c * z + 1 / 11.0
        c = c * z + 1 / 9.0
        c = c * z + 1 / 7.0
        c = c * z + 1 / 5.0
        c = c * z + 1 / 3.0
        out[i] = exponent * (LN2_HIGH + LN2_LOW) + 2.0 * (s + s * z * c)
