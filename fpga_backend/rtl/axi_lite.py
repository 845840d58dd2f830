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
        self.reading = Signal()  # an address was taken, its answer is on the way
        self.choosing = Signal()
        self.address = Signal(ADDRESS_BITS, reset_less=True)
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
        address, data, strobes = (
            Signal(bits, name=name, reset_less=True)
            for name, bits in (("address", ADDRESS_BITS), ("data", 32), ("strobes", 4))
        )
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
        countdown = Signal(range(RESET_CLOCKS), init=RESET_CLOCKS - 1)
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
        chunks, tokens, cycles, stall_in, stall_out = (
            Signal(bits, name=name, reset_less=True)
            for name, bits in (("chunks", 32), ("tokens", 64), ("cycles", 64),
                               ("stall_in_clocks", 32), ("stall_out_clocks", 32))
        )  # fmt: skip
        slow = {name: Signal(32, name=f"counter_{name}", reset_less=True) for name in COUNTED}
        following: dict[str, Value] = {}
        m.d.sync += [
            chunks.eq(chunks + self.header),
            stall_in.eq(stall_in + self.stall_in),
            stall_out.eq(stall_out + self.stall_out),
            *(slow[name].eq(slow[name] + self.beat_counts[name]) for name in COUNTED),
        ]
        for name, total, step in (
            ("tokens", tokens, self.beat_counts["present"]), ("cycles", cycles, Const(1, 1)),
        ):  # fmt: skip
            carry = Signal(name=f"{name}_carry", reset_less=True)
            low = total[:32] + step
            following[name] = (total[32:] + carry)[:32]  # the high word that goes with total[:32]
            m.d.sync += [total[:32].eq(low[:32]), carry.eq(low[32]),
                         total[32:].eq(following[name])]  # fmt: skip
        clearing = Signal(attrs={"keep": 1}, reset_less=True)
        m.d.sync += clearing.eq(self.resetting)
        with m.If(clearing):
            m.d.sync += [s.eq(0) for s in (chunks, tokens, cycles, stall_in, stall_out)]
            m.d.sync += [counter.eq(0) for counter in slow.values()]
        shadow = Signal(32, reset_less=True)
        with m.If(self.choosing & (self.address == OFFSET["tokens"])):
            m.d.sync += shadow.eq(following["tokens"])
        with m.If(self.choosing & (self.address == OFFSET["cycles"])):
            m.d.sync += shadow.eq(following["cycles"])
        return {
            "records": self.records, "chunks": chunks, "tokens": tokens[:32],
            "tokens_high": shadow, "cycles": cycles[:32], "cycles_high": shadow,
            "stall_in": stall_in, "stall_out": stall_out, **slow,
        }  # fmt: skip

    def _read_channel(self, m: Module, readable: dict[str, Value]) -> None:
        """Three clocks: latch the address, choose one in eight per quarter, choose a quarter."""
        choosing, chosen, address = self.choosing, Signal(), self.address
        m.d.comb += [
            self.reading.eq(choosing | chosen),
            self.arready.eq(~self.reading & ~self.rvalid),
        ]
        m.d.sync += [choosing.eq(self.arvalid & self.arready), chosen.eq(choosing)]
        with m.If(self.arvalid & self.arready):
            m.d.sync += address.eq(self.araddr)
        values = {
            r.offset: readable.get(r.name, Const(self.constants.get(r.name, r.reset), 32))
            for r in REGISTERS
        }
        mapped = Array(Const(int(4 * i in values), 1) for i in range(32))
        known = Signal(reset_less=True)
        quarters = [Signal(32, name=f"quarter{k}", reset_less=True) for k in range(4)]
        m.d.sync += known.eq(mapped[address[2:7]] & ~address[7:].any() & ~address[:2].any())
        for k, quarter in enumerate(quarters):
            words = Array(values.get(4 * i, Const(UNMAPPED, 32)) for i in range(8 * k, 8 * k + 8))
            m.d.sync += quarter.eq(words[address[2:5]])
        with m.If(chosen):
            m.d.sync += [
                self.rvalid.eq(1),
                self.rdata.eq(Mux(known, Array(quarters)[address[5:7]], UNMAPPED)),
                self.rresp.eq(Mux(known, OKAY, SLVERR)),
            ]
        with m.Elif(self.rready):
            m.d.sync += self.rvalid.eq(0)
