"""Every failure as a problem document (RFC 9457): what, which field, which value, what to do."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from twinscope.errors import WireError
from twinscope_service.errors import ServiceError, shorten
from twinscope_service.receive.refusals import BodyTimeout, Malformed, Unauthorized

PROBLEM_TYPE = "application/problem+json"
# An unread body up to this size is read and dropped, so that the client gets to the answer; beyond
# it the connection is closed with the answer.
DISCARD_BYTES = 64 << 20
# Of pydantic's complaints about names; after these it helps to see which names there are.
PLAIN_FIXES = {"extra_forbidden": "leave it out", "missing": "send it"}
# One header each: Chromium reads the first scheme of a header only, and asks for a password only
# where it finds Basic.
CHALLENGES = ('Basic realm="twinscope"', "Bearer")

logger = logging.getLogger(__name__)


class Problem(JSONResponse):
    """A problem document."""

    media_type = PROBLEM_TYPE


def add_handlers(app: FastAPI) -> None:
    """Answer every exception with a problem document."""
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(WireError, _on_wire_error)
    app.add_exception_handler(RequestValidationError, _on_parameters)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_crash)


def problem_of(request: Request, error: ServiceError) -> Problem:
    """The answer to one refusal."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, BodyTimeout) or _leaves_much_unread(request):
        headers["Connection"] = "close"
    problem = Problem(document_of(error), error.status, headers)
    if isinstance(error, Unauthorized):
        for challenge in CHALLENGES:
            problem.headers.append("WWW-Authenticate", challenge)
    return problem


def document_of(error: ServiceError) -> dict[str, Any]:
    """The document of one refusal."""
    fields = {"detail": error.detail, "field": error.field, "value": error.value, "fix": error.fix}
    return _document(error.status, error.title, fields)


def malformed(
    error: ValidationError | RequestValidationError, *, fields: Iterable[str] = ()
) -> Malformed:
    """The first complaint of pydantic, as a refusal with field, value and fix.

    `fields`: names of what could be sent.
    """
    problem = error.errors()[0]
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, WireError):
        return _from_wire(cause)
    where = ".".join(str(part) for part in problem["loc"]) or "body"
    said = problem["msg"].removeprefix("Value error, ")
    fix = PLAIN_FIXES.get(problem["type"], said)
    if problem["type"] in PLAIN_FIXES and len(problem["loc"]) == 1 and fields:
        fix += f"; the fields are {', '.join(fields)}"
    value = problem["input"] if problem["type"] != "missing" else None
    if problem["type"] == "value_error" and problem["loc"]:  # our own words, without the value
        said = f"got {shorten(value)}; {said}"
    return Malformed(f"{where}: {said}", field=where, value=value, fix=fix)


def _from_wire(error: WireError) -> Malformed:
    return Malformed(str(error), field=error.field, value=error.args[1], fix=error.fix)


def _document(status: int, title: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Unknown is left out; beside a field, a value of null says that it was absent or null."""
    slug = title.lower().replace(" ", "-")
    body = {"type": f"urn:twinscope:problem:{slug}", "title": title, "status": status}
    named = fields.get("field") is not None
    kept = (name for name in fields if fields[name] is not None or (named and name == "value"))
    return {**body, **{name: fields[name] for name in kept}}


def _leaves_much_unread(request: Request) -> bool:
    if getattr(request.state, "body_read", False):
        return False
    length = request.headers.get("content-length", "0")
    much = not length.isdecimal() or len(length) > 18 or int(length) > DISCARD_BYTES
    return much or "transfer-encoding" in request.headers


async def _on_service_error(request: Request, error: Exception) -> Problem:
    assert isinstance(error, ServiceError)
    return problem_of(request, error)


async def _on_wire_error(request: Request, error: Exception) -> Problem:
    assert isinstance(error, WireError)
    return problem_of(request, _from_wire(error))


async def _on_parameters(request: Request, error: Exception) -> Problem:
    assert isinstance(error, RequestValidationError)
    return problem_of(request, malformed(error))


async def _on_http(request: Request, error: Exception) -> Problem:
    """What the router refuses: unknown address, wrong method."""
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path[:200]}: {error.detail}"
    headers = dict(error.headers or {})
    if _leaves_much_unread(request):
        headers["Connection"] = "close"
    field = "method" if error.status_code == 405 else "path"
    value = request.method if field == "method" else request.url.path[:200]
    fields = {"detail": detail, "field": field, "value": value, "fix": "GET /docs lists the calls"}
    document = _document(error.status_code, str(error.detail), fields)
    return Problem(document, error.status_code, headers)


async def _on_crash(request: Request, error: Exception) -> Problem:
    """A defect of the service: said so, with nothing of its inside."""
    logger.error("%s %s crashed", request.method, request.url.path, exc_info=error)
    fields = {"detail": "the service failed; its log has the reason", "fix": "send it again"}
    document = _document(500, "The service failed", fields)
    return Problem(document, 500, {"Connection": "close"})
