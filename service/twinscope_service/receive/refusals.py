"""What the HTTP edge refuses by itself, before the pipeline sees anything."""

from __future__ import annotations

from twinscope_service.errors import ServiceError


class BodyCut(ServiceError):
    """The connection ended before the body did."""

    status = 400
    title = "The body is cut"


class NoRequest(ServiceError):
    """What came is no HTTP, or frames its body in an impossible way."""

    status = 400
    title = "This is no HTTP request"


class HeaderTimeout(ServiceError):
    """A request header that did not end in time."""

    status = 408
    title = "The request came too slowly"


class HeaderTooLarge(ServiceError):
    """A request header without end."""

    status = 431
    title = "The request header is too large"


class Unauthorized(ServiceError):
    """No token, or one that opens nothing."""

    status = 401
    title = "Not authorized"


class Forbidden(ServiceError):
    """A token that opens something else, or a page of another site."""

    status = 403
    title = "Not allowed"


class BodyTimeout(ServiceError):
    """The body stalled, or trickled."""

    status = 408
    title = "The body came too slowly"


class BodyTooLarge(ServiceError):
    """More bytes than the limit, declared or received."""

    status = 413
    title = "The body is too large"


class UnsupportedBody(ServiceError):
    """A content type or an encoding that is not read here."""

    status = 415
    title = "This kind of body is not read here"


class Malformed(ServiceError):
    """A body or a parameter that says something impossible."""

    status = 422
    title = "The request is malformed"


class Receiving(ServiceError):
    """Too many bytes are being received at this moment."""

    status = 429
    title = "Too much is arriving"
    retry_after_s = 1.0
