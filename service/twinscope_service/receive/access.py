"""Who may do what: one token for everything, tokens that open one run each, or no tokens at all."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from twinscope_service.receive.problems import problem_of
from twinscope_service.receive.refusals import Forbidden, Unauthorized

OPEN_PATHS = frozenset({"/healthz", "/readyz"})  # probes of an orchestrator carry no token


@dataclass(frozen=True)
class Access:
    """What a request may touch. `run` None: everything; "": nothing, no run has that name."""

    run: str | None = None

    def require(self, run: str | None) -> None:
        """Raise Forbidden unless `run` is open; None stands for what belongs to no single run."""
        if self.run is not None and self.run != run:
            raise Forbidden(
                "this token opens one run only",
                field="Authorization",
                fix="use the token of that run, or the service's token",
            )


class Authenticate:
    """ASGI middleware: every request passes here, so that no call can be forgotten."""

    def __init__(self, app: ASGIApp, *, token: str | None, run_tokens: Mapping[str, str]) -> None:
        self._app = app
        self._tokens = [(Access(), token)] if token else []
        self._tokens += [(Access(run), value) for run, value in run_tokens.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Put the Access of the request into its state, or answer 401 or 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            _refuse_other_sites(request)
            request.state.access = self._access(request)
        except (Unauthorized, Forbidden) as error:
            await problem_of(request, error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _access(self, request: Request) -> Access:
        if not self._tokens:
            return Access()
        given = _token_of(request.headers.get("authorization", ""))
        found: Access | None = None
        for access, token in self._tokens:  # all of them: the time does not tell which one matched
            if hmac.compare_digest(token.encode(), given) and found is None:
                found = access
        if found is None and request.url.path in OPEN_PATHS:
            return Access(run="")
        if found is None:
            raise Unauthorized(
                "this service asks for a token",
                field="Authorization",
                value="(not shown)" if given else "(none)",
                fix="send Authorization: Bearer TOKEN, with the service's TWINSCOPE_TOKEN",
            )
        return found


def _token_of(header: str) -> bytes:
    """The token of a Bearer header, or the password of a Basic one (browsers ask for that).

    A header is bytes, which starlette reads as latin-1; tokens are sent and compared as UTF-8.
    """
    scheme, _, value = header.encode("latin-1").strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""


def _refuse_other_sites(request: Request) -> None:
    """A page of another site must not post here through a browser that reaches this address."""
    origin = request.headers.get("origin")
    if origin is None or request.method in ("GET", "HEAD", "OPTIONS"):
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise Forbidden(
            "a page of another site may not post here",
            field="Origin",
            value=origin[:100],
            fix="post from a program, or from the service's own page",
        )
