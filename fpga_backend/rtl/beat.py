"""One beat on its way from the stream port to the lanes."""

from __future__ import annotations

from amaranth.hdl import Cat, Signal, Value

PAIR_BITS = 64
CONTROL_NAMES = ("header", "last", "mode", "hold", "tokens", "error")


class Beat:
    """Signals of one beat: L pairs and what the filter found out about them.

    data[i]: pair of lane i, q in the low word. present: a token of the sequence (not padding);
    masked: a token that does not count. header: no tokens, lane 0 is the header word; last: the
    chunk ends here; mode, hold, tokens, error: see the header and the record's status.
    """

    def __init__(self, lanes: int, name: str) -> None:
        self.lanes = lanes
        self.valid = Signal(name=f"{name}_valid")
        self.data = [
            Signal(PAIR_BITS, name=f"{name}_data{i}", reset_less=True) for i in range(lanes)
        ]
        self.present = Signal(lanes, name=f"{name}_present")
        self.masked = Signal(lanes, name=f"{name}_masked", reset_less=True)
        for control in CONTROL_NAMES:
            setattr(self, control, Signal(name=f"{name}_{control}"))

    header: Signal
    last: Signal
    mode: Signal
    hold: Signal
    tokens: Signal
    error: Signal

    @property
    def control(self) -> Value:
        """The control bits as one word, CONTROL_NAMES from the lowest up."""
        return Cat(*(getattr(self, name) for name in CONTROL_NAMES))

    def copy(self, other: Beat) -> list[object]:
        """Statements that set every signal from `other`."""
        return [
            self.valid.eq(other.valid),
            self.present.eq(other.present),
            self.masked.eq(other.masked),
            self.control.eq(other.control),
            *(mine.eq(theirs) for mine, theirs in zip(self.data, other.data, strict=True)),
        ]
