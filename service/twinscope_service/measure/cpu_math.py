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
def tail_of_exp(r: float) -> float:
    """e^r − 1 − r for |r| <= ln 2 / 2, from its series: nothing cancels. LLVM inlines it."""
    c = r * (1 / 3628800.0) + 1 / 362880.0
    c = c * r + 1 / 40320.0
    c = c * r + 1 / 5040.0
    c = c * r + 1 / 720.0
    c = c * r + 1 / 120.0
    c = c * r + 1 / 24.0
    c = c * r + 1 / 6.0
    c = c * r + 0.5
    return np.float64(r * r * c)


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
        out[i] = scale * (1.0 + (r + tail_of_exp(r)))


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def rho_block(d: F64, n: int, warm: F64, cool: F64, rho_m1: F64, k3: F64) -> None:
    """warm = e^{Δ/2}, cool = e^{−Δ/2}, rho_m1 = e^Δ − 1, k3 = e^Δ − 1 − Δ of d[:n], |Δ| <= 700.

    Relative errors < 1e-11. With t = Δ/2 = whole · ln 2 + r, one set of powers of r gives
    c = cosh r − 1 and s = sinh r − r, and these give e^r and e^{−r}. Where whole is 0, nothing
    cancels in k3(t) = c + s; elsewhere k3(t) > 0.05 and the difference is harmless. Then, with
    u = e^t − 1, e^Δ − 1 = u (u + 2) and k3(Δ) = u² + 2 k3(t).
    """
    for i in range(n):
        t = 0.5 * d[i]
        shifted = t * LOG2_E + ROUND
        whole = shifted - ROUND
        bits = np.float64(shifted).view(np.int64)
        up = np.int64((1023 + bits) << 52).view(np.float64)
        down = np.int64((1023 - bits) << 52).view(np.float64)
        r = t - whole * LN2_HIGH
        r = r - whole * LN2_LOW
        z = r * r
        c = z * (1 / 3628800.0) + 1 / 40320.0
        c = c * z + 1 / 720.0
        c = c * z + 1 / 24.0
        c = z * (c * z + 0.5)
        s = z * (1 / 362880.0) + 1 / 5040.0
        s = s * z + 1 / 120.0
        s = r * z * (s * z + 1 / 6.0)
        u = up * (r + (c + s)) + (up - 1.0)
        k3_half = c + s if whole == 0.0 else u - t
        warm[i] = up * (1.0 + (r + (c + s)))
        cool[i] = down * (1.0 + (c - (r + s)))
        rho_m1[i] = u * (u + 2.0)
        k3[i] = u * u + 2.0 * k3_half


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def k3_at(x: float) -> float:
    """k3 = e^Δ − 1 − Δ of one Δ, |Δ| <= 700; relative error < 1e-10.

    Δ = whole · ln 2 + r; where whole is 0 k3 is the tail of the series of e^r, which cancels
    nothing; elsewhere |Δ| > 0.34, k3 > 0.05, and the difference is harmless. LLVM inlines it and
    vectorises the loop around it; the rounding trick keeps this function's own strict flags.
    """
    shifted = x * LOG2_E + ROUND
    whole = shifted - ROUND
    r = x - whole * LN2_HIGH
    r = r - whole * LN2_LOW
    scale = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
    tail = tail_of_exp(r)
    return np.float64(tail if whole == 0.0 else scale * (r + tail) + (scale - 1.0) - x)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def k3_block(d: F64, n: int, k3: F64) -> None:
    """k3 of d[:n], see k3_at."""
    for i in range(n):
        k3[i] = k3_at(d[i])


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
