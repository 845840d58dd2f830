"""Number formats, header and record layout of the streaming engine: one declaration, used by the
golden model, the RTL, the driver and the documentation.

Direction as everywhere: q = rollout log-prob (word a of a pair), p = train log-prob (word b),
Δ = p - q, nats. A lane takes one pair of float32 words per clock.

Fixed-point notation: Qi.f has i integer and f fraction bits; one unit is 2^-f.
"""

from __future__ import annotations

from dataclasses import dataclass

# ---- the datapath -------------------------------------------------------------------------------
FIXED_FRACTION = 40  # |Δ| as Q6.40: exact for every float32 |Δ| >= 2^-17
FIXED_BITS = 46
VALUE_FRACTION = 58  # k3, Δ² and their KL-mode twins: one unit is 2^-58 = 3.5e-18
VALUE_BITS = 88  # k3 as Q30.58: e^20 needs 29 integer bits
SQUARE_BITS = 72  # Δ² (and e^q·|Δ| in KL mode) as Q14.58
SEGMENT_INDEX_BITS = 9  # 512 straight segments per function
DELTA_BITS = 17  # position inside a segment
TABLE_VALUE_BITS, TABLE_SLOPE_BITS = 27, 18
EXP_MANTISSA_BITS = 28
PRODUCT_BITS = 36  # what `mul3` returns
MAX_CLAMP = 20.0  # nats; e^20.7 would not fit in Q30.58
SENTINEL_BITS = 0x447A0000  # magnitude of -1000.0: at or beyond it a value is a missing marker
MASKED_WORD = 0xFFFFFFFF  # a pair whose first word is this NaN is masked (in-band mask)

# ---- accumulators: each value is cut in segments that are summed without carry between them ------
HEADROOM_BITS = 24  # a chunk has at most 2^24 - 1 tokens
ACCUMULATOR_BITS = 48  # widest segment (24) + headroom


@dataclass(frozen=True)
class Sum:
    """One exact sum of a record: `segments` words of `bits` bits each, unit 2^-fraction."""

    name: str
    segments: int
    bits: int
    fraction: int
    means: str


SUMS: tuple[Sum, ...] = (
    Sum("value", 4, 22, VALUE_FRACTION, "k3 of every counted token; KL mode: e^q"),
    Sum("square", 3, 24, VALUE_FRACTION, "Δ²; KL mode: e^q·Δ, ones' complement where Δ < 0"),
    Sum("above", 2, 23, FIXED_FRACTION, "Δ of tokens with Δ >= 0; KL mode: |q| of these"),
    Sum("below", 2, 23, FIXED_FRACTION, "|Δ| of tokens with Δ < 0; KL mode: |q| of these"),
)

# ---- counts of a record, 24 bits each
# received = counted + masked + nonfinite + sentinel + positive
COUNTS: tuple[str, ...] = (
    "received",
    "counted",
    "nonfinite",
    "sentinel",
    "positive",
    "clamped",
    "zero_rollout",
    "zero_train",
    "delta_zero",
    "negative",
)

# ---- header beat: the low 64 bits of the first beat of a chunk
HEADER_MAGIC = 0xB3
HEADER_FIELDS: tuple[tuple[str, int, str], ...] = (
    ("magic", 8, f"0x{HEADER_MAGIC:02X}; anything else is a framing error"),
    ("mode", 1, "0: estimators k1 k2 k3; 1: full-distribution KL of a row"),
    ("inband_mask", 1, "1: a pair whose first word is 0xFFFFFFFF is masked"),
    ("hold", 1, "1: no record, the accumulators run on into the next chunk (batch sum)"),
    ("tokens_wanted", 1, "1: every token's result goes to the token stream"),
    ("reserved", 4, "0"),
    ("length", 24, "tokens that follow, 0 to 2^24 - 1"),
    ("tag", 24, "returned in the record: which sequence, row or sample this is"),
)
HEADER_BYTES = 8

# ---- result record: 128 bytes, four beats of 256 bits, little-endian
RECORD_BYTES = 128
RECORD_MAGIC = 0x4B33  # "3K"
RECORD_BEATS, RECORD_BEAT_BITS = 4, 256
STATUS_FLAGS: tuple[str, ...] = (
    "mode",  # KL mode
    "length_error",  # TLAST did not come where the header said
    "reserved2",
    "reserved3",
)


def record_fields() -> tuple[tuple[str, int, int], ...]:
    """(name, byte offset, bytes) of every field of a record, in order."""
    fields: list[tuple[str, int]] = [("magic", 2), ("status", 2), ("tag", 4)]
    for entry in SUMS:
        fields += [(f"{entry.name}{i}", 6) for i in range(entry.segments)]
    fields += [(name, 3) for name in COUNTS]
    fields += [("max_abs", 4), ("serial", 4), ("spare", 12), ("checksum", 4)]
    placed, at = [], 0
    for name, size in fields:
        placed.append((name, at, size))
        at += size
    if at != RECORD_BYTES:
        raise AssertionError(f"record layout is {at} bytes, not {RECORD_BYTES}")
    return tuple(placed)


# ---- token stream: 128 bits per token
TOKEN_BYTES = 16
TOKEN_FLAGS: tuple[str, ...] = (
    "present",
    "counted",
    "masked",
    "nonfinite",
    "sentinel",
    "positive",
    "clamped",
    "mode",
)
CRC_POLYNOMIAL = 0x04C11DB7  # the field of the record checksum, see checksum()
