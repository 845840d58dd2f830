"""The compute core: every clock one pair of float32 words in, fixed-point k3, Δ² and |Δ| out.

    stage  0..13  classify; Δ = p - q in float32
          13..15  clamp; choose the argument (|Δ|, or |q| in KL mode)
          15..20  argument to Q6.40; square of the mantissa
          19..25  table line and power; T = c0 + c1·t
          25..30  product: Δ²·g(Δ) below one, e^n·e^f above; in KL mode e^q
          30..35  KL mode: e^q·|Δ|, on the multiplier that squares otherwise
          35..41  to Q30.58 and Q14.58; e^Δ - 1 - Δ above one

golden.py is this file in integers, block by block. There is no stall: a token that must not
count goes through and is cleared at the end.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value

from rtl.multiplier import Multiplier18, Product3
from rtl.pipeline import Pipe, Reader, Staged
from rtl.rom import LINE_BITS, POWER_BITS, TableRom
from rtl.shift import add_with_carry, shift_right, step64
from rtl.subtract import Difference, subtract
from twinscope_fpga.formats import FIXED_BITS, SENTINEL_BITS, SQUARE_BITS, VALUE_BITS

LATENCY = 41
FLAG_NAMES = (
    "present", "counted", "masked", "nonfinite", "sentinel", "positive",
    "clamped", "zero_rollout", "zero_train", "delta_zero", "negative",
)  # fmt: skip


class ComputeLane(Elaboratable):
    """One lane. Inputs at stage 0, outputs LATENCY clocks later; `mode` and `clamp` stand still."""

    def __init__(self, *, ecp5: bool = False) -> None:
        self.ecp5 = ecp5
        self.rollout = Signal(32)
        self.train = Signal(32)
        self.present = Signal()
        self.masked = Signal()
        self.mode = Signal()
        self.clamp = Signal(31)
        self.line_address = Signal(11)
        self.line_word = Signal(LINE_BITS)
        self.power_address = Signal(8)
        self.power_word = Signal(POWER_BITS)
        self.value = Signal(VALUE_BITS)
        self.square = Signal(SQUARE_BITS)
        self.fixed = Signal(FIXED_BITS)
        self.size = Signal(31)
        self.flags = Signal(len(FLAG_NAMES))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = Pipe(m, "lane")
        weight = p.source(self.rollout[:31], 0, "weight")
        fates = self._classify(p)
        difference = subtract(p, weight, p.source(self.train[:31], 0, "train_size"))
        over = p.reg(13, lambda at: (at(difference.size) > self.clamp) & ~self.mode, "over")
        size = p.reg(14, lambda at: Mux(at(over), self.clamp, at(difference.size)), "size_used")
        flags = self._flags(p, fates, difference, over)
        value, squared, fixed = self._datapath(m, p, weight, difference, over, size, flags)
        m.d.comb += [
            self.value.eq(p.at(value, LATENCY)),
            self.square.eq(p.at(squared, LATENCY)),
            self.fixed.eq(p.at(fixed, LATENCY)),
            self.size.eq(p.at(difference.size, LATENCY)),
            self.flags.eq(p.at(flags, LATENCY)),
        ]
        return m

    def _classify(self, p: Pipe) -> dict[str, Staged]:
        """One fate per token at stage 2 (golden.classify)."""
        q = p.reg(0, lambda _: _word_class(self.rollout), "class_q")
        t = p.reg(0, lambda _: _word_class(self.train), "class_p")
        masked = p.reg(0, lambda _: self.present & self.masked, "masked")
        live = p.reg(0, lambda _: self.present & ~self.masked, "live")
        fates = {"present": p.reg(0, lambda _: self.present, "present"), "masked": masked}

        def seen(at: Reader, bit: int) -> Value:
            return at(q)[bit] | at(t)[bit]

        rules = {
            "counted": lambda at: ~seen(at, 0) & ~seen(at, 1) & ~seen(at, 2),
            "nonfinite": lambda at: seen(at, 0),
            "sentinel": lambda at: ~seen(at, 0) & seen(at, 1),
            "positive": lambda at: ~seen(at, 0) & ~seen(at, 1) & seen(at, 2),
        }
        for name, rule in rules.items():
            fates[name] = p.reg(1, lambda at, rule=rule: at(live) & rule(at), name)
        fates["zero_rollout"] = p.reg(1, lambda at: at(q)[3], "zero_rollout")
        fates["zero_train"] = p.reg(1, lambda at: at(t)[3], "zero_train")
        return fates

    def _flags(
        self, p: Pipe, fates: dict[str, Staged], difference: Difference, over: Staged
    ) -> Staged:
        """FLAG_NAMES at stage 15; everything from `clamped` on is of counted tokens only."""
        early = p.bundle(2, fates)
        names = list(fates)

        def rule(at: Reader) -> Value:
            fate = {name: at(early)[i] for i, name in enumerate(names)}
            counted = fate["counted"]
            of_counted = {
                "clamped": at(over),
                "zero_rollout": fate["zero_rollout"],
                "zero_train": fate["zero_train"],
                "delta_zero": at(difference.size) == 0,
                "negative": at(difference.negative),
            }
            return Cat(
                *(
                    (counted & of_counted[name]) if name in of_counted else fate[name]
                    for name in FLAG_NAMES
                )
            )

        return p.reg(14, rule, "flags")

    def _datapath(
        self, m: Module, p: Pipe, weight: Staged, difference: Difference,
        over: Staged, size: Staged, flags: Staged,
    ) -> tuple[Staged, Staged, Staged]:  # fmt: skip
        """(value, square, fixed) at stage 41."""
        argument = p.reg(
            14,
            lambda at: Mux(self.mode, at(weight), Mux(at(over), self.clamp, at(difference.size))),
            "argument",
        )
        large = p.reg(
            15, lambda at: self.mode | at(argument)[30] | at(argument)[23:30].all(), "large"
        )
        turned = p.reg(13, lambda at: at(difference.negative) | self.mode, "turned")
        vanish = p.reg(15, lambda at: self.mode & (at(argument)[23:] > 132), "vanish")
        fixed = self._to_fixed(p, argument)
        t = self._interpolate(m, p, fixed, large, turned)
        mantissa, power = self._power(p, fixed, turned)
        exponent = p.source(size.signal[23:], 15, "size_exponent")
        product, plain, weighted = self._products(m, p, size, t, mantissa, large)
        kills = [
            p.reg(39, lambda at: ~at(flags)[1], f"kill_{name}", keep=True)
            for name in ("value", "square", "fixed")
        ]
        value = self._value(p, product, self._value_amount(p, exponent, power, large), vanish)
        line, carry = self._line(p, large, fixed, turned)
        value = self._add_line(p, value, line, carry, kills[0])
        amount = self._square_amount(p, exponent, power)
        squared = self._square(p, plain, weighted, amount, flags, (vanish, kills[1]))
        return value, squared, p.reg(40, lambda at: at(fixed), "fixed_out", clear=kills[2])

    def _to_fixed(self, p: Pipe, argument: Staged) -> Staged:
        """Q6.40 at stage 19 (golden.to_fixed)."""
        amount = p.reg(15, lambda at: (Const(132, 8) - at(argument)[23:])[:8], "amount")
        mantissa = p.reg(15, lambda at: _mantissa(at(argument)), "argument_mantissa")
        outside = p.reg(16, lambda at: at(amount)[6:].any(), "outside")
        return shift_right(p, 16, mantissa, amount, width=FIXED_BITS, name="fixed", clear=outside)

    def _interpolate(
        self, m: Module, p: Pipe, fixed: Staged, large: Staged, turned: Staged
    ) -> Staged:
        """T at stage 25: address 20, word 21, product 24 (golden.interpolate)."""
        address = p.reg(
            19,
            lambda at: Cat(
                Mux(at(large), at(fixed)[30:39], at(fixed)[31:40]), at(turned), at(large)
            ),
            "line_address",
        )
        position = p.reg(
            19, lambda at: Mux(at(large), at(fixed)[13:30], at(fixed)[14:31]), "position"
        )
        word = p.source(self.line_word, 21, "line_word")
        block = Multiplier18(is_signed=True, ecp5=self.ecp5)
        m.submodules.slope = block
        m.d.comb += [
            self.line_address.eq(p.at(address, 20)),
            block.a.eq(p.at(word, 21)[27:45]),
            block.b.eq(p.at(position, 21)),
        ]
        rise = p.source(block.product, 24, "rise")
        base = p.reg(21, lambda at: at(word)[:27], "base")
        return p.reg(
            24,
            lambda at: (Cat(Const(1, 2), at(base)) + at(rise)[15:36].as_signed())[1:29],
            "t",
        )

    def _power(self, p: Pipe, fixed: Staged, turned: Staged) -> tuple[Staged, Staged]:
        """(mantissa, exponent) of e^{±n/2} at stage 22."""
        address = p.reg(19, lambda at: Cat(at(fixed)[39:46], at(turned)), "power_address")
        p.module.d.comb += self.power_address.eq(p.at(address, 20))
        word = p.source(self.power_word, 21, "power_word")
        mantissa = p.reg(21, lambda at: at(word)[:28], "power_mantissa")
        exponent = p.reg(21, lambda at: at(word)[28:36], "power_exponent")
        return mantissa, exponent

    def _products(
        self, m: Module, p: Pipe, size: Staged, t: Staged, power: Staged, large: Staged
    ) -> tuple[Staged, Staged, Staged]:
        """(A·T at stage 30, square at 20, e^q·|Δ| at 35); A is Δ² or a power of e."""
        first = Product3(m, "first", ecp5=self.ecp5)
        second = Product3(m, "second", ecp5=self.ecp5)
        mantissa = p.source(_mantissa(size.signal), 15, "size_mantissa")
        product = second.result(p, 25, "product")
        square = first.result(p, 15, "square")
        m.d.comb += [
            first.x.eq(Mux(self.mode, p.at(product, 30)[4:], Cat(Const(0, 8), p.at(mantissa, 15)))),
            first.y.eq(Cat(Const(0, 4), Mux(self.mode, p.at(mantissa, 30), p.at(mantissa, 15)))),
        ]
        chosen = p.reg(
            22,
            lambda at: Mux(at(large), Cat(Const(0, 4), at(power)), at(square)[4:]),
            "chosen",
        )
        m.d.comb += [second.x.eq(p.at(chosen, 25)), second.y.eq(p.at(t, 25))]
        return product, square, first.result(p, 30, "weighted")

    def _value_amount(self, p: Pipe, exponent: Staged, power: Staged, large: Staged) -> Staged:
        """9-bit right shift of the product at stage 24."""
        small = p.reg(
            22, lambda at: (Const(282, 9) - Cat(Const(0, 1), at(exponent)))[:9], "small_amount"
        )
        raised = p.reg(22, lambda at: (Const(28, 9) - at(power).as_signed())[:9], "raised_amount")
        return p.reg(23, lambda at: Mux(at(large), at(raised), at(small)), "value_amount")

    def _square_amount(self, p: Pipe, exponent: Staged, power: Staged) -> Staged:
        """9-bit right shift from the top of 72 bits, stage 24: 266 - 2e; KL mode 138 - x - e."""
        first = p.reg(
            22,
            lambda at: (
                Mux(self.mode, Const(138, 9), Const(266, 9))
                - Mux(self.mode, at(power).as_signed(), at(exponent))
            )[:9],
            "square_first",
        )
        return p.reg(23, lambda at: (at(first) - at(exponent))[:9], "square_amount")

    def _value(self, p: Pipe, product: Staged, amount: Staged, vanish: Staged) -> Staged:
        """The product in Q30.58 at stage 39 (golden.shift_value)."""
        packed = p.reg(
            24, lambda at: Cat(at(amount)[:7], at(amount)[7:].any() | at(vanish)), "value_shift"
        )
        coarse = shift_right(p, 35, product, packed, width=VALUE_BITS, name="value")
        clear = p.source(p.at(packed, 38)[7], 38, "value_gone")
        return p.reg(38, lambda at: step64(at(coarse), at(packed)[6]), "shifted", clear=clear)

    def _line(self, p: Pipe, large: Staged, fixed: Staged, turned: Staged) -> tuple[Staged, Staged]:
        """-(1 + |Δ|) or |Δ| - 1 at stage 39, 48 bits of 2^-40, ones' complement plus carry."""
        active = p.reg(16, lambda at: at(large) & ~self.mode, "line_active")
        controls = p.bundle(17, {"active": active, "turned": turned, "a": active, "b": active})

        def rule(at: Reader) -> Value:
            falling = at(controls)[1]
            whole = Cat(at(fixed)[40:46], Const(0, 2))
            whole = (Mux(falling, whole, ~whole) - 1)[:8]
            fraction = Mux(falling, at(fixed)[:40], ~at(fixed)[:40])
            return Cat(fraction, whole)

        idle = p.source(~p.at(controls, 38)[0], 38, "line_idle")
        line = p.reg(38, rule, "line", clear=idle)
        carry = p.reg(38, lambda at: at(controls)[0] & ~at(controls)[1], "line_carry")
        return line, carry

    def _add_line(
        self, p: Pipe, shifted: Staged, line: Staged, carry: Staged, kill: Staged
    ) -> Staged:
        """shifted + line at stage 41, in two halves of 35 bits (golden._subtract_line)."""
        low = p.reg(
            39,
            lambda at: add_with_carry(at(shifted)[18:53], at(line)[:35], at(carry))[:36],
            "value_low",
        )

        def rule(at: Reader) -> Value:
            top = Cat(at(line)[35:], at(line)[47].replicate(22))
            high = add_with_carry(at(shifted)[53:], top, at(low)[35])[:35]
            return Cat(at(shifted)[:18], at(low)[:35], high)

        return p.reg(40, rule, "value", clear=kill)

    def _square(
        self, p: Pipe, plain: Staged, weighted: Staged, amount: Staged,
        flags: Staged, gone: tuple[Staged, Staged],
    ) -> Staged:  # fmt: skip
        """Δ² (or e^q·Δ) in Q14.58 at stage 41 (golden.shift_square)."""
        vanish, kill = gone
        packed = p.reg(
            24, lambda at: Cat(at(amount)[:7], at(amount)[7:].any() | at(vanish)), "square_shift"
        )
        chosen = p.reg(35, lambda at: Mux(self.mode, at(weighted), at(plain)), "square_chosen")
        coarse = shift_right(p, 36, chosen, packed, width=SQUARE_BITS, name="square")
        clear = p.source(p.at(packed, 39)[7], 39, "square_gone")
        shifted = p.reg(
            39, lambda at: step64(at(coarse), at(packed)[6]), "square_shifted", clear=clear
        )
        flip = p.reg(39, lambda at: self.mode & at(flags)[10], "square_flip")
        return p.reg(
            40, lambda at: at(shifted) ^ at(flip).replicate(SQUARE_BITS), "squared", clear=kill
        )


