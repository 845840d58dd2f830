"""The files of the page: its own, the plotting library's, the runbooks; each at its own address.

Read once at start-up, sent compressed where the browser takes it, with a tag so that a reload
costs no transfer.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from functools import cached_property
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Request, Response

from twinscope_dashboards import RUNBOOKS, plotting_library, runbooks, web

# Scripts come from this service only. The plotting library writes style rules into the document, so
# inline styles are allowed, and nothing else is.
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
TYPES = {".js": "text/javascript", ".md": "text/markdown; charset=utf-8", ".svg": "image/svg+xml"}
WORTH_PACKING = 1400  # bytes; below that one packet carries it anyway
LARGE = 200_000  # bytes; compressing more than that keeps other requests waiting
# Chromium compiles functions when they are first called, and then reads the 5 MB of the library
# twice. This comment makes it compile while they arrive, beside the page's own work; other
# browsers see a comment.
COMPILE_AT_ONCE = b"//# allFunctionsCalledOnLoad\n"


def add_page(app: FastAPI) -> None:
    """Serve every file at its address, `index.html` also at / and /docs."""
    for entry in web().iterdir():
        if entry.is_file():
            _serve(app, f"/{entry.name}", entry)
            if entry.name == "index.html":
                _serve(app, "/", entry)
                _serve(app, "/docs", entry)
    for kind in RUNBOOKS:
        for entry in runbooks(kind).iterdir():
            if entry.name.endswith(".md"):
                _serve(app, f"/runbooks/{kind}/{entry.name}", entry)
    library = plotting_library()
    if library is not None:  # without it the page shows tables
        _serve(app, "/plotly.min.js", library, first_line=COMPILE_AT_ONCE)


class StaticFile:
    """One file in memory, and its compressed form once somebody asked for it."""

    def __init__(self, entry: Traversable, first_line: bytes = b"") -> None:
        self._plain = first_line + entry.read_bytes()
        self.size = len(self._plain)
        suffix = entry.name[entry.name.rfind(".") :]
        guessed = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
        self._kind = TYPES.get(suffix, guessed)
        self._tag = f'"{hashlib.blake2b(self._plain, digest_size=12).hexdigest()}"'

    @cached_property
    def _packed(self) -> bytes:
        return gzip.compress(self._plain, compresslevel=6, mtime=0)

    def answer(self, request: Request) -> Response:
        """The file as this browser takes it; 304 if it has it."""
        headers = {**PAGE_HEADERS, "ETag": self._tag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == self._tag:
            return Response(status_code=304, headers=headers)
        takes = request.headers.get("accept-encoding", "")
        if "gzip" in takes and len(self._plain) > WORTH_PACKING:
            headers["Content-Encoding"] = "gzip"
            return Response(self._packed, media_type=self._kind, headers=headers)
        return Response(self._plain, media_type=self._kind, headers=headers)


def _serve(app: FastAPI, address: str, entry: Traversable, first_line: bytes = b"") -> None:
    file = StaticFile(entry, first_line)

    async def read_small(request: Request) -> Response:
        return file.answer(request)

    def read_large(request: Request) -> Response:  # in a thread: the first one is compressed
        return file.answer(request)

    read = read_small if file.size < LARGE else read_large
    app.add_api_route(address, read, include_in_schema=False)
