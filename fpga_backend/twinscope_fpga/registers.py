"""The AXI-Lite registers, declared once: the RTL, the driver and docs/fpga.md follow from here."""

from __future__ import annotations

from dataclasses import dataclass

IDENTITY = 0x4B33454E  # "K3EN"
VERSION = 0x0001_0000  # major.minor, 16 bits each
UNMAPPED = 0xDEADDEAD  # what an address without a register reads


@dataclass(frozen=True)
class Register:
    """One 32-bit register. access: r, rw or w1c (write one to clear)."""

    name: str
    offset: int
    access: str
    means: str
    reset: int = 0


# fmt: off
REGISTERS: tuple[Register, ...] = (
    Register("id", 0x000, "r", 'reads 0x4B33454E, "K3EN"', IDENTITY),
    Register("version", 0x004, "r", "major in the high half, minor in the low half", VERSION),
    Register("shape", 0x008, "r", "byte 0 lanes, 1 log2 of the record queue, 2 token queue"),
    Register("table_crc", 0x00C, "r", "CRC-32 of the coefficient tables the ROMs were made from"),
    Register("control", 0x010, "rw", "CONTROL_BITS below"),
    Register("status", 0x014, "r", "bit 0 nothing under way, 1 KL mode, 2 reset under way"),
    Register("errors", 0x018, "w1c", "ERROR_BITS below, sticky"),
    Register("clamp", 0x01C, "rw", "|Δ| bound, float32, at most 20.0; write when idle", 0x41A00000),
    Register("scratch", 0x020, "rw", "no effect"),
    Register("records", 0x024, "r", "records made since reset"),
    Register("chunks", 0x028, "r", "headers that passed the gate"),
    Register("tokens", 0x02C, "r", "tokens received, low word"),
    Register("tokens_high", 0x030, "r", "high word, as it was when the low word was read"),
    Register("masked", 0x034, "r", "tokens masked out"),
    Register("nonfinite", 0x038, "r", "tokens with a NaN or an infinity"),
    Register("sentinel", 0x03C, "r", "tokens with a missing-value marker, <= -1000"),
    Register("positive", 0x040, "r", "tokens with a positive log-prob"),
    Register("clamped", 0x044, "r", "tokens whose |Δ| was beyond the clamp"),
    Register("stall_in", 0x048, "r", "clocks with TVALID and not TREADY at the input"),
    Register("stall_out", 0x04C, "r", "clocks with TVALID and not TREADY at the result stream"),
    Register("cycles", 0x050, "r", "clocks since reset, low word"),
    Register("cycles_high", 0x054, "r", "high word, as it was when the low word was read"),
)
CONTROL_BITS: tuple[tuple[str, str], ...] = (
    ("enable", "1: the input takes beats"),
    ("framed", "1: TLAST, TKEEP and TUSER count; 0: the header's length alone"),
    ("reset", "write 1: drop everything under way, clear all sums and counters; 128 clocks"),
)
ERROR_BITS: tuple[tuple[str, str], ...] = (
    ("bad_header", "a header beat without the magic: framing was lost"),
    ("length", "TLAST did not come where the header's length said"),
    ("record_overflow", "a record found no room: a defect, never expected"),
    ("token_overflow", "a token word found no room: a defect, never expected"),
)
# fmt: on
OFFSET = {register.name: register.offset for register in REGISTERS}
CONTROL = {name: 1 << bit for bit, (name, _) in enumerate(CONTROL_BITS)}
ERROR = {name: 1 << bit for bit, (name, _) in enumerate(ERROR_BITS)}


def render_registers() -> str:
    """The register map as Markdown, for docs/fpga.md."""
    lines = ["| offset | name | access | reset | meaning |", "|---|---|---|---|---|"]
    lines += [
        f"| 0x{r.offset:03X} | `{r.name}` | {r.access} | 0x{r.reset:08X} | {r.means} |"
        for r in REGISTERS
    ]
    for title, bits in (("control", CONTROL_BITS), ("errors", ERROR_BITS)):
        lines += ["", f"Bits of `{title}`:", ""]
        lines += [f"- bit {i}, `{name}`: {means}" for i, (name, means) in enumerate(bits)]
    return "\n".join(lines) + "\n"
