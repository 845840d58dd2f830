"""A webhook receiver on a free port, whose behaviour a test scripts, and what it got."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAIT_S = 60.0


@dataclass(frozen=True)
class Delivery:
    """One accepted request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """Its JSON."""
        return json.loads(self.body)


@dataclass
class Receiver:
    """`answer(n)`: the status of the n-th request, from 0; it may also block. 2xx is accepted."""

    port: int = 0
    answer: Callable[[int], int] = lambda n: 200
    seen: int = 0
    accepted: list[Delivery] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        """Where to send."""
        return f"http://127.0.0.1:{self.port}/hook"

    def take(self, delivery: Delivery) -> int:
        """Count a request, decide, keep what is accepted."""
        with self.changed:
            number, self.seen = self.seen, self.seen + 1
            self.changed.notify_all()
        status = self.answer(number)
        with self.changed:
            if 200 <= status < 300:
                self.accepted.append(delivery)
            self.changed.notify_all()
        return status

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until the condition holds; the test fails if it does not within a minute."""
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), [d.document for d in self.accepted]

    def told(self) -> list[tuple[str, str, str]]:
        """(run, kind, state) of every alert that was accepted, in order."""
        blocks = [a["twinscope"] for d in list(self.accepted) for a in d.document["alerts"]]
        return [(b["run"], b["kind"], b["state"]) for b in blocks]


@contextmanager
def receiving(answer: Callable[[int], int] = lambda n: 200, *, port: int = 0) -> Iterator[Receiver]:
    """A receiver that runs while the block does."""
    receiver = Receiver(answer=answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(receiver.take(Delivery(self.path, dict(self.headers), body)))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
