"""The whole engine: input, mask filter, queue and gate, lanes, accumulators, records.

s_axis -> StreamInput -> MaskFilter -> BeatQueue => ComputeLane x L => Accumulate -> RecordOutput
              ^            (FSM)        (gate) ^    (TableRom per two)  ||            | -> m_axis
              '---- room -----------------'    '----- credits --------------------------'
s_axil -> AxiLite: settings, counters, errors          TokenOutput <====' -> m_axis_token

Reset: `rst` reaches the registers only, and starts the same 128 clocks of reset as writing 1 to
`reset` does. In these the input is shut, the lanes run empty, and each part clears what it has to
remember, through a copy of the reset of its own. Everything else needs none: a reset wired to
twenty thousand flip-flops costs more wires than the arithmetic.
"""

from __future__ import annotations

from amaranth.hdl import (
    Cat,
    ClockDomain,
    ClockSignal,
    DomainRenamer,
    Elaboratable,
    Module,
    ResetInserter,
    Signal,
)

from rtl.accumulate import Accumulate, add_stage
from rtl.axi_lite import COUNTED, PORTS, AxiLite
from rtl.beat_queue import BeatQueue
from rtl.compute_core import LATENCY, ComputeLane
from rtl.mask_filter import MaskFilter, header_slices
from rtl.pipeline import Pipe
from rtl.record_output import RecordOutput
from rtl.rom import TableRom
from rtl.stream_input import StreamInput
from rtl.token_output import TokenOutput
from twinscope_fpga.tables import coefficient_tables


def near(m: Module, source: Signal, name: str) -> Signal:
    """A register of its own for something that stands still while it is used: a copy that can lie
    beside its readers, where one register for all would be far from most of them."""
    copy = Signal(source.shape(), name=name, init=source.init, attrs={"keep": 1}, reset_less=True)
    m.d.sync += copy.eq(source)
    return copy


