"""Summaries as blobs and inbox files."""

from __future__ import annotations

from twinscope_service.measure.codec import decode_summary, encode_summary
from twinscope_service.measure.records import Summary


def pack(summary: Summary) -> bytes:
    """A Summary as `measure.codec` writes it."""
    return encode_summary(summary)


def unpack(data: bytes | memoryview) -> Summary:
    """Back from `pack`. Raises WireError on anything else."""
    return decode_summary(data)
