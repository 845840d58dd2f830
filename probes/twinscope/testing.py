"""Sinks for tests: yours, and ours.

    with SinkServer() as server:                     # a real socket on the loopback interface
        probe = twinscope.Probe(server.url, "my-run")
        train_one_step(probe)
        probe.close()
        assert server.batches()[0].step == 0

`InMemorySink` does the same without a socket: `Probe(sink=InMemorySink())`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from twinscope.items import Post
from twinscope.sink import Answer

if TYPE_CHECKING:
    from typing_extensions import Self

    from twinscope.wire.batch import Batch

ACCEPTED = Answer("accepted", 202)


@dataclass(frozen=True)
class RecordedPost:
    """A post as it arrived; `thread` is the identity of the thread that delivered it."""

    path: str
    content_type: str
    batch_id: str
    body: bytes
    thread: int
    authorization: str | None = None  # None: no token was sent (always, without a socket)


class Recording:
    """Posts that arrived, in order. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._posts: list[RecordedPost] = []

    def record(self, post: RecordedPost) -> None:
        """One more."""
        with self._lock:
            self._posts.append(post)

    @property
    def posts(self) -> list[RecordedPost]:
        """Everything so far."""
        with self._lock:
            return list(self._posts)

    def batches(self) -> list[Batch]:
        """The batches, decoded and validated as the service does it (needs numpy)."""
        from twinscope.wire.codec import decode

        return [decode(post.body) for post in self.posts if post.path == "/v1/batches"]

    def messages(self, path: str) -> list[dict[str, Any]]:
        """The JSON bodies sent to `path`, e.g. /v1/events."""
        return [json.loads(post.body) for post in self.posts if post.path == path]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for event in self.messages("/v1/events") if event["kind"] == kind]


class InMemorySink(Recording):
    """Takes what the probe sends. `answer(post)` may refuse; refused posts are not recorded."""

    def __init__(self, answer: Callable[[Post], Answer] = lambda _: ACCEPTED) -> None:
        super().__init__()
        self._answer = answer

    def send(self, post: Post) -> Answer:
        """Record a copy, on acceptance."""
        answer = self._answer(post)
        if answer.outcome == "accepted":
            self.record(
                RecordedPost(
                    path=post.path,
                    content_type=post.content_type,
                    batch_id=post.batch_id,
                    body=b"".join(post.pieces),
                    thread=threading.get_ident(),
                )
            )
        return answer

    def abort(self) -> None:
        """Nothing here waits."""

    def close(self) -> None:
        """Nothing to close."""

    def forget_after_fork(self) -> None:
        """The child records on its own."""
        self._lock = threading.Lock()
        self._posts = []


class _QuietServer(ThreadingHTTPServer):
    """Clients that die in the middle are what the tests are about."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing to print."""


Reply = tuple[int, dict[str, str], bytes]  # status, headers, body


def accept(_: RecordedPost) -> Reply:
    """The reply to a good batch."""
    return 202, {}, b"{}"


class SinkServer(Recording):
    """A small HTTP server on 127.0.0.1 that records what it accepts (status below 300).

    `reply(post)` decides. A context manager; `port` 0 takes a free one.
    """

    def __init__(self, reply: Callable[[RecordedPost], Reply] = accept, *, port: int = 0) -> None:
        super().__init__()
        self.reply = reply
        recording = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # one segment per answer: two would wait for each other (Nagle)

            def do_POST(self) -> None:
                recording._handle(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self._server = _QuietServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The address for `Probe(url=...)`."""
        return f"http://127.0.0.1:{self.port}"

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        """Read, decide, record, answer. A client that hangs up is its own affair."""
        headers = request.headers
        size = int(headers.get("Content-Length", "0"))
        with suppress(OSError):
            post = RecordedPost(
                path=request.path,
                content_type=headers.get("Content-Type", ""),
                batch_id=headers.get("X-TwinScope-Batch-Id", ""),
                body=request.rfile.read(size),
                thread=threading.get_ident(),
                authorization=headers.get("Authorization"),
            )
            if len(post.body) < size:
                return
            status, extra, body = self.reply(post)
            if status < 300:
                self.record(post)
            request.send_response(status)
            for name, value in {**extra, "Content-Length": str(len(body))}.items():
                request.send_header(name, value)
            request.end_headers()
            request.wfile.write(body)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