class Engine(Elaboratable):
    """`lanes`: 1, 2, 4, 8. `ecp5`: instantiate ECP5 multipliers. `flip`, `lost_credit`: mutants."""

    def __init__(
        self,
        *,
        lanes: int,
        ecp5: bool = False,
        record_depth: int = 512,
        token_depth: int = 16,
        flip: tuple[int, int] | None = None,
        lost_credit: int = 0,
    ) -> None:
        if lanes not in (1, 2, 4, 8):
            raise ValueError(f"lanes: got {lanes}; use 1, 2, 4 or 8")
        self.lanes, self.ecp5, self.flip = lanes, ecp5, flip
        shape = lanes | (record_depth.bit_length() - 1) << 8 | token_depth << 16
        constants = {"shape": shape, "table_crc": coefficient_tables().crc}
        self.stream = StreamInput(lanes=lanes)
        self.filter = MaskFilter(lanes=lanes)
        self.queue = BeatQueue(lanes=lanes)
        self.cores = [ComputeLane(ecp5=ecp5) for _ in range(lanes)]
        self.accumulate = Accumulate(lanes=lanes)
        self.output = RecordOutput(depth=record_depth, lost_credit=lost_credit)
        self.tokens = TokenOutput(lanes=lanes, depth=token_depth)
        self.control = AxiLite(lanes=lanes, constants=constants)

    def ports(self) -> dict[str, Signal]:
        """Port name -> signal, in the usual AXI names."""
        named = {f"s_axis_{n}": getattr(self.stream, n)
                 for n in ("tdata", "tkeep", "tuser", "tlast", "tvalid", "tready")}  # fmt: skip
        for prefix, part in (("m_axis", self.output), ("m_axis_token", self.tokens)):
            named |= {f"{prefix}_{n}": getattr(part, n)
                      for n in ("tdata", "tlast", "tvalid", "tready")}  # fmt: skip
        return named | {f"s_axil_{n}": getattr(self.control, n) for n in PORTS}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.domains.run = ClockDomain(reset_less=True)
        m.d.comb += ClockSignal("run").eq(ClockSignal())
        running = DomainRenamer("run")
        m.submodules.control = self.control
        for name in ("stream", "filter", "queue", "output", "tokens"):
            own = near(m, self.control.resetting, f"reset_{name}")
            m.submodules[name] = running(ResetInserter(own)(getattr(self, name)))
        m.submodules.accumulate = running(self.accumulate)
        m.d.comb += self.accumulate.drop.eq(near(m, self.control.resetting, "reset_accumulate"))
        for i, core in enumerate(self.cores):
            m.submodules[f"core{i}"] = running(core)
        self._connect_input(m)
        self._connect_tables(m)
        self._connect_lanes(m)
        self._connect_control(m)
        return m

    def _connect_input(self, m: Module) -> None:
        stream, mask, queue = self.stream, self.filter, self.queue
        m.d.comb += [
            stream.enable.eq(self.control.enable & ~self.control.resetting),
            stream.room.eq(queue.room),
            mask.framed.eq(self.control.framed),
            mask.valid.eq(stream.valid),
            mask.keep.eq(stream.keep),
            mask.user.eq(stream.user),
            mask.last.eq(stream.last),
            *(a.eq(b) for a, b in zip(mask.data, stream.data, strict=True)),
            *queue.beat_in.copy(mask.out),
            queue.record_credit.eq(self.output.credit),
            queue.token_credit.eq(self.tokens.credit),
            self.output.take.eq(queue.takes_record),
            self.tokens.take.eq(queue.takes_token),
        ]
        quiet = Signal(range(128))
        m.d.sync += queue.drained.eq(quiet == 127)
        with m.If(queue.passing):
            m.d.sync += quiet.eq(0)
        with m.Elif(quiet != 127):
            m.d.sync += quiet.eq(quiet + 1)

    def _connect_tables(self, m: Module) -> None:
        """One pair of ROMs for every two lanes."""
        for start in range(0, self.lanes, 2):
            cores = self.cores[start : start + 2]
            rom = TableRom(lanes=len(cores), flip=self.flip if start == 0 else None)
            m.submodules[f"rom{start // 2}"] = rom
            for i, core in enumerate(cores):
                m.d.comb += [
                    rom.line_address[i].eq(core.line_address),
                    core.line_word.eq(rom.line_word[i]),
                    rom.power_address[i].eq(core.power_address),
                    core.power_word.eq(rom.power_word[i]),
                ]

    def _connect_lanes(self, m: Module) -> None:
        beat, total, tokens = self.queue.beat_out, self.accumulate, self.tokens
        for i, core in enumerate(self.cores):
            m.d.comb += [
                Cat(core.rollout, core.train).eq(beat.data[i]),
                core.present.eq(beat.present[i]),
                core.masked.eq(beat.masked[i]),
                core.mode.eq(near(m, self.queue.mode, f"mode{i}")),
                core.clamp.eq(near(m, self.control.clamp, f"clamp{i}")),
                total.value[i].eq(core.value),
                total.square[i].eq(core.square),
                total.fixed[i].eq(core.fixed),
                total.size[i].eq(core.size),
                total.flags[i].eq(core.flags),
                tokens.value[i].eq(core.value),
                tokens.size[i].eq(core.size),
                tokens.flags[i].eq(core.flags),
            ]
        self._connect_events(m)

    def _connect_events(self, m: Module) -> None:
        """What happens when a beat reaches the end of the lanes, carried beside them."""
        beat = self.queue.beat_out
        pipe = Pipe(m, "event")
        tag = Signal(24)
        with m.If(beat.valid & beat.header):
            m.d.sync += tag.eq(header_slices(beat.data[0])["tag"])
        named = pipe.source(
            Cat(beat.valid & beat.last & ~beat.hold, beat.valid & beat.tokens & ~beat.header,
                beat.last, beat.error), 0, "events")  # fmt: skip
        tags = pipe.source(tag, 1, "tag")
        at_end = pipe.at(named, LATENCY)
        stage = add_stage(self.lanes) + 1
        late, late_tag = pipe.at(named, stage), pipe.at(tags, stage)
        m.d.comb += [
            self.accumulate.end.eq(at_end[0]),
            self.tokens.push.eq(at_end[1]),
            self.tokens.last.eq(at_end[2]),
            self.tokens.mode.eq(self.queue.mode),
            self.output.snapshot.eq(self.accumulate.snapshot),
            *(a.eq(b) for a, b in zip(self.output.sums, self.accumulate.sums, strict=True)),
            *(a.eq(b) for a, b in zip(self.output.counts, self.accumulate.counts, strict=True)),
            self.output.largest.eq(self.accumulate.largest),
        ]
        with m.If(late[0]):
            m.d.sync += [
                self.output.tag.eq(late_tag),
                self.output.status.eq(Cat(self.queue.mode, late[3])),
            ]

    def _connect_control(self, m: Module) -> None:
        control, output = self.control, self.output
        counts = self.accumulate.beat_counts
        m.d.sync += control.stall_out.eq(output.tvalid & ~output.tready)
        m.d.comb += [
            control.idle.eq(self.queue.drained & self.queue.empty & ~output.tvalid),
            control.mode.eq(self.queue.mode),
            control.errors["bad_header"].eq(self.filter.bad_header),
            control.errors["length"].eq(self.filter.length_error),
            control.errors["record_overflow"].eq(output.overflow),
            control.errors["token_overflow"].eq(self.tokens.overflow),
            control.records.eq(output.records),
            control.header.eq(self.queue.beat_out.valid & self.queue.beat_out.header),
            control.stall_in.eq(self.stream.stalled),
            *(control.beat_counts[name].eq(counts[name]) for name in ("present", *COUNTED)),
        ]
