"""AXI4-Lite slave: the registers of twinscope_fpga.registers, counters and sticky errors.

One transaction of each kind at a time. Reading an address without a register gives 0xDEADDEAD and
SLVERR; writing one, or a read-only one, gives SLVERR and changes nothing.
"""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Elaboratable, Module, Mux, Signal, Value

from twinscope_fpga.registers import (
    ERROR_BITS,
    OFFSET,
    REGISTERS,
    UNMAPPED,
)

ADDRESS_BITS = 12
OKAY, SLVERR = 0, 2
RESET_CLOCKS = 128
PORTS = {
    "awaddr": ADDRESS_BITS, "awvalid": 1, "awready": 1,
    "wdata": 32, "wstrb": 4, "wvalid": 1, "wready": 1,
    "bresp": 2, "bvalid": 1, "bready": 1,
    "araddr": ADDRESS_BITS, "arvalid": 1, "arready": 1,
    "rdata": 32, "rresp": 2, "rvalid": 1, "rready": 1,
}  # fmt: skip
COUNTED = ("masked", "nonfinite", "sentinel", "positive", "clamped")


class AxiLite(Elaboratable):
    """s_axil_* on one side; settings out and events in on the other."""

    def __init__(self, *, lanes: int, constants: dict[str, int]) -> None:
        self.lanes, self.constants = lanes, constants
        for name, bits in PORTS.items():
            setattr(self, name, Signal(bits, name=name))
        self.writing = Signal()  # a write was taken, its answer comes in the next clock
        self.reading = Signal()
        self.enable = Signal()
        self.framed = Signal()
        self.resetting = Signal()
        self.clamp = Signal(31, init=0x41A00000)
        self.idle = Signal()
        self.mode = Signal()
        self.errors = {name: Signal(name=f"error_{name}") for name, _ in ERROR_BITS}
        self.records = Signal(32)
        self.header = Signal()
        self.stall_in = Signal()
        self.stall_out = Signal()
        names = ("present", *COUNTED)
        self.beat_counts = {name: Signal(range(lanes + 1), name=f"beat_{name}") for name in names}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        write = self._write_channel(m)
        readable = self._counters(m)
        readable |= self._settings(m, *write)
        self._read_channel(m, readable)
        return m

    def _write_channel(self, m: Module) -> tuple[Signal, Signal, Signal]:
        """(strobe, address, data): one clock after both halves have arrived."""
        address, data, strobes = Signal(ADDRESS_BITS), Signal(32), Signal(4)
        strobe = self.writing
        m.d.comb += [
            self.awready.eq(self.awvalid & self.wvalid & ~self.bvalid & ~strobe),
            self.wready.eq(self.awready),
        ]
        m.d.sync += strobe.eq(self.awready)
        with m.If(self.awready):
            m.d.sync += [address.eq(self.awaddr), data.eq(self.wdata), strobes.eq(self.wstrb)]
        writable = [r.offset for r in REGISTERS if r.access != "r"]
        known = Cat(*(address == offset for offset in writable)).any() & strobes.all()
        with m.If(strobe):
            m.d.sync += [self.bvalid.eq(1), self.bresp.eq(Mux(known, OKAY, SLVERR))]
        with m.Elif(self.bready):
            m.d.sync += self.bvalid.eq(0)
        full = Signal()
        m.d.comb += full.eq(strobe & strobes.all())
        return full, address, data

    def _settings(
        self, m: Module, strobe: Signal, address: Signal, data: Signal
    ) -> dict[str, Value]:
        scratch, errors = Signal(32), Signal(len(ERROR_BITS))
        raised = Cat(*self.errors.values())
        m.d.sync += errors.eq(errors | raised)
        countdown = Signal(range(RESET_CLOCKS))
        m.d.comb += self.resetting.eq(countdown != 0)
        with m.If(countdown != 0):
            m.d.sync += countdown.eq(countdown - 1)
        control = Cat(self.enable, self.framed)
        with m.If(strobe), m.Switch(address):
            with m.Case(OFFSET["control"]):
                m.d.sync += control.eq(data[:2])
                with m.If(data[2]):
                    m.d.sync += countdown.eq(RESET_CLOCKS - 1)
            with m.Case(OFFSET["errors"]):
                m.d.sync += errors.eq((errors & ~data) | raised)
            with m.Case(OFFSET["clamp"]):
                m.d.sync += self.clamp.eq(data[:31])
            with m.Case(OFFSET["scratch"]):
                m.d.sync += scratch.eq(data)
        return {
            "control": control, "errors": errors, "clamp": self.clamp, "scratch": scratch,
            "status": Cat(self.idle, self.mode, self.resetting),
        }  # fmt: skip

    def _counters(self, m: Module) -> dict[str, Value]:
        """Everything that counts; cleared by a reset."""
        chunks, tokens, cycles = Signal(32), Signal(64), Signal(64)
        stall_in, stall_out = Signal(32), Signal(32)
        slow = {name: Signal(32, name=f"counter_{name}") for name in COUNTED}
        m.d.sync += [
            chunks.eq(chunks + self.header),
            stall_in.eq(stall_in + self.stall_in),
            stall_out.eq(stall_out + self.stall_out),
            *(slow[name].eq(slow[name] + self.beat_counts[name]) for name in COUNTED),
        ]
        for name, total, step in (
            ("tokens", tokens, self.beat_counts["present"]), ("cycles", cycles, Const(1, 1)),
        ):  # fmt: skip
            carry = Signal(name=f"{name}_carry")
            low = total[:32] + step
            m.d.sync += [total[:32].eq(low[:32]), carry.eq(low[32]),
                         total[32:].eq(total[32:] + carry)]  # fmt: skip
        with m.If(self.resetting):
            m.d.sync += [s.eq(0) for s in (chunks, tokens, cycles, stall_in, stall_out)]
            m.d.sync += [counter.eq(0) for counter in slow.values()]
        shadow = Signal(32)
        read = self.arvalid & self.arready
        with m.If(read & (self.araddr == OFFSET["tokens"])):
            m.d.sync += shadow.eq(tokens[32:])
        with m.If(read & (self.araddr == OFFSET["cycles"])):
            m.d.sync += shadow.eq(cycles[32:])
        return {
            "records": self.records, "chunks": chunks, "tokens": tokens[:32],
            "tokens_high": shadow, "cycles": cycles[:32], "cycles_high": shadow,
            "stall_in": stall_in, "stall_out": stall_out, **slow,
        }  # fmt: skip

    def _read_channel(self, m: Module, readable: dict[str, Value]) -> None:
        """Two clocks: latch the address and the low words, then choose."""
        busy, address = self.reading, Signal(ADDRESS_BITS)
        m.d.comb += self.arready.eq(~busy & ~self.rvalid)
        m.d.sync += busy.eq(self.arvalid & self.arready)
        with m.If(self.arvalid & self.arready):
            m.d.sync += address.eq(self.araddr)
        values = {
            r.offset: readable.get(r.name, Const(self.constants.get(r.name, r.reset), 32))
            for r in REGISTERS
        }
        words = Array(values.get(4 * i, Const(UNMAPPED, 32)) for i in range(32))
        mapped = Array(Const(int(4 * i in values), 1) for i in range(32))
        known = mapped[address[2:7]] & ~address[7:].any() & ~address[:2].any()
        with m.If(busy):
            m.d.sync += [
                self.rvalid.eq(1),
                self.rdata.eq(Mux(known, words[address[2:7]], UNMAPPED)),
                self.rresp.eq(Mux(known, OKAY, SLVERR)),
            ]
        with m.Elif(self.rready):
            m.d.sync += self.rvalid.eq(0)
