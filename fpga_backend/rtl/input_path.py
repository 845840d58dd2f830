"""Stream input, mask filter and beat queue in a row: everything in front of the lanes."""

from __future__ import annotations

from amaranth.hdl import Cat, Elaboratable, Module, Signal

from rtl.beat import Beat
from rtl.beat_queue import BeatQueue
from rtl.mask_filter import MaskFilter
from rtl.stream_input import StreamInput


class InputPath(Elaboratable):
    """AXI4-Stream in, gated beats out. `enable`, `framed` and the credits come from outside."""

    def __init__(self, *, lanes: int) -> None:
        self.lanes = lanes
        self.stream = StreamInput(lanes=lanes)
        self.filter = MaskFilter(lanes=lanes)
        self.queue = BeatQueue(lanes=lanes)
        self.out: Beat = self.queue.beat_out

    def ports(self) -> dict[str, Signal]:
        """Port names of the bench; the input is always enabled there."""
        names = ("tdata", "tkeep", "tuser", "tlast", "tvalid", "tready")
        ports = {name: getattr(self.stream, name) for name in names}
        ports |= {n: getattr(self.queue, n) for n in ("record_credit", "token_credit", "drained")}
        ports |= {f"out_{n}": getattr(self.out, n) for n in ("valid", "present", "masked")}
        ports |= {f"out_{n}": getattr(self.out, n) for n in ("header", "last", "mode")}
        self.out_data = Signal(64 * self.lanes)
        return ports | {"framed": self.filter.framed, "out_data": self.out_data}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        stream, mask, queue = self.stream, self.filter, self.queue
        m.submodules.stream, m.submodules.filter, m.submodules.queue = stream, mask, queue
        m.d.comb += [
            stream.enable.eq(1),
            stream.room.eq(queue.room),
            mask.valid.eq(stream.valid),
            mask.keep.eq(stream.keep),
            mask.user.eq(stream.user),
            mask.last.eq(stream.last),
            *(a.eq(b) for a, b in zip(mask.data, stream.data, strict=True)),
            *queue.beat_in.copy(mask.out),
            self.out_data.eq(Cat(*self.out.data)),
        ]
        return m
