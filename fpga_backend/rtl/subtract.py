"""float32 Δ = p - q for two numbers that are not positive: |q| - |p|, rounded to nearest even.

Both signs are equal, so the operation is always a true subtraction of magnitudes: no addition
path. Denormal inputs and results are zero. Stages 0 to 13.
"""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Mux, Value, signed

from rtl.pipeline import Pipe, Staged


@dataclass(frozen=True)
class Difference:
    """`size`: float32 magnitude bits (31), `negative`: Δ < 0 (0 for a zero)."""

    size: Staged
    negative: Staged


def subtract(p: Pipe, rollout: Staged, train: Staged) -> Difference:
    """`rollout`, `train`: 31-bit magnitudes at stage 0."""
    swap = p.reg(0, lambda at: at(train) > at(rollout), "swap")
    left = p.reg(0, lambda at: (at(rollout)[23:] - at(train)[23:])[:8], "left")
    right = p.reg(0, lambda at: (at(train)[23:] - at(rollout)[23:])[:8], "right")
    big = p.reg(1, lambda at: Mux(at(swap), at(train), at(rollout)), "big")
    small = p.reg(1, lambda at: Mux(at(swap), at(rollout), at(train)), "small")
    apart = p.reg(1, lambda at: Mux(at(swap), at(right), at(left)), "apart")
    aligned = _align(p, small, apart)
    gap = p.reg(
        5,
        lambda at: (Cat(Const(0, 3), at(big)[:23], at(big)[23:].any()) - at(aligned))[:27],
        "gap",
    )
    return _normalise(p, gap, big, swap)


def _align(p: Pipe, small: Staged, apart: Staged) -> Staged:
    """Mantissa of the smaller one, three guard bits, shifted right with a sticky lowest bit."""
    wide = p.reg(2, lambda at: _jam(_mantissa(at(small)), at(apart)[:2], 1), "fine")
    coarse = p.reg(3, lambda at: _jam(at(wide), at(apart)[2:4], 4), "mid")
    return p.reg(4, lambda at: _jam_last(at(coarse), at(apart)[4:]), "aligned")


def _mantissa(size: Value) -> Value:
    hidden = size[23:].any()
    return Cat(Const(0, 3), Mux(hidden, size[:23], 0), hidden)


def _jam(value: Value, amount: Value, step: int) -> Value:
    """value >> amount·step (amount 0..3), ones shifted out are or-ed into the lowest bit."""
    choices = [_jammed(value, k * step) for k in range(4)]
    return Mux(
        amount[1], Mux(amount[0], choices[3], choices[2]), Mux(amount[0], choices[1], choices[0])
    )


def _jammed(value: Value, by: int) -> Value:
    if by == 0:
        return value
    return Cat(value[: by + 1].any(), value[by + 1 :], Const(0, by))


def _jam_last(value: Value, above: Value) -> Value:
    """Shift by 16 when above is 1; by everything when above > 1."""
    gone = above[1:].any()
    shifted = Mux(above[0], _jammed(value, 16), value)
    return Mux(gone, Cat(value.any(), Const(0, 26)), shifted)


def _normalise(p: Pipe, gap: Staged, big: Staged, swap: Staged) -> Difference:
    """Shift the leading one to bit 27, round 24 bits, assemble."""
    groups = p.reg(6, lambda at: _group_flags(at(gap)), "groups")
    count = p.reg(7, lambda at: _leading_groups(at(groups)), "count")
    nonzero = p.reg(7, lambda at: at(groups).any(), "nonzero")
    coarse = p.reg(8, lambda at: _left(Cat(Const(0, 1), at(gap)), at(count)[1:], 8), "coarse")
    lowered = p.reg(
        8,
        lambda at: (Cat(at(big)[23:], Const(0, 1)) - Cat(Const(0, 2), at(count)))[:9],
        "lowered",
    )
    middle = p.reg(9, lambda at: Mux(at(count)[0], at(coarse) << 4, at(coarse))[:28], "middle")
    zeros = p.reg(9, lambda at: _leading_zeros(at(coarse), at(count)[0]), "zeros")
    exact = p.reg(10, lambda at: _left(at(middle), at(zeros), 1), "exact")
    exponent = p.reg(10, lambda at: (at(lowered) - at(zeros))[:9], "exponent")
    rounded = p.reg(11, lambda at: _round(at(exact)), "rounded")
    size = p.reg(12, lambda at: _assemble(at(exponent), at(rounded), at(nonzero)), "size")
    negative = p.reg(
        12, lambda at: at(swap) & at(nonzero) & _is_normal(at(exponent), at(rounded)), "negative"
    )
    return Difference(size, negative)


def _group_flags(gap: Value) -> Value:
    """Bit k: the k-th group of four from the top of {gap, 0} is not zero."""
    wide = Cat(Const(0, 1), gap)
    return Cat(*(wide[24 - 4 * k : 28 - 4 * k].any() for k in range(7)))


def _leading_groups(flags: Value) -> Value:
    """Number of zero groups before the first other one (0..6)."""
    result: Value = Const(6, 3)
    for k in range(5, -1, -1):
        result = Mux(flags[k], Const(k, 3), result)
    return result


def _left(value: Value, amount: Value, step: int) -> Value:
    """value << amount·step, amount 0..3, width kept."""
    width = len(value)
    choices = [Cat(Const(0, k * step), value[: width - k * step]) if k else value for k in range(4)]
    return Mux(
        amount[1], Mux(amount[0], choices[3], choices[2]), Mux(amount[0], choices[1], choices[0])
    )


def _leading_zeros(coarse: Value, one_more: Value) -> Value:
    """Zeros before the leading one of the top group (0..3), after the last shift by four."""
    top = Mux(one_more, coarse[20:24], coarse[24:28])
    return Mux(top[3], 0, Mux(top[2], 1, Mux(top[1], Const(2, 2), Const(3, 2))))


def _round(exact: Value) -> Value:
    """24-bit mantissa and carry: nearest, ties to even. exact: leading one at bit 27."""
    up = exact[3] & (exact[:3].any() | exact[4])
    return (exact[4:] + up)[:25]


def _is_normal(exponent: Value, rounded: Value) -> Value:
    raised = exponent.as_signed() + Cat(rounded[24], Const(0, 1)).as_signed()
    return raised > Const(0, signed(2))


def _assemble(exponent: Value, rounded: Value, nonzero: Value) -> Value:
    """31 bits; zero when nothing is left or the exponent falls below the normal range."""
    raised = (exponent + rounded[24])[:8]
    keep = nonzero & _is_normal(exponent, rounded)
    return Mux(keep, Cat(rounded[:23], raised), Const(0, 31))
