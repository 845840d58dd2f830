"""Summaries as blobs and inbox files."""

from __future__ import annotations

from twinscope_service.measure.records import Summary


def pack(summary: Summary) -> bytes:
    """A Summary as `measure.codec` writes it."""
    from twinscope_service.measure.codec import encode_summary

    return bytes(encode_summary(summary))


def unpack(data: bytes | memoryview) -> Summary:
    """Back from `pack`. Raises WireError on anything else."""
    from twinscope_service.measure.codec import decode_summary

    return decode_summary(data)