class LaneWithTables(Elaboratable):
    """One lane with ROMs of its own, for the bench of the core."""

    def __init__(self, *, flip: tuple[int, int] | None = None) -> None:
        self.lane = ComputeLane()
        self.flip = flip  # a table bit to corrupt, for the mutation tests

    def ports(self) -> dict[str, Signal]:
        """Everything but the table ports."""
        names = ("rollout", "train", "present", "masked", "mode", "clamp")
        names += ("value", "square", "fixed", "size", "flags")
        return {name: getattr(self.lane, name) for name in names}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lane, rom = self.lane, TableRom(lanes=1, flip=self.flip)
        m.submodules.lane, m.submodules.rom = lane, rom
        m.d.comb += [
            rom.line_address[0].eq(lane.line_address),
            lane.line_word.eq(rom.line_word[0]),
            rom.power_address[0].eq(lane.power_address),
            lane.power_word.eq(rom.power_word[0]),
        ]
        return m


def _word_class(word: Value) -> Value:
    """(nonfinite, sentinel, positive, zero) of one float32 word."""
    exponent, low = word[23:31], word[:31]
    at_least_1000 = (exponent > 136) | ((exponent == 136) & (low[:23] >= SENTINEL_BITS & 0x7FFFFF))
    return Cat(exponent.all(), word[31] & at_least_1000, ~word[31] & low.any(), ~low.any())


def _mantissa(size: Value) -> Value:
    """24 bits with the hidden one; a zero or denormal keeps only bits that later stages drop."""
    return Cat(size[:23], size[23:].any())
