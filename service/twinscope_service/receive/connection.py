"""The HTTP connection: uvicorn's, with a bound on the size and the time of request headers."""

from __future__ import annotations

import asyncio
import json
from asyncio import TimerHandle
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from twinscope_service.errors import ServiceError
from twinscope_service.receive.problems import PROBLEM_TYPE, document_of
from twinscope_service.receive.refusals import HeaderTimeout, HeaderTooLarge, NoRequest

HEADER_BYTES = 64 * 1024
HEADER_SECONDS = 15.0


class BoundedConnection(HttpToolsProtocol):
    """Closes a connection whose request headers are endless or never end.

    Whatever is refused here gets a problem document, like every other refusal; and a client that
    has said all it will say, complete or not, still hears the answer.
    """

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
                self._refuse(
                    HeaderTooLarge(
                        f"at most {HEADER_BYTES} bytes of request headers are read",
                        field="request header",
                        value=f"{self._header_bytes} bytes",
                        fix="send fewer headers",
                    )
                )

    def on_headers_complete(self) -> None:
        """The request starts."""
        self._cancel_timer()
        super().on_headers_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. True keeps the connection for the answer to its last request.

        A body that is not complete by now never will be: `request.state.body_cut`.
        """
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        cycle.keep_alive = False
        if cycle.more_body:
            cycle.scope["state"]["body_cut"] = True
            cycle.more_body = False
            cycle.message_event.set()
        return True

    def send_400_response(self, msg: str) -> None:
        """Of uvicorn, for what the parser refuses."""
        self._refuse(
            NoRequest(
                f"not readable as HTTP: {msg}",
                field="request",
                fix="check the request line, Content-Length and the chunks: a client library helps",
            )
        )

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
            self._refuse(
                HeaderTimeout(
                    f"no complete request header within {self.header_seconds:g} s",
                    field="request header",
                    value=f"{self._header_bytes} bytes",
                    fix="send it at once",
                )
            )

    def _refuse(self, error: ServiceError) -> None:
        self._cancel_timer()
        if not self.transport.is_closing():
            body = json.dumps(document_of(error)).encode()
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
                f"content-type: {PROBLEM_TYPE}\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            self.transport.close()
