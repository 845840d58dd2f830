"""The HTTP connection: uvicorn's, with a bound on the size and the time of request headers."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_BYTES = 64 * 1024
HEADER_SECONDS = 15.0


class BoundedConnection(HttpToolsProtocol):
    """Closes a connection whose request headers are endless or never end."""

    header_seconds = HEADER_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new client: its first header is due."""
        super().connection_made(transport)
        self._timer: TimerHandle | None = None
        self._expect_header()

    def on_message_begin(self) -> None:
        """The next request on the connection begins."""
        super().on_message_begin()
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        """Count bytes as long as the header is not complete."""
        super().data_received(data)
        if self._timer is not None:
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES:
                self._refuse("431 Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        """The request starts."""
        self._cancel_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went away."""
        self._cancel_timer()
        super().connection_lost(exc)

    def _expect_header(self) -> None:
        self._cancel_timer()
        self._header_bytes = 0
        self._timer = self.loop.call_later(self.header_seconds, self._on_late_header)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_late_header(self) -> None:
        """Late by its own fault, unless we stopped reading while an earlier request runs."""
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._timer = self.loop.call_later(self.header_seconds, self._on_late_header)
        else:
            self._refuse("408 Request Timeout")

    def _refuse(self, status: str) -> None:
        self._cancel_timer()
        if not self.transport.is_closing():
            self.transport.write(
                f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
            )
            self.transport.close()
