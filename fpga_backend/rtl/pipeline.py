"""Pipeline values that know their stage, so that no value can meet one of another clock.

A `Staged` is a signal and the stage at which it is valid. `pipe.reg(stage, rule)` evaluates the
rule with every operand brought to that stage and registers the result: it is valid one stage later.
Bringing an operand forward costs flip-flops when the way is short and a ring of LUT memory when it
is long (ECP5: 16 stages of 4 bits in one distributed RAM cell).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from amaranth.hdl import Cat, Module, Signal, Value, ValueLike, unsigned
from amaranth.lib.memory import Memory

RING_FROM = 4  # delays from here on are rings
RING_MOST = 17  # ring of 16 places and an output register


@dataclass(eq=False)
class Staged:
    """A signal valid `stage` clocks after its token entered; `copies` are its delayed twins."""

    signal: Signal
    stage: int
    copies: dict[int, Signal] = field(default_factory=dict)


Reader = Callable[[Staged], Value]


class Pipe:
    """Adds registers to one module. One ring counter per ring length is shared by all rings."""

    def __init__(self, module: Module, prefix: str) -> None:
        self.module, self.prefix = module, prefix
        self._counters: dict[int, Signal] = {}
        self._rings = 0

    def source(self, value: ValueLike, stage: int, name: str) -> Staged:
        """A value from outside, valid at `stage`."""
        value = Value.cast(value)
        signal = Signal(value.shape(), name=f"{self.prefix}_{name}_s{stage}")
        self.module.d.comb += signal.eq(value)
        return Staged(signal, stage)

    def reg(
        self,
        stage: int,
        rule: Callable[[Reader], ValueLike],
        name: str,
        clear: Staged | None = None,
        *,
        keep: bool = False,
    ) -> Staged:
        """Register rule(operands at `stage`); zero when `clear` is 1 at that stage.

        keep: the tools must not merge this register with an equal one, because each of the two
        has readers of its own to lie beside.
        """
        value = Value.cast(rule(lambda staged: self.at(staged, stage)))
        shape = value.shape()
        label, attrs = f"{self.prefix}_{name}_s{stage + 1}", {"keep": 1} if keep else {}
        signal = Signal(shape, name=label, reset_less=True, attrs=attrs)
        self.module.d.sync += signal.eq(value)
        if clear is not None:
            with self.module.If(self.at(clear, stage)):
                self.module.d.sync += signal.eq(0)
        return Staged(signal, stage + 1)

    def bundle(self, stage: int, parts: dict[str, Staged]) -> Staged:
        """Several narrow values as one word, so that they share a ring. Lowest first."""
        word = Cat(*(self.at(part, stage) for part in parts.values()))
        return self.source(word, stage, "_".join(["bundle", *parts][:4]))

    def at(self, staged: Staged, stage: int) -> Signal:
        """The value delayed to `stage`."""
        if stage < staged.stage:
            raise ValueError(f"{staged.signal.name} is not ready at stage {stage}")
        if stage == staged.stage:
            return staged.signal
        if stage not in staged.copies:
            start = max((s for s in staged.copies if s < stage), default=staged.stage)
            origin = staged.copies.get(start, staged.signal)
            staged.copies[stage] = self._delay(staged, origin, start, stage)
        return staged.copies[stage]

    def _delay(self, staged: Staged, origin: Signal, start: int, stage: int) -> Signal:
        wait = stage - start
        if wait >= RING_FROM and len(origin) >= 4:
            first = min(wait, RING_MOST)
            delayed = self._ring(origin, first, f"{staged.signal.name}_d{stage}")
            staged.copies[start + first] = delayed
            return self.at(staged, stage)
        delayed = Signal(origin.shape(), name=f"{staged.signal.name}_d{start + 1}", reset_less=True)
        self.module.d.sync += delayed.eq(origin)
        staged.copies[start + 1] = delayed
        return self.at(staged, stage)

    def _ring(self, origin: Signal, wait: int, name: str) -> Signal:
        depth = wait - 1
        memory = Memory(shape=unsigned(len(origin)), depth=depth, init=[])
        self.module.submodules[f"{self.prefix}_ring{self._rings}"] = memory
        self._rings += 1
        write, read = memory.write_port(), memory.read_port(domain="comb")
        place = self._counter(depth)
        delayed = Signal(origin.shape(), name=name, reset_less=True)
        self.module.d.comb += [
            write.addr.eq(place), write.data.eq(origin), write.en.eq(1), read.addr.eq(place),
        ]  # fmt: skip
        self.module.d.sync += delayed.eq(read.data)
        return delayed

    def _counter(self, depth: int) -> Signal:
        if depth not in self._counters:
            place = Signal(range(depth), name=f"{self.prefix}_place{depth}", reset_less=True)
            self.module.d.sync += place.eq(place + 1)
            if depth & (depth - 1):
                with self.module.If(place == depth - 1):
                    self.module.d.sync += place.eq(0)
            self._counters[depth] = place
        return self._counters[depth]
