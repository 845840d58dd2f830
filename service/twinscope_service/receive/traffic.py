"""Counts of what came in: requests by class of status, bytes of bodies."""

from __future__ import annotations

from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

STATUS_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")


class Traffic:
    """Counters since start-up. Written on the event loop, read anywhere."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter(dict.fromkeys(STATUS_CLASSES, 0))
        self.body_bytes = 0


class CountTraffic:
    """ASGI middleware, the outermost: also counts what later ones refuse."""

    def __init__(self, app: ASGIApp, *, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on, counting."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted_receive() -> Message:
            message = await receive()
            self._traffic.body_bytes += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._traffic.requests[f"{message['status'] // 100}xx"] += 1
            await send(message)

        await self._app(scope, counted_receive, counted_send)
