"""Posts over HTTP with the standard library: keep-alive, one deadline for the whole exchange.

`http.client` knows a timeout per socket operation only; a service that answers one byte a second
would hold it for hours. Here the socket is wrapped, and each operation gets what is left of the
post's deadline. Redirects and proxy variables are not followed: the service is a neighbour.

Not loaded by `import twinscope`, but before a probe starts its thread: a module that is half
imported when the host forks stays half imported in the child.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

from twinscope.answers import read_answer
from twinscope.items import Post
from twinscope.sink import Answer

BATCH_ID_HEADER = "X-TwinScope-Batch-Id"
CONNECT_TIMEOUT_S = 5.0
IDLE_S = 4.0  # younger than the usual keep-alive of servers (uvicorn: 5 s)
CHUNK = 256 << 10  # bytes per send: often enough to notice the deadline
MOST_ANSWER_BYTES = 64 << 10
"localhost".encode("idna")  # loads the codec that resolving a name would load on the thread


class DeadlineSocket:
    """A socket whose every operation ends by `deadline` (time.monotonic).

    As with `socket.socket`, closing waits for the files made of it: http.client closes its socket
    before it reads an answer that ends with the connection.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._files = 0
        self._closing = False
        self.deadline = 0.0

    def arm(self) -> socket.socket:
        """The socket, with what is left of the deadline as its timeout."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the service did not answer in time")
        self._sock.settimeout(left)
        return self._sock

    def sendall(self, data: Any) -> None:
        """Send all of a buffer, in chunks."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        for at in range(0, len(view), CHUNK):
            self.arm().sendall(view[at : at + CHUNK])

    def makefile(self, mode: str) -> io.BufferedReader:
        """The reading end, as http.client asks for it."""
        self._files += 1
        return io.BufferedReader(_Reader(self))

    def file_closed(self) -> None:
        """A file made of this socket is no longer used."""
        self._files -= 1
        if self._closing and not self._files:
            self._sock.close()

    def close(self) -> None:
        """Close the socket, at the latest with the last file made of it."""
        self._closing = True
        if not self._files:
            self._sock.close()

    def shutdown(self) -> None:
        """Wake whoever waits in an operation; whatever is read after it comes too late."""
        self.deadline = 0.0
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


class _Reader(io.RawIOBase):
    """Reads a DeadlineSocket."""

    def __init__(self, sock: DeadlineSocket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._sock.arm().recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._sock.file_closed()


class HttpSink:
    """One service, one connection. Used by one thread; only `abort` may come from another."""

    def __init__(
        self, url: str, *, token: str | None, timeout_s: float, ca_file: str | None = None
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = quote(parts.path.rstrip("/"), safe="/%")
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        self._headers = {"User-Agent": "twinscope-probe", "Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connection: http.client.HTTPConnection | None = None
        self._sock: DeadlineSocket | None = None
        self._used_at = 0.0
        self._inherited: list[object] = []

    def send(self, post: Post) -> Answer:
        """Post, once more if a kept connection turned out to be closed over there."""
        deadline = time.monotonic() + self._timeout_s
        if self._connection is not None and time.monotonic() - self._used_at > IDLE_S:
            self._drop()
        kept = self._connection is not None
        try:
            return self._exchange(post, deadline)
        except (http.client.BadStatusLine, ConnectionError) as error:
            self._drop()
            if not kept:
                return _unreachable(error)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            return _unreachable(error)
        try:
            return self._exchange(post, deadline)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            return _unreachable(error)

    def fetch(self, path: str) -> tuple[int, bytes]:
        """GET: status and body. Raises OSError or HTTPException when none comes in time."""
        connection, _ = self._connect(time.monotonic() + self._timeout_s)
        connection.request("GET", self._prefix + path, headers=self._headers)
        response = connection.getresponse()
        return response.status, response.read(MOST_ANSWER_BYTES)

    def _exchange(self, post: Post, deadline: float) -> Answer:
        connection, sock = self._connect(deadline)
        connection.putrequest("POST", self._prefix + post.path, skip_accept_encoding=True)
        headers = {
            **self._headers,
            BATCH_ID_HEADER: post.batch_id,
            "Content-Type": post.content_type,
            "Content-Length": str(post.size),
        }
        for name, value in headers.items():
            connection.putheader(name, value.encode())
        connection.endheaders()
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in post.pieces:  # a service that refuses early may answer and hang up
                sock.sendall(piece)
        response = connection.getresponse()
        body = response.read(MOST_ANSWER_BYTES)
        if response.will_close or not response.isclosed():
            self._drop()
        self._used_at = time.monotonic()
        answer = read_answer(response.status, response.getheader("Retry-After"), body)
        if self._prefix and f"{self._prefix}{post.path}" in answer.detail:  # not known over there
            hint = f"; the address of the service may not end in {self._prefix}"
            return replace(answer, detail=answer.detail + hint)
        return answer

    def _connect(self, deadline: float) -> tuple[http.client.HTTPConnection, DeadlineSocket]:
        """The kept connection, or a new one."""
        if self._connection is None or self._sock is None:
            timeout = max(0.001, min(CONNECT_TIMEOUT_S, deadline - time.monotonic()))
            self._connection = self._new_connection(timeout)
            self._connection.connect()
            self._sock = DeadlineSocket(self._connection.sock)
            # http.client needs sendall, makefile and close of its socket, no more
            self._connection.sock = self._sock
        self._sock.deadline = deadline
        return self._connection, self._sock

    def _new_connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout, context=self._tls
        )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._sock = None

    def close(self) -> None:
        """Hang up."""
        self._drop()

    def abort(self) -> None:
        """Wake a `send` that waits for the service."""
        sock = self._sock
        if sock is not None:
            sock.shutdown()

    def forget_after_fork(self) -> None:
        """Let the parent have its connection.

        It stays referenced: destroying a reader whose lock another thread held at the fork could
        wait for ever.
        """
        self._inherited.append((self._connection, self._sock))
        self._connection = self._sock = None


def _unreachable(error: Exception) -> Answer:
    return Answer("unreachable", detail=f"{type(error).__name__}: {error}"[:300])
