"""Lanes to one: adder trees for the segments and counts, a maximum tree for |Δ|.

Segments never carry into each other here or in the accumulators, so no carry can be lost and no
adder is longer than 48 bits; whoever reads a record adds the segments up.
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Const, Mux, Value

from rtl.pipeline import Pipe, Staged
from twinscope_fpga.formats import COUNTS, SUMS

COUNT_OF_FLAG = {
    "received": "present", "counted": "counted", "nonfinite": "nonfinite",
    "sentinel": "sentinel", "positive": "positive", "clamped": "clamped",
    "zero_rollout": "zero_rollout", "zero_train": "zero_train",
    "delta_zero": "delta_zero", "negative": "negative",
}  # fmt: skip


def split_segments(value: Value, segments: int, bits: int) -> list[Value]:
    """Cut a value, lowest segment first; the last one may be short."""
    return [value[i * bits : min((i + 1) * bits, len(value))] for i in range(segments)]


def add_tree(p: Pipe, stage: int, terms: Sequence[Staged], name: str) -> Staged:
    """Sum of all terms, one level per clock, one bit more per level."""
    level = list(terms)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [
            p.reg(stage, lambda at, a=a, b=b: at(a) + at(b), f"{name}_{len(level)}_{i}")
            for i, (a, b) in enumerate(pairs)
        ]
        stage += 1
    return level[0]


def max_tree(p: Pipe, stage: int, terms: Sequence[Staged], name: str) -> Staged:
    """Largest of all terms; a comparison and a choice per level, so two clocks each."""
    level = list(terms)
    while len(level) > 1:
        chosen = []
        for i, (a, b) in enumerate(zip(level[::2], level[1::2], strict=True)):
            label = f"{name}_{len(level)}_{i}"
            above = p.reg(stage, lambda at, a=a, b=b: at(b) > at(a), f"{label}_above")
            chosen.append(
                p.reg(
                    stage + 1,
                    lambda at, a=a, b=b, above=above: Mux(at(above), at(b), at(a)),
                    label,
                )
            )
        level, stage = chosen, stage + 2
    return level[0]


def sum_words(p: Pipe, stage: int, lanes: Sequence[dict[str, Staged]]) -> list[Staged]:
    """The 11 segment sums of one beat, in the order of formats.SUMS. Parts valid at `stage`."""
    words = []
    for entry in SUMS:
        for segment in range(entry.segments):
            terms = [
                p.source(
                    split_segments(p.at(lane[entry.name], stage), entry.segments, entry.bits)[
                        segment
                    ],
                    stage,
                    f"{entry.name}{segment}_{i}",
                )
                for i, lane in enumerate(lanes)
            ]
            words.append(add_tree(p, stage, terms, f"sum_{entry.name}{segment}"))
    return words


def count_flags(
    p: Pipe, stage: int, flags: Sequence[Staged], names: Sequence[str]
) -> dict[str, Staged]:
    """How many lanes raise each flag, one stage later (lanes are few: one look-up)."""
    counts = {}
    for name in names:
        bit = names.index(name)

        def rule(at, bit=bit):  # type: ignore[no-untyped-def]
            total: Value = Const(0, 1)
            for flag in flags:
                total = total + at(flag)[bit]
            return total[: len(flags).bit_length()]

        counts[name] = p.reg(stage, rule, f"count_{name}")
    return counts


def record_counts(counts: dict[str, Staged]) -> list[Staged]:
    """The counts in the order of formats.COUNTS."""
    return [counts[COUNT_OF_FLAG[name]] for name in COUNTS]
