"""Right shifters in registered steps of a 4:1 choice, ones shifted out are dropped."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Value

from rtl.pipeline import Pipe, Staged


def step_right(value: Value, amount: Value, step: int, width: int) -> Value:
    """(value at the top of `width` bits) >> amount·step, amount 0..3. Keeps `width` bits."""
    base = Cat(Const(0, width - len(value)), value) if width > len(value) else value
    choices = [Cat(base[k * step :], Const(0, k * step)) if k else base for k in range(4)]
    return Mux(
        amount[1], Mux(amount[0], choices[3], choices[2]), Mux(amount[0], choices[1], choices[0])
    )


def shift_right(
    p: Pipe,
    stage: int,
    value: Staged,
    amount: Staged,
    *,
    width: int,
    name: str,
    clear: Staged | None = None,
) -> Staged:
    """Three stages: by 0..3, by 0..12, by 0..48. `value` sits at the top of `width` bits.

    amount: at least 6 bits; bits from 6 upwards are the caller's business. `clear` at the last
    stage gives zero.
    """
    narrow = min(width, len(value.signal) + 3)
    fine = p.reg(stage, lambda at: step_right(at(value), at(amount)[:2], 1, narrow), f"{name}_fine")
    middle = min(width, narrow + 12)
    mid = p.reg(
        stage + 1, lambda at: step_right(at(fine), at(amount)[2:4], 4, middle), f"{name}_mid"
    )
    return p.reg(
        stage + 2,
        lambda at: step_right(at(mid), at(amount)[4:6], 16, width),
        f"{name}_coarse",
        clear,
    )


def step64(value: Value, wanted: Value) -> Value:
    """value >> 64 when `wanted`."""
    return Mux(wanted, Cat(value[64:], Const(0, 64)), value)


def add_with_carry(a: Value, b: Value, carry: Value) -> Value:
    """a + b + carry on one carry chain; one bit longer than the longer operand."""
    return (Cat(Const(1, 1), a) + Cat(carry, b))[1:]
