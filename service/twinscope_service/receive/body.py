"""A request body, streamed into one buffer: no second copy, bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
from starlette.requests import Request
from starlette.types import Receive

from twinscope_service.receive.refusals import (
    BodyCut,
    BodyTimeout,
    BodyTooLarge,
    Receiving,
    UnsupportedBody,
)

SLOWEST_RATE = 64 * 1024  # bytes per second that a body must keep up after its first seconds
GROWTH = 1 << 20  # bytes that a chunked body claims at a time


class InflightBytes:
    """The bytes of all bodies being received or processed. Used on the event loop only."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.refused = 0  # bodies, since start-up

    def claim(self, nbytes: int) -> None:
        """Reserve, or refuse the body."""
        if self.used + nbytes > self.capacity:
            self.refused += 1
            raise Receiving(
                f"{self.used} of {self.capacity} bytes are in flight, {nbytes} more do not fit",
                field="body",
                value=f"{nbytes} bytes",
                fix="send it again after Retry-After seconds, or in smaller batches",
            )
        self.used += nbytes

    def release(self, nbytes: int) -> None:
        """Give back what was claimed."""
        self.used -= nbytes


@dataclass(frozen=True)
class BodyRules:
    """Bounds of one kind of body. `stall_s`: longest silence, seconds."""

    most: int
    stall_s: float


def check_encoding(request: Request) -> None:
    """Refuse compression: log-probs do not compress, and a decompressor is a way in for bombs."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    transfer = request.headers.get("transfer-encoding", "chunked").strip().lower()
    for field, value, good in (
        ("Content-Encoding", coding, "identity"),
        ("Transfer-Encoding", transfer, "chunked"),
    ):
        if value != good:
            raise UnsupportedBody(
                f"{field} {value!r} is not read", field=field, value=value, fix="send it as it is"
            )


def content_type(request: Request) -> str:
    """The media type, lower case, without parameters; empty if there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


@asynccontextmanager
async def received_body(
    request: Request, *, rules: BodyRules, inflight: InflightBytes
) -> AsyncIterator[memoryview]:
    """The whole body while the block runs; its bytes count as in flight until the block ends."""
    check_encoding(request)
    length = _declared_length(request, rules.most)
    claimed = 0

    def claim(nbytes: int) -> None:
        nonlocal claimed
        inflight.claim(nbytes)
        claimed += nbytes

    try:
        if length is None:
            body = await _receive_unsized(request.receive, rules, claim)
        else:
            claim(length)
            body = await _receive_sized(request.receive, rules, length)
        if getattr(request.state, "body_cut", False):  # a chunked body does not show it otherwise
            raise _cut(len(body))
        request.state.body_read = True  # the connection is clean: it can be kept open
        yield body
    finally:
        inflight.release(claimed)


def _declared_length(request: Request, most: int) -> int | None:
    """Content-Length, None for a chunked body. Too much is refused before a byte is read."""
    header = request.headers.get("content-length")
    if header is None:
        return None if "transfer-encoding" in request.headers else 0
    if not header.isdecimal() or int(header[:20]) > most or len(header) > 20:
        raise _too_large(f"Content-Length {header[:40]}", most)
    return int(header)


def _too_large(value: str, most: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"at most {most} bytes are read", field="body", value=value, fix="split it by samples"
    )


async def _receive_sized(receive: Receive, rules: BodyRules, length: int) -> memoryview:
    """A body of known length. np.empty does not touch the memory: a lie about it costs nothing."""
    buffer = np.empty(length, np.uint8).data
    at = 0

    def take(piece: bytes) -> None:
        nonlocal at
        if at + len(piece) > length:
            raise _too_large("more than Content-Length", length)
        buffer[at : at + len(piece)] = piece
        at += len(piece)

    await _pump(receive, rules.stall_s, take)
    if at != length:
        raise _cut(at)
    return buffer


async def _receive_unsized(
    receive: Receive, rules: BodyRules, claim: Callable[[int], None]
) -> memoryview:
    """A chunked body: the buffer grows, and claims what it grows by, up to the limit."""
    buffer = bytearray()
    claimed = 0

    def take(piece: bytes) -> None:
        nonlocal claimed
        needed = len(buffer) + len(piece)
        if needed > rules.most:
            raise _too_large("a chunked body beyond the limit", rules.most)
        if needed > claimed:
            growth = max(GROWTH, needed - claimed)
            claim(growth)
            claimed += growth
        buffer.extend(piece)

    await _pump(receive, rules.stall_s, take)
    return memoryview(buffer)


async def _pump(receive: Receive, stall_s: float, take: Callable[[bytes], None]) -> None:
    """Hand every piece to `take`. Silence ends the body, as does a trickle below SLOWEST_RATE."""
    clock = asyncio.get_running_loop().time
    start, got = clock(), 0
    try:
        async with asyncio.timeout(stall_s) as patience:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _cut(got)
                piece = message.get("body", b"")
                got += len(piece)
                take(piece)
                if not message.get("more_body", False):
                    return
                last_moment = start + stall_s + got / SLOWEST_RATE
                patience.reschedule(min(clock() + stall_s, last_moment))
    except TimeoutError:
        raise BodyTimeout(
            f"the body stalled or trickled: {got} bytes in {clock() - start:.1f} s",
            field="body",
            value=f"{got} bytes",
            fix=f"send it without pauses of {stall_s:g} s, at {SLOWEST_RATE} bytes/s or more",
        ) from None


def _cut(got: int) -> BodyCut:
    return BodyCut(
        "the connection ended inside the body", field="body", value=f"{got} bytes", fix="send all"
    )
